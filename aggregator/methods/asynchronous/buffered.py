"""Asynchronous servers: FedAsync moves with every update, FedBuff with every full buffer.

No round waits for a straggler. Every client works on its own task and receives the current model
when its update has been used, never one older than it has worked on. An update's staleness is the
number of versions that the model moved meanwhile; its weight is discounted by it. One half serves
both: FedAsync is a buffer of one that mixes weights, FedBuff a buffer of ``quorum`` that steps
along the rule's result over differences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.asynchronous.staleness import Discount
from aggregator.methods.base import round_machine
from aggregator.methods.base.round_machine import (
    ASK,
    NOT_FINITE,
    RoundHooks,
    RoundOutcome,
    Rounds,
    RoundState,
    mean_loss,
    published,
)
from aggregator.rules import Memory, TooFewRows
from edge_sdk.wire.contract.method import Array, Effects, Half, Task, Update
from edge_sdk.wire.contract.parameter_layout import Vector

Vector64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Buffered(RoundState):
    """Store the server's state.

    Attributes:
        memory: State of the rule.
        pending: Updates in the buffer, one a client; the newest counts.
        bases: Version that each pending update started from.
        losses: Reported losses of the pending updates, where reported.
        last_round: Round of each client's newest update; 0 for a client without one.
    """

    memory: Memory = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)
    bases: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    last_round: Mapping[str, int] = field(default_factory=dict, metadata={"leaf": "heard"})

    @property
    def senders(self) -> Collection[str]:
        """Return the clients whose update waits for the buffer to fill."""
        return self.pending.keys()


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
    """Return the server half of the asynchronous family: ``round_machine.apply`` with its hooks.

    At a deadline without enough updates the buffer waits as long again; no update is discarded.
    """

    def init(w: Vector) -> Buffered:
        return Buffered(0, 0, False, np.asarray(w, np.float64).copy())

    def tasks(state: Buffered, clients: Iterable[str]) -> Effects:
        arrays = {"w": published(state.w)}
        return tuple(
            Task(
                client,
                state.round,
                ASK,
                base=state.version,
                values=settings.values,
                arrays=arrays,
            )
            for client in sorted(clients)
        )

    hooks = RoundHooks(
        settings.rounds,
        counts=partial(_counts, settings),
        accept=_with,
        combine=partial(_combined, fire, settings),
        discard=_discarded,
        tasks=tasks,
        clients=lambda state: state.last_round,
        join=_joined,
        extend=lambda due: replace(due, step=due.step + 1, after=settings.rounds.deadline),
    )
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def _joined(state: Buffered, client: str) -> Buffered:
    """Record a client until the first round opens; later it is recorded with its update."""
    return state if state.round else replace(state, last_round={**state.last_round, client: 0})


def _counts(settings: Buffering, state: Buffered, update: Update) -> bool:
    """Return True if the update may enter the buffer: not future, too stale or repeated."""
    return (
        state.last_round.get(update.sender, 0) < update.round <= state.round
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
        last_round={**state.last_round, update.sender: update.round},
        losses=losses,
    )


def _combined(fire: Fire, settings: Buffering, state: Buffered) -> RoundOutcome[Buffered]:
    """Move the model with a full buffer."""
    behind = {name: state.version - state.bases[name] for name in sorted(state.bases)}
    report = {"cohort": list(behind), "staleness": behind, **mean_loss(state.losses)}
    emptied = _emptied(state)
    try:
        fired = fire(state, {name: settings.discount(late) for name, late in behind.items()})
    except TooFewRows as error:
        return RoundOutcome(emptied, report, behind, str(error))
    if not np.isfinite(published(fired.w)).all():
        return RoundOutcome(emptied, report, behind, NOT_FINITE)
    moved = replace(emptied, w=fired.w, memory=fired.memory)
    return RoundOutcome(moved, {**report, **fired.report}, behind)


def _discarded(state: Buffered, why: str) -> RoundOutcome[Buffered]:
    return RoundOutcome(_emptied(state), {"cohort": sorted(state.bases)}, state.bases, why)


def _emptied(state: Buffered) -> Buffered:
    return replace(state, pending={}, bases={}, losses={})
