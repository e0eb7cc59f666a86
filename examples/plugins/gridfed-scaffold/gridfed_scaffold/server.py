"""SCAFFOLD's server half: the model, and the mean of the devices' control variates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aggregator.methods import Method, Setup
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import LatestUpdates, latest_update_hooks, outcome
from aggregator.methods.base.round_machine import NOT_FINITE, RoundOutcome, published
from aggregator.methods.base.types import Rate, Steps, task
from aggregator.rules import Rows, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.protocol.contract.method import Effects, Half, Task
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Settings of a run.

    Attributes:
        steps: Local steps a round (K).
        rate: Learning rate of the local steps; more than 0.
        server_rate: Fraction of the mean change that the server applies.
    """

    steps: Steps = 8
    rate: Rate = 1e-2
    server_rate: Rate = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers by which a control variate could not be computed."""
        for name in ("steps", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name):g}")

    @property
    def max_staleness(self) -> int:
        """Return 0: an update counts in the round of its task alone."""
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class Controlled(LatestUpdates):
    """State of the server.

    Attributes:
        c: Mean of the control variates of all known clients, shape ``(P,)``.
        counted: 1 + base of each client's last used answer, by client.
    """

    c: NDArray[np.float64]
    counted: Mapping[str, float] = field(default_factory=dict)


def scaffold(setup: Setup) -> Half[Controlled]:
    """Return the server half; any rule of the run combines the changes."""
    settings: Scaffold = setup.settings

    def init(w: Vector) -> Controlled:
        start = np.asarray(w, np.float64).copy()
        return Controlled(0, 0, False, start, c=np.zeros_like(start))

    def tasks(state: Controlled, clients: Iterable[str]) -> Effects:
        arrays = {"w": published(state.w), "c": published(state.c)}
        return tuple(
            Task(
                name,
                state.round,
                "train",
                base=state.version,
                values=task(settings.steps, settings.rate, counted=state.counted.get(name, 0.0)),
                arrays=arrays,
            )
            for name in sorted(clients)
        )

    def combine(state: Controlled) -> RoundOutcome[Controlled]:
        rows = Rows.of({name: state.held[name] for name in state.quorum.arrived})
        try:
            verdict = setup.rule(rows, uniform(len(rows)))
        except TooFewRows as error:
            return outcome(state, {}, str(error))
        change = verdict.value
        share = len(rows) / len(state.quorum.present)
        c = state.c + share * (change / (settings.steps * settings.rate) - state.c)
        w = state.w - settings.server_rate * change
        if not (np.isfinite(published(w)).all() and np.isfinite(published(c)).all()):
            return outcome(state, {}, NOT_FINITE)
        report = {"weights": dict(verdict.weights), "dropped": dict(verdict.dropped)}
        used = {name: float(base + 1) for name, base in state.quorum.arrived.items()}
        moved = replace(state, w=w, c=c, held={}, counted={**state.counted, **used})
        return outcome(moved, report)

    hooks = latest_update_hooks(setup.rounds, tasks, combine)
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


METHOD = Method(Scaffold, scaffold)
