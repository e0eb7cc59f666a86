"""Asynchronous servers: FedAsync moves with every answer, FedBuff with every so many.

Nobody waits for a straggler. Every client works on its own task; when its answer has been used it
gets the model as it is then. How far the model has moved meanwhile is the answer's staleness, and
what it counts is discounted by it. One half serves both: FedAsync is a buffer of one that mixes
weights, FedBuff a buffer of ``quorum`` that steps along what a rule makes of the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.asynchronous.staleness import Discount
from aggregator.methods.base.averaging import ASK, DEFECT, Rounds, published
from aggregator.rules import Memory, TooFewRows
from edge_sdk.wire.contract.method import (
    Array,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Member,
    Task,
    Update,
)
from edge_sdk.wire.contract.parameter_layout import Vector

Vector64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Buffered:
    """The server's state. Float64 throughout; saved leaf by leaf.

    Attributes:
        round: The round that is open, or was last; 0 before the first.
        version: How often the model has moved.
        is_open: Whether answers are wanted.
        w: The common model, shape ``(P,)``.
        memory: What a rule remembers.
        pending: The answers in the buffer, one a client; the newest counts.
        bases: The version each of them started from.
        losses: The losses they report, where they do.
        heard: The round of each client's newest answer; 0 for one that has only come.
    """

    round: int
    version: int
    is_open: bool
    w: Vector64
    memory: Memory = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    heard: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many answers wait for the buffer to fill."""
        return len(self.pending)


@dataclass(frozen=True, slots=True)
class Fired:
    """What a full buffer makes of the model, and of a rule's memory."""

    w: Vector64
    memory: Memory
    report: Mapping[str, Any]


Fire = Callable[[Buffered, Mapping[str, float]], Fired]
"""State and every answer's discount by client to the next model; or ``TooFewRows``."""


@dataclass(frozen=True, slots=True)
class Buffering:
    """What a run of this family is.

    Attributes:
        discount: What an answer counts by its staleness.
        max_staleness: Answers from farther behind are not used.
        rounds: ``quorum`` is the buffer's size; what ``least`` wants fires it at the deadline.
        values: Numbers of every task, as the contract names them.
    """

    discount: Discount
    max_staleness: int = 16
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)


def buffered(fire: Fire, settings: Buffering) -> Half[Buffered]:
    """Return the server half of the asynchronous averaging family.

    Events: ``OPEN`` opens round 1, ``Member`` asks whoever came, an ``Update`` goes into the
    buffer, ``Due`` is a buffer's deadline. A client is asked again when what it sent has been used;
    it is never asked on a version older than one that it has worked on.
    """

    def apply(state: Buffered, event: Event) -> tuple[Buffered, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                return _opened(state, settings, sorted(state.heard))
            case Member(client=client, present=True):
                return _met(state, settings, client)
            case Update() if _counts(state, settings, event):
                state = _with(state, event)
                full = state.waiting >= settings.rounds.quorum
                return _fired(state, fire, settings) if full else (state, ())
            case Due(round=number, ask="train", step=step) if number == state.round:
                return _passed(state, fire, settings, step)
            case Due(round=number, ask="abandon") if state.is_open and number == state.round:
                report = {"cohort": sorted(state.bases), "why": DEFECT, "stop": False}
                emptied = replace(state, pending={}, bases={}, losses={})
                return _reopened(emptied, settings, state.bases, report, moved=False)
        return state, ()

    def init(w: Vector) -> Buffered:
        return Buffered(0, 0, False, np.asarray(w, np.float64).copy())

    return Half(init, apply, model=lambda state: {"p": published(state.w)})


def _met(state: Buffered, settings: Buffering, client: str) -> tuple[Buffered, Effects]:
    """Ask a client that came, or remember it until the first round opens."""
    if state.round == 0:
        return replace(state, heard={**state.heard, client: 0}), ()
    if not state.is_open or client in state.pending:
        return state, ()
    return state, (_task(state, settings, client),)


def _opened(state: Buffered, settings: Buffering, clients: list[str]) -> tuple[Buffered, Effects]:
    state = replace(state, round=state.round + 1, is_open=True)
    tasks = tuple(_task(state, settings, client) for client in clients)
    return state, (*tasks, Due(state.round, ASK, after=settings.rounds.deadline))


def _task(state: Buffered, settings: Buffering, client: str) -> Task:
    arrays = {"w": published(state.w)}
    return Task(client, state.round, ASK, base=state.version, values=settings.values, arrays=arrays)


def _counts(state: Buffered, settings: Buffering, update: Update) -> bool:
    """Whether an answer may go into the buffer: not from the future, nor too old, nor twice."""
    return (
        state.is_open
        and state.heard.get(update.sender, 0) < update.round <= state.round
        and 0 <= state.version - update.base <= settings.max_staleness
        and update.vector.shape == state.w.shape
    )


def _with(state: Buffered, update: Update) -> Buffered:
    losses = {name: loss for name, loss in state.losses.items() if name != update.sender}
    if "loss" in update.values:
        losses[update.sender] = float(update.values["loss"])
    return replace(
        state,
        pending={**state.pending, update.sender: update.vector},
        bases={**state.bases, update.sender: update.base},
        heard={**state.heard, update.sender: update.round},
        losses=losses,
    )


def _passed(
    state: Buffered, fire: Fire, settings: Buffering, step: int
) -> tuple[Buffered, Effects]:
    """At the deadline fire with what suffices, or wait as long again: nothing is thrown away."""
    if not state.is_open:
        return state, ()
    if state.waiting >= settings.rounds.enough:
        return _fired(state, fire, settings)
    return state, (Due(state.round, ASK, step + 1, settings.rounds.deadline),)


def _fired(state: Buffered, fire: Fire, settings: Buffering) -> tuple[Buffered, Effects]:
    behind = {name: state.version - state.bases[name] for name in sorted(state.bases)}
    factors = {name: settings.discount(late) for name, late in behind.items()}
    report: dict[str, Any] = {"cohort": list(behind), "staleness": behind, "stop": False}
    if state.losses:
        report["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    emptied = replace(state, pending={}, bases={}, losses={})
    try:
        fired = fire(state, factors)
    except TooFewRows as error:
        report["why"] = str(error)
        return _reopened(emptied, settings, behind, report, moved=False)
    if not np.isfinite(published(fired.w)).all():
        report["why"] = "the step left the finite numbers"
        return _reopened(emptied, settings, behind, report, moved=False)
    moved = replace(emptied, w=fired.w, memory=fired.memory, version=state.version + 1)
    return _reopened(moved, settings, behind, {**report, **fired.report}, moved=True)


def _reopened(
    state: Buffered,
    settings: Buffering,
    cohort: Mapping[str, int],
    report: dict[str, Any],
    *,
    moved: bool,
) -> tuple[Buffered, Effects]:
    """Tell of the round that ended and, unless it was the last, ask its clients anew."""
    limit = settings.rounds.limit
    if limit is not None and state.version >= limit:
        note = Closed(state.round, state.version, moved=moved, report=report | {"stop": True})
        return replace(state, is_open=False), (note,)
    note = Closed(state.round, state.version, moved=moved, report=report)
    state, effects = _opened(state, settings, sorted(cohort))
    return state, (note, *effects)
