"""FedNova's server half: the rule's result over changes per step, times the mean number of steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import numpy as np

from aggregator.methods import Method, Setup
from aggregator.methods.base import round_machine
from aggregator.methods.base.round_machine import (
    NOT_FINITE,
    RoundHooks,
    RoundOutcome,
    RoundState,
    mean_loss,
    published,
)
from aggregator.methods.base.types import Rate, Steps, task
from aggregator.rules import Memory, Rows, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.app.schema import Between
from edge_sdk.protocol.contract.method import ALL, Array, Effects, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True)
class FedNova:
    """Settings of a run.

    Attributes:
        epochs: Passes of a device over its windows in a round.
        steps: Largest number of local steps of a round.
        rate: Learning rate of the local steps.
        server_rate: Fraction of the normalised step that the server applies.
    """

    epochs: Annotated[float, Between(1e-3, 100.0)] = 1.0
    steps: Steps = 64
    rate: Rate = 1e-3
    server_rate: Rate = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Normalised(RoundState):
    """State of the server; every mapping is by client.

    Attributes:
        memory: State of the rule.
        pending: Changes per step of this round.
        taken: Steps that the clients of these report.
        losses: Their reported losses.
    """

    memory: Memory = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)
    taken: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)

    @property
    def senders(self) -> Collection[str]:
        """Return the clients whose update waits for the round to close."""
        return self.pending.keys()


def fednova(setup: Setup) -> Half[Normalised]:
    """Return the server half; any rule of the run combines the changes per step."""
    settings: FedNova = setup.settings

    def init(w: Vector) -> Normalised:
        return Normalised(0, 0, False, np.asarray(w, np.float64).copy())

    def counts(state: Normalised, update: Update) -> bool:
        is_current = update.round == state.round and update.base == state.version
        return (
            is_current
            and update.sender not in state.pending
            and update.vector.shape == state.w.shape
            and update.values.get("taken", 0.0) >= 1.0
        )

    def accept(state: Normalised, update: Update) -> Normalised:
        name, losses = update.sender, dict(state.losses)
        if "loss" in update.values:
            losses[name] = float(update.values["loss"])
        taken = min(float(update.values["taken"]), float(max(settings.steps, 1)))
        return replace(
            state,
            pending={**state.pending, name: update.vector},
            taken={**state.taken, name: taken},
            losses=losses,
        )

    def combine(state: Normalised) -> RoundOutcome[Normalised]:
        rows = Rows.of(state.pending)
        try:
            verdict = setup.rule(rows, uniform(len(rows)), state.memory)
        except TooFewRows as error:
            return discard(state, str(error))
        steps = float(np.mean([state.taken[name] for name in rows.ids]))
        w = state.w - settings.server_rate * steps * verdict.value
        if not np.isfinite(published(w)).all():
            return discard(state, NOT_FINITE)
        report = {
            "cohort": list(rows.ids),
            "weights": dict(verdict.weights),
            "dropped": dict(verdict.dropped),
            "steps": steps,
            **mean_loss(state.losses),
        }
        return RoundOutcome(replace(_emptied(state), w=w, memory=verdict.memory), report)

    def discard(state: Normalised, why: str) -> RoundOutcome[Normalised]:
        return RoundOutcome(_emptied(state), {"cohort": sorted(state.pending)}, why=why)

    def tasks(state: Normalised, _clients: Iterable[str]) -> Effects:
        values = task(settings.steps, settings.rate, epochs=settings.epochs)
        arrays = {"w": published(state.w)}
        return (Task(ALL, state.round, "train", base=state.version, values=values, arrays=arrays),)

    hooks = RoundHooks(setup.rounds, counts, accept, combine, discard, tasks)
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def _emptied(state: Normalised) -> Normalised:
    return replace(state, pending={}, taken={}, losses={})


METHOD = Method(FedNova, fednova)
