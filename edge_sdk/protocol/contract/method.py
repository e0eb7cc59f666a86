"""Define a method: two pure state machines, one per end, and the contract between them.

A half is a pure state machine; a shell (``edge_sdk.client`` on a device, ``aggregator.daemon`` on
the server) drives it and owns bytes, clocks, disks, keys and noise. A task is an effect of the
server half and an event of the device half; an update is the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.contract.parameter_layout import Vector


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
    """Return the asks of a contract that updates answer; each has its own part.

    >>> found = answers({"train": Ask(up=Up.WEIGHTS), "ready": Ask(), "solve": Ask(up=Up.SOLUTION)})
    >>> [ask.up.value for ask in found]
    ['weights', 'q']
    """
    return tuple(ask for ask in contract.values() if ask.up not in _PERISHABLE)


_PERISHABLE = (Up.NOTHING, Up.SIGNAL)


ALL = "_all"
"""The recipient that means every client of the fleet."""

END = "end"
"""The ask by which a device's shell passes the final model ``w`` to its half after the run.

No server half sends it and no contract names it. A half that forecasts with the common model adopts
``w`` and answers nothing; one with a model of its own may leave its state unchanged.
"""

Array = NDArray[Any]
Scalars = Mapping[str, float]
NO_SCALARS: Scalars = MappingProxyType({})
NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})


def _no_scalars() -> Scalars:
    return NO_SCALARS


def _no_arrays() -> Mapping[str, Array]:
    return NO_ARRAYS


@dataclass(frozen=True, slots=True)
class Task:
    """A request to one client, or to all."""

    to: str  # a client id, or ALL
    round: int  # the round it opens or continues; rises for one client
    ask: str  # the name of its kind in the contract
    step: int = 0  # the turn inside the round
    base: int = 0  # version of the model it carries
    attempt: int = 0  # how often the round was restarted
    values: Scalars = field(default_factory=_no_scalars)  # declared in the contract
    arrays: Mapping[str, Array] = field(default_factory=_no_arrays)  # declared in the contract


@dataclass(frozen=True, slots=True)
class Update:
    """A durable answer that changes the model: receipted, and counted once."""

    sender: str  # a client id; proved by the envelope, never read from the body
    round: int
    base: int  # version the training started from
    vector: Array  # shape (P,), of kind `part`; float64 once a server has admitted it
    values: Scalars = field(default_factory=_no_scalars)  # declared numbers (n, loss, …)
    check: bytes = b""  # 8 bytes of a hash of the state that both ends hold, or nothing


@dataclass(frozen=True, slots=True)
class Signal:
    """A transient answer within a deadline: not stored, not receipted."""

    sender: str
    round: int
    ask: str
    step: int
    array: Array  # of no elements where the answer has only numbers
    values: Scalars = field(default_factory=_no_scalars)
    attempt: int = 0  # how often the round was restarted


@dataclass(frozen=True, slots=True)
class Due:
    """A timer: as an effect, it starts and runs ``after`` seconds; as an event, it has expired."""

    round: int
    ask: str
    step: int = 0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """An event: a client became present (``present``) or absent.

    It is emitted with every welcome and every reconnect, and again when the client's answer was
    refused and the model has moved since. A half that asks one client at a time answers with the
    task the client should work on now, unless its answer is already queued. A task that is still
    open may be repeated; the shell sends it once.
    """

    client: str
    present: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a round; ``moved`` is whether it produced a new version or was abandoned."""

    round: int
    version: int
    moved: bool
    report: Mapping[str, Any] = field(default_factory=dict)  # cohort, dropped, norms, why


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a round's transient turns, for the journal.

    Signals are not journalled. Their effect on the server's own parameters is recorded here, so
    that the state remains a fold over the journal.
    """

    round: int
    attempt: int
    arrays: Mapping[str, Array] = field(default_factory=_no_arrays)
    values: Scalars = field(default_factory=_no_scalars)
    record: str = ""  # participants of each turn, one line each


@dataclass(frozen=True, slots=True)
class Unlearned:
    """Event: an operator removes a client's contribution.

    Only a half that keeps contributions apart can apply it; any other returns its very state.
    """

    client: str


@dataclass(frozen=True, slots=True)
class ParentModel:
    """An event at a site: its parent's aggregator has published a model, and the site adopts it.

    Only a half that keeps one common model can apply it; any other returns its very state.
    """

    run: int  # run of the parent
    number: int  # the parent's round
    attempt: int
    step: int
    version: int  # the parent's version of the model
    vector: Array  # the parent's model, shape (P,), float32
    carry: Array  # later progress of the site that is kept, shape (P,), float64; or of no elements
    is_last: bool = False  # the parent's run has ended


Event = Task | Update | Signal | Due | Member | Played | Unlearned | ParentModel
Effect = Task | Update | Signal | Due | Closed | Played
Effects = tuple[Effect, ...]


S = TypeVar("S")


class Play(NamedTuple, Generic[S]):
    """A pure state machine for the transient turns inside a round, beside a half.

    A shell drives it with events that are not journalled. It restarts from the half's state
    whenever the half opens a round, restarts one (``attempt``), or has applied ``Played``; a
    restarted process restarts it as well. Its effects are tasks, timers, and ``Played`` at the end.
    """

    begin: Callable[[S, Any], Any]  # a half's state, and the earlier result or None
    apply: Callable[[Any, Event], tuple[Any, Effects]]
    wants: Callable[[Any, Signal, tuple[int, ...]], bool]  # accept an answer by its shape
    placed: Callable[[Any, S], Any]  # the same, where the half only assigned another slot


class Half(NamedTuple, Generic[S]):
    """One end of a method: a pure state machine that a shell drives.

    ``apply`` never raises for anything a peer could have sent (the shells admit first) and never
    blocks; an exception inside it means that no state has changed. Where nothing changes it returns
    the very state it was given, which the shell then does not journal.
    """

    init: Callable[[Vector], S]
    apply: Callable[[S, Event], tuple[S, Effects]]
    model: Callable[[S], Mapping[str, Array]]  # feeds to forecast with, or to publish
    play: Play[Any] | None = None  # present where a round has transient turns


METHODS_GROUP = "gridfed.methods"
"""Entry-point group of other packages' methods (``edge_sdk.protocol.contract.plugin.MethodPlugin``)."""

SERVE = "serve"
"""Name of the timer, and of the ask, for the graph's output on the newest window."""

SHARE = "share"
"""The ask for a round's answer in split learning."""

STEPS = Number("steps", 0, 65536)
RATE = Number("rate", 0.0, 1e3)
PROX = Number("prox", 0.0, 1e9)
LOSS = Number("loss", 0.0, 3.4e38, measured=True)

_TRAIN = Ask(("gradient",), ("w",), (STEPS, RATE, PROX), Up.DELTA, (LOSS,))


def _contract_of(_name: str, plugin: Any) -> Contract:  # noqa: ANN401 - a foreign object
    contract = getattr(plugin, "contract", None)
    if not isinstance(contract, Mapping):
        raise TypeError(f"expected a MethodPlugin, got {type(plugin).__name__}")
    answered(contract)
    return contract


CONTRACTS: PluginRegistry[Contract] = PluginRegistry(
    {
        "fedsgd": {"train": Ask(("gradient",), ("w",), (RATE,), Up.GRADIENT, (LOSS,))},
        "fedavg": {"train": _TRAIN},
        "fedprox": {"train": _TRAIN},
        "fedavgm": {"train": _TRAIN},
        "fedadam": {"train": _TRAIN},
        "fedbuff": {"train": replace(_TRAIN, personal=True, patient=True)},
    },
    METHODS_GROUP,
    _contract_of,
    ExtensionIndex("edge_sdk").loaders("methods"),
)
"""Every method's asks; the two ``METHODS`` of device and aggregator have the same keys."""
