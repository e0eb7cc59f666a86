"""The round machine: open a round, track members, accept updates, close on quorum or deadline.

Every server engine applies its events here and supplies only what differs, as ``RoundHooks``: which
updates count, how they are combined, and what happens when too few arrive in time. ``round`` rises
with every opening, ``version`` only when the model moves.

A ``Scheme`` has the properties in which the averaging methods differ from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.rules import Rows, Rule, RuleVerdict
from aggregator.rules.parameters import uniform
from edge_sdk.protocol.codec import DownlinkEncoding
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.fedavg import by_samples
from edge_sdk.shared_math.optim import IDENTITY, Transform

ASK = "train"
# the event that opens the first round of a run; later rounds open by themselves
OPEN = method.Due(round=0, ask="open")
# the ``ask`` of a ``Due`` that abandons a round after a defect; no update of it is used
ABANDON = "abandon"
AGAIN = "again"  # the ``ask`` of a ``Due`` that begins an open round with turns again
# reported reason of a round that was abandoned after a defect
DEFECT = "internal error while closing the round; see the dead letters"
# reported reason of a round whose result is not finite
NOT_FINITE = "model contains non-finite values"


@dataclass(frozen=True, slots=True)
class Rounds:
    """Settings of a round: its quorum, its deadline and the weights of its clients."""

    quorum: int = 1  # number of different clients that closes the round at once
    # number of clients that suffices at the deadline; None is the quorum itself
    least: int | None = None
    deadline: float = 900.0  # seconds from opening to abandoning (or closing with ``least``)
    # ``uniform``, or ``samples`` by the claimed sample counts
    weighting: Literal["uniform", "samples"] = "uniform"
    cap: float = 10.0  # largest sample count that is used, as a multiple of the median
    limit: int | None = None  # number of moved rounds after which the run stops; None never stops
    # ``q8`` adopts every new model as an eight-bit step from the last one
    downlink: DownlinkEncoding = "f4"

    def __post_init__(self) -> None:
        if self.quorum < 1:
            raise ValueError(f"quorum: expected at least 1, got {self.quorum}")
        if self.least is not None and not 1 <= self.least <= self.quorum:
            raise ValueError(f"least: expected 1 to the quorum ({self.quorum}), got {self.least}")
        if not self.deadline > 0:
            raise ValueError(f"deadline: expected more than 0 seconds, got {self.deadline}")
        if self.cap < 1:
            raise ValueError(f"cap: expected at least 1, got {self.cap}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: expected at least 1 round, got {self.limit}")

    @property
    def enough(self) -> int:
        return self.quorum if self.least is None else self.least


@dataclass(frozen=True, slots=True, eq=False)
class RoundState:
    """Common part of every engine's state: float64 throughout, saved leaf by leaf."""

    round: int  # the open round, or the last one; 0 before the first
    version: int  # number of times the model has moved
    is_open: bool  # true while the round accepts updates
    w: NDArray[np.float64]  # model that is announced, float64, shape ``(P,)``

    @property
    def senders(self) -> Collection[str]:
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        return len(self.senders)


S = TypeVar("S", bound=RoundState)


@dataclass(frozen=True, slots=True)
class RoundOutcome(Generic[S]):
    """Result of a round that ends."""

    state: S  # state with the method's result and without the used updates, at the old version
    report: Mapping[str, Any]  # report of the round; plain values only, for a page or JSON
    clients: Iterable[str] = ()  # clients that receive a task of the next round
    why: str = ""  # reason that nothing moved; empty if the model moved
    is_last: bool = False  # true if the run ends with this round, before its limit
    # returns those tasks; None uses the hook
    tasks: Callable[[S, Iterable[str]], method.Effects] | None = None


Step = tuple[S, method.Effects]


def _no_clients(_state: object) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True)
class RoundHooks(Generic[S]):
    """The hooks of a round engine: the steps that differ from engine to engine."""

    rounds: Rounds
    # returns True if an update belongs to the open round and is used
    counts: Callable[[S, method.Update], bool]
    accept: Callable[[S, method.Update], S]  # returns the state with a counted update waiting
    # ends a full round: returns its outcome, or a further step of the same round
    combine: Callable[[S], RoundOutcome[S] | Step[S]]
    # ends a round for a reason without using its updates
    discard: Callable[[S, str], RoundOutcome[S]]
    # returns the tasks that send some clients the present model
    tasks: Callable[[S, Iterable[str]], method.Effects]
    ask: str = ASK  # name of the tasks in the contract, and of the deadline's timer
    # returns the clients that receive a task of the first round
    clients: Callable[[S], Iterable[str]] = _no_clients
    # returns the state with a client present; None ignores members
    join: Callable[[S, str], S] | None = None
    # returns the state with a client absent; None ignores that
    leave: Callable[[S, str], S] | None = None
    # returns True if the waiting updates suffice, at any time or at the deadline; None compares
    # their number with the quorum, or with the number that suffices
    is_ready: Callable[[S, bool], bool] | None = None
    # true if rounds wait for members, so that one that leaves may close a round
    awaits_members: bool = False
    # returns the next deadline where too few updates have arrived at one; None discards the round
    extend: Callable[[method.Due], method.Due] | None = None
    # returns the outcome of adopting a parent's model; None ignores it
    adopt: Callable[[S, method.ParentModel], RoundOutcome[S]] | None = None


def apply(hooks: RoundHooks[S], state: S, event: method.Event) -> Step[S]:
    """Apply one event; events for another round change nothing.

    ``OPEN`` opens round 1. A ``Member`` that joins receives a task, unless its update waits. An
    ``Update`` that counts waits, and closes the round if enough wait. A ``Due`` is the deadline of
    its round, or abandons it. A ``ParentModel`` takes the place of a round without any update.
    """
    match event:
        case method.Due(ask="open") if state.round == 0:
            return _opened(hooks, state, RoundOutcome(state, {}, hooks.clients(state)))
        case method.Member(client=client, present=present):
            return _joined(hooks, state, client) if present else _left(hooks, state, client)
        case method.Update() if state.is_open and hooks.counts(state, event):
            return _closed_if_ready(hooks, hooks.accept(state, event))
        case method.ParentModel() if (
            hooks.adopt is not None and state.is_open and not state.waiting
        ):
            return concluded(hooks, hooks.adopt(state, event))
        case method.Due(round=number) if state.is_open and number == state.round:
            return _expired(hooks, state, event)
        case _:
            return state, ()


def _joined(hooks: RoundHooks[S], state: S, client: str) -> Step[S]:
    if hooks.join is None:
        return state, ()
    state = hooks.join(state, client)
    is_sent = state.is_open and client not in state.senders
    return state, hooks.tasks(state, [client]) if is_sent else ()


def _left(hooks: RoundHooks[S], state: S, client: str) -> Step[S]:
    after = state if hooks.leave is None else hooks.leave(state, client)
    may_close = hooks.awaits_members and after is not state
    return _closed_if_ready(hooks, after) if may_close else (after, ())


def concluded(hooks: RoundHooks[S], outcome: RoundOutcome[S]) -> Step[S]:
    """Report a round that ended and, unless it was the last, open the next one."""
    moved, limit = not outcome.why, hooks.rounds.limit
    version = outcome.state.version + moved
    is_last = moved and (outcome.is_last or (limit is not None and version >= limit))
    report = {**outcome.report, "stop": is_last} | ({} if moved else {"why": outcome.why})
    note = method.Closed(outcome.state.round, version, moved=moved, report=report)
    state = replace(outcome.state, version=version)
    if is_last:
        return replace(state, is_open=False), (note,)
    state, effects = _opened(hooks, state, outcome)
    return state, (note, *effects)


def _opened(hooks: RoundHooks[S], state: S, before: RoundOutcome[S]) -> Step[S]:
    state = replace(state, round=state.round + 1, is_open=True)
    tasks = (before.tasks or hooks.tasks)(state, before.clients)
    return state, (*tasks, method.Due(state.round, hooks.ask, after=hooks.rounds.deadline))


def _closed_if_ready(hooks: RoundHooks[S], state: S) -> Step[S]:
    return _closed(hooks, state) if state.is_open and _is_ready(hooks, state) else (state, ())


def _expired(hooks: RoundHooks[S], state: S, due: method.Due) -> Step[S]:
    """Close a round at its deadline if enough updates arrived; else extend, discard or abandon it."""
    if due.ask == ABANDON:
        return concluded(hooks, hooks.discard(state, DEFECT))
    if due.ask != hooks.ask:
        return state, ()
    if _is_ready(hooks, state, at_deadline=True):
        return _closed(hooks, state)
    if hooks.extend is not None:
        return state, (hooks.extend(due),)
    why = f"{state.waiting} of {hooks.rounds.enough} answers"
    return concluded(hooks, hooks.discard(state, why))


def _is_ready(hooks: RoundHooks[S], state: S, *, at_deadline: bool = False) -> bool:
    if hooks.is_ready is not None:
        return hooks.is_ready(state, at_deadline)
    return state.waiting >= (hooks.rounds.enough if at_deadline else hooks.rounds.quorum)


def _closed(hooks: RoundHooks[S], state: S) -> Step[S]:
    result = hooks.combine(state)
    return concluded(hooks, result) if isinstance(result, RoundOutcome) else result


def published(w: NDArray[np.float64]) -> Vector:
    """Return the model to announce, as float32."""
    with np.errstate(over="ignore"):
        return w.astype(np.float32)


def mean_loss(losses: Mapping[str, float]) -> dict[str, float]:
    """Return the report's mean of the reported losses; empty without any.

    >>> mean_loss({"b": 1.0, "a": 2.0}), mean_loss({})
    ({'loss': 1.5}, {})
    """
    return {"loss": float(np.mean([losses[name] for name in sorted(losses)]))} if losses else {}


Shares = NDArray[np.float64]
Averaged = Any  # state of the family: ``aggregator.methods.averaging.Averaged``, or a subclass


class Scheme(Protocol):
    """Hooks that a method of this family adds to a round; ``Claims`` is the default."""

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return the weight of each client, shape ``(len(ids),)``."""

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        """Return the state to keep after a round that moved the model to ``w``."""

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        """Return True if the run ends with this version before its limit."""

    def final(self, state: Averaged) -> Shares:
        """Return the model to publish when the run ends."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Default scheme: equal weights, or weights by capped sample counts."""

    rounds: Rounds  # settings of the rounds, with the weighting

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return equal weights, or weights by the claimed sample counts."""
        if self.rounds.weighting == "samples":
            return by_samples([state.counts[name] for name in ids], self.rounds.cap)
        return uniform(len(ids))

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        del state, w
        return {}

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        del version, kept
        return False

    def final(self, state: Averaged) -> Shares:
        """Return the last model."""
        last: Shares = state.w
        return last


@dataclass(frozen=True, slots=True)
class Averaging:
    """The properties in which the methods of the family differ."""

    optimiser: Transform  # step of the server
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)  # numbers of every task
    scheme: Scheme | None = None  # weights of clients and kept state; None is ``Claims``
    weights: bool = False  # clients send whole weights, from which the difference is taken
    after: Transform = IDENTITY  # applied to the model after the optimiser's step
    values_at: Callable[[int], Mapping[str, float]] | None = None  # by version, for ``values``
    rule_at: Callable[[Averaged], Rule] | None = None  # by state, instead of the run's rule
    record: Callable[[Averaged, method.Update], Mapping[str, Any]] | None = (
        None  # ``kept`` with an update
    )
    state: type[Any] | None = None  # with properties for a page; None is ``Averaged``

    @property
    def manner(self) -> Scheme:
        return Claims(self.rounds) if self.scheme is None else self.scheme


def round_report(state: Averaged, rows: Rows, verdict: RuleVerdict) -> dict[str, Any]:
    return {
        "cohort": list(rows.ids),
        "norms": dict(zip(rows.ids, map(float, rows.norms()), strict=True)),
        "weights": dict(verdict.weights),
        "dropped": dict(verdict.dropped),
        "step": float(np.linalg.norm(verdict.value)),
        **verdict.report,
        **mean_loss(state.losses),
    }
