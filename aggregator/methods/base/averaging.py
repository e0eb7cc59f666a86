"""Synchronous averaging rounds: one common model, moved by an aggregation rule.

The engine serves FedSGD to FedAdam, and PL-FL. A round is open from its task until enough clients
have sent an update or its deadline has passed. A round with too few updates is abandoned: its
updates are discarded and never carried over. ``round`` rises with every opening, ``version`` only
when the model moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.rules import Memory, Rows, Rule, RuleVerdict, TooFewRows
from aggregator.rules.weights import by_samples, uniform
from edge_sdk.shared_math.optim import IDENTITY, Transform, step
from edge_sdk.wire.contract.method import (
    ALL,
    Array,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Task,
    Update,
)
from edge_sdk.wire.contract.parameter_layout import Vector

Shares = NDArray[np.float64]
ASK = "train"
OPEN = Due(round=0, ask="open")
"""The event that opens the first round of a run; later rounds open by themselves."""

ABANDON = "abandon"
"""The ``ask`` of a ``Due`` that abandons a round after a defect; no update of it is used."""

DEFECT = "an internal error when it was to close; see the dead letters"
"""Reported reason of a round that was abandoned after a defect."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Settings of a round: its quorum, its deadline and the weights of its clients.

    Attributes:
        quorum: Number of different clients that closes the round at once.
        least: Number of clients that suffices at the deadline; None is the quorum itself.
        deadline: Seconds from opening to abandoning (or closing with ``least``).
        weighting: ``uniform``, or ``samples`` by the claimed sample counts.
        cap: Largest sample count that is used, as a multiple of the median.
        limit: Number of moved rounds after which the run stops; None never stops.
    """

    quorum: int = 1
    least: int | None = None
    deadline: float = 900.0
    weighting: Literal["uniform", "samples"] = "uniform"
    cap: float = 10.0
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse values outside of their bounds."""
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
        """Return the number of clients that suffices at the deadline."""
        return self.quorum if self.least is None else self.least


@dataclass(frozen=True, slots=True, eq=False)
class Averaged:
    """Store the server's state: float64 throughout, saved leaf by leaf.

    Attributes:
        round: The open round, or the last one; 0 before the first.
        version: Number of times the model has moved.
        is_open: True while the round accepts updates.
        w: Common model, shape ``(P,)``.
        moments: State of the optimiser.
        memory: State of the rule.
        kept: Further state of the method.
        pending: Updates of this round, one a client; the first counts.
        counts: Claimed sample counts of the pending updates.
        losses: Reported losses of the pending updates, where reported.
    """

    round: int
    version: int
    is_open: bool
    w: NDArray[np.float64]
    moments: Mapping[str, NDArray[np.float64]]
    memory: Memory = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Return the number of updates that wait for the round to close."""
        return len(self.pending)


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
    """Default scheme: equal weights, or weights by capped sample counts.

    Attributes:
        rounds: Settings of the rounds, with the weighting.
    """

    rounds: Rounds

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return equal weights, or weights by the claimed sample counts."""
        if self.rounds.weighting == "samples":
            return by_samples([state.counts[name] for name in ids], self.rounds.cap)
        return uniform(len(ids))

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        """Return no state."""
        del state, w
        return {}

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        """Return False: the run continues to its limit."""
        del version, kept
        return False

    def final(self, state: Averaged) -> Shares:
        """Return the last model."""
        return state.w


@dataclass(frozen=True, slots=True)
class Averaging:
    """Settings of a run: the optimiser, the rounds and the numbers of its tasks.

    Attributes:
        optimiser: Step of the server.
        rounds: Settings of the rounds.
        values: Numbers of every task (``steps``, ``rate``, ``prox``), as the contract names them.
        scheme: Hooks of the method; None is ``Claims``.
        weights: True if clients send whole weights. The rule receives received minus trained in
            either case.
        after: Applied to the model after the optimiser's step.
    """

    optimiser: Transform
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)
    scheme: Scheme | None = None
    weights: bool = False
    after: Transform = IDENTITY

    @property
    def manner(self) -> Scheme:
        """Return the scheme, or ``Claims`` if there is none."""
        return Claims(self.rounds) if self.scheme is None else self.scheme


def averaging(rule: Rule, settings: Averaging) -> Half[Averaged]:
    """Return the server half of the averaging family.

    Events: ``OPEN`` opens round 1, an ``Update`` is one client's update, the ``Due`` of a round's
    opening is its deadline. Other events, and events for another round, change nothing.
    """

    def apply(state: Averaged, event: Event) -> tuple[Averaged, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                return _opened(state, settings)
            case Update() if _counts(state, event):
                state = _with(state, event, settings)
                full = len(state.pending) >= settings.rounds.quorum
                return _closed(state, rule, settings) if full else (state, ())
            case Due(round=number, ask="train") if state.is_open and number == state.round:
                if len(state.pending) >= settings.rounds.enough:
                    return _closed(state, rule, settings)
                why = f"{len(state.pending)} of {settings.rounds.enough} answers"
                return _abandoned(state, settings, why)
            case Due(round=number, ask="abandon") if state.is_open and number == state.round:
                return _abandoned(state, settings, DEFECT)
        return state, ()

    def init(w: Vector) -> Averaged:
        start = np.asarray(w, np.float64).copy()
        moments = {**settings.optimiser.init(start), **settings.after.init(start)}
        return Averaged(0, 0, False, start, moments)

    def model(state: Averaged) -> Mapping[str, Array]:
        is_over = state.round > 0 and not state.is_open
        return {"p": published(settings.manner.final(state) if is_over else state.w)}

    return Half(init, apply, model)


def _opened(state: Averaged, settings: Averaging) -> tuple[Averaged, Effects]:
    state = replace(_emptied(state), round=state.round + 1, is_open=True)
    task = Task(
        ALL,
        state.round,
        ASK,
        base=state.version,
        values=settings.values,
        arrays={"w": published(state.w)},
    )
    return state, (task, Due(state.round, ASK, after=settings.rounds.deadline))


def _closed(state: Averaged, rule: Rule, settings: Averaging) -> tuple[Averaged, Effects]:
    rows, manner = Rows.of(state.pending), settings.manner
    try:
        verdict = rule(rows, manner.shares(state, rows.ids), state.memory)
    except TooFewRows as error:
        return _abandoned(state, settings, str(error))
    w, moments = step(settings.optimiser, state.w, verdict.value, state.moments, settings.after)
    if not np.isfinite(published(w)).all():
        return _abandoned(state, settings, "the step left the finite numbers")
    limit, version, kept = settings.rounds.limit, state.version + 1, manner.keep(state, w)
    is_last = (limit is not None and version >= limit) or manner.is_over(version, kept)
    report = _report(state, rows, verdict) | {"stop": is_last}
    note = Closed(state.round, version, moved=True, report=report)
    state = replace(_emptied(state), version=version, w=w, moments=moments)
    state = replace(state, memory=verdict.memory, kept=kept)
    if is_last:
        return state, (note,)
    state, effects = _opened(state, settings)
    return state, (note, *effects)


def _abandoned(state: Averaged, settings: Averaging, why: str) -> tuple[Averaged, Effects]:
    """Open the next round with the same version and discard this one's updates."""
    report = {"cohort": sorted(state.pending), "why": why, "stop": False}
    note = Closed(state.round, state.version, moved=False, report=report)
    state, effects = _opened(state, settings)
    return state, (note, *effects)


def _emptied(state: Averaged) -> Averaged:
    return replace(state, is_open=False, pending={}, counts={}, losses={})


def published(w: NDArray[np.float64]) -> Vector:
    """Return the model to announce, as float32."""
    with np.errstate(over="ignore"):
        return w.astype(np.float32)


def _counts(state: Averaged, update: Update) -> bool:
    """Return True if the update belongs to the open round and is its sender's first."""
    return (
        state.is_open
        and update.round == state.round
        and update.base == state.version
        and update.sender not in state.pending
        and update.vector.shape == state.w.shape
    )


def _with(state: Averaged, update: Update, settings: Averaging) -> Averaged:
    difference = state.w - update.vector if settings.weights else update.vector
    losses = dict(state.losses)
    if "loss" in update.values:
        losses[update.sender] = float(update.values["loss"])
    return replace(
        state,
        pending={**state.pending, update.sender: difference},
        counts={**state.counts, update.sender: float(update.values.get("n", 1.0))},
        losses=losses,
    )


def _report(state: Averaged, rows: Rows, verdict: RuleVerdict) -> dict[str, Any]:
    """Return the report of a closed round; plain values only, for a page or JSON."""
    report: dict[str, Any] = {
        "cohort": list(rows.ids),
        "norms": dict(zip(rows.ids, map(float, rows.norms()), strict=True)),
        "weights": dict(verdict.weights),
        "dropped": dict(verdict.dropped),
        "step": float(np.linalg.norm(verdict.value)),
        **verdict.report,
    }
    if state.losses:
        report["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    return report
