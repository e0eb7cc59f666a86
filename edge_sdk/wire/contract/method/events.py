"""Define the events and effects of the two halves of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

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
    """An event: an operator removes what a client has contributed.

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
