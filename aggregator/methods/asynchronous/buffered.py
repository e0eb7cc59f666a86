"""Asynchronous servers: FedAsync moves with every update, FedBuff with every full buffer.

No round waits for a straggler. Every client works on its own task and receives the current model
when its update has been used. An update's staleness is the number of versions that the model moved
meanwhile; its weight is discounted by it. One half serves both: FedAsync is a buffer of one that
mixes weights, FedBuff a buffer of ``quorum`` that steps along the rule's result over differences.
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
    """Store the server's state: float64 throughout, saved leaf by leaf.

    Attributes:
        round: The open round, or the last one; 0 before the first.
        version: Number of times the model has moved.
        is_open: True while the run accepts updates.
        w: Common model, shape ``(P,)``.
        memory: State of the rule.
        pending: Updates in the buffer, one a client; the newest counts.
        bases: Version that each pending update started from.
        losses: Reported losses of the pending updates, where reported.
        heard: Round of each client's newest update; 0 for a client without one.
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
        """Return the number of updates that wait for the buffer to fill."""
        return len(self.pending)


@dataclass(frozen=True, slots=True)
class Fired:
    """Result of a full buffer: the moved model and the rule's memory."""

    w: Vector64
    memory: Memory
    report: Mapping[str, Any]


Fire = Callable[[Buffered, Mapping[str, float]], Fired]
"""Map the state and each update's discount by client to the next model, or raise ``TooFewRows``."""


@dataclass(frozen=True, slots=True)
class Buffering:
    """Settings of a run: discount, largest staleness, rounds and task numbers.

    Attributes:
        discount: Factor of an update by its staleness.
        max_staleness: Largest staleness at which an update is used.
        rounds: ``quorum`` is the buffer's size; ``least`` updates suffice at the deadline.
        values: Numbers of every task, as the contract names them.
    """

    discount: Discount
    max_staleness: int = 16
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)


def buffered(fire: Fire, settings: Buffering) -> Half[Buffered]:
    """Return the server half of the asynchronous averaging family.

    Events: ``OPEN`` opens round 1, ``Member`` sends a task to a new client, an ``Update`` goes into
    the buffer, ``Due`` is a buffer's deadline. A client gets a new task when its update has been
    used, and never one on a version older than one that it has worked on.
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
    """Send a task to a new client, or record it until the first round opens."""
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
    """Return True if the update may enter the buffer: not future, too stale or repeated."""
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
    """At the deadline use what suffices, or wait as long again; no update is discarded."""
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
    """Report the round that ended and, unless it was the last, send its clients new tasks."""
    limit = settings.rounds.limit
    if limit is not None and state.version >= limit:
        note = Closed(state.round, state.version, moved=moved, report=report | {"stop": True})
        return replace(state, is_open=False), (note,)
    note = Closed(state.round, state.version, moved=moved, report=report)
    state, effects = _opened(state, settings, sorted(cohort))
    return state, (note, *effects)
