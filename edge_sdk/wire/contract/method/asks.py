"""Define a contract: the asks of a method, with the data and the answer of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np


class Up(Enum):
    """The kind of vector that answers an ask; also the ``part`` of the update on the wire."""

    NOTHING = ""
    DELTA = "delta"  # received minus trained
    WEIGHTS = "weights"
    GRADIENT = "grad"
    SIGNS = "sign"
    PAIR = "pair"
    STATISTIC = "stat"  # sums of the device's windows, in the layout of ``statistic_layout``
    SOLUTION = "q"  # solution of the system whose right side is the task's vector
    PEERS = "peers"  # exchanged with neighbours; never sent to the server
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class Number:
    """A declared scalar: name and the closed range a receiver accepts."""

    name: str
    lowest: float
    highest: float
    measured: bool = False  # derived from readings: passes the privacy mechanism
    needed: bool = False  # required: a device that withholds it takes no part

    def admits(self, value: float) -> bool:
        """Return whether a value lies in the range (NaN never does).

        >>> Number("steps", 0, 64).admits(65)
        False
        """
        return bool(np.isfinite(value)) and self.lowest <= value <= self.highest


@dataclass(frozen=True, slots=True)
class Ask:
    """One kind of task: the data it carries, the graphs it runs, the answer it expects."""

    graphs: tuple[str, ...] = ()  # graphs of the bundle; both ends refuse to start without them
    down: tuple[str, ...] = ()  # arrays of the task
    numbers: tuple[Number, ...] = ()  # scalars of the task
    up: Up = Up.NOTHING
    report: tuple[Number, ...] = ()  # scalars of the answer
    personal: bool = False  # sent to one client at a time; the common model is then informational
    patient: bool = False  # an answer counts even if the model has moved since its base
    enc: str = "f4"  # tensor encoding of the answer
    mirrored: bool = False  # both ends compute with the answer: no noise is added to it
    stacked: bool = False  # the last array of ``down`` has a variable number of rows
    has_statistic: bool = False  # the answer has the layout of the bundle's statistic
    perishable: bool = False  # sent once, inside an open round; not stored, not repeated

    @property
    def is_quantisable(self) -> bool:
        """Return whether a run may ask for its answers in ``q8`` or ``q4``.

        Both ends compute with a mirrored answer, and weights, signs, gradients of activations and
        statistics lose more than a difference does.
        """
        return self.up is Up.DELTA and self.enc == "f4" and not self.mirrored


Contract = Mapping[str, Ask]


def answered(contract: Contract) -> tuple[str, Ask]:
    """Return the first ask of a contract that is answered with an update, and its name.

    The first such ask is the one that opens a round. All of them have the same encoding, and either
    all or none are sent to one client at a time.

    >>> answered({"open": Ask(), "share": Ask(up=Up.WEIGHTS)})[0]
    'share'
    """
    if not (durable := answers(contract)):
        raise ValueError("the contract has no ask that is answered with an update")
    return next((name, ask) for name, ask in contract.items() if ask is durable[0])


def answers(contract: Contract) -> tuple[Ask, ...]:
    """Return all asks of a contract that are answered with updates; each has a part of its own.

    >>> found = answers({"train": Ask(up=Up.WEIGHTS), "ready": Ask(), "solve": Ask(up=Up.SOLUTION)})
    >>> [ask.up.value for ask in found]
    ['weights', 'q']
    """
    return tuple(ask for ask in contract.values() if ask.up not in _PERISHABLE)


_PERISHABLE = (Up.NOTHING, Up.SIGNAL)
