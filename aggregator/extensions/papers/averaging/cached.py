"""Cached updates: the model moves along the rule's result over the newest difference of every device.

No round waits for a slow device, and none is filled by the fast ones alone: a device counts once, however
often it answers, until its difference is too old.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from aggregator.methods.base import quorum, round_machine
from aggregator.methods.base.round_machine import ASK, NOT_FINITE, RoundOutcome, published
from aggregator.methods.base.types import (
    Behind,
    Count,
    Method,
    Rate,
    Setup,
    Steps,
    has_no_use,
    task,
)
from aggregator.rules import Memory, Rows, Rule, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import Effects, Half, Task
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True, eq=False)
class CachedState(quorum.LatestUpdates):
    """The server's state: ``held`` are the newest differences by device."""

    memory: Memory = field(default_factory=dict, kw_only=True)  # state of the rule


@dataclass(frozen=True, slots=True)
class Cached:
    """Move the model with ``run.quorum`` updates along the rule's result over every device's newest.

    A rule other than the mean makes it robust: the number of its rows is that of the devices, and not
    of the updates that have just arrived.
    """

    steps: Steps = 4  # local steps of a task
    rate: Rate = 1e-3  # their learning rate
    # step length of the server: a move takes the part of it that the new rows are of all rows, so that
    # 1 moves the model as far while every device answers once as FedAvg does in a round
    server_rate: Rate = 1.0
    # number of devices whose difference must be known before the model moves
    min_rows: Count = 1
    # number of versions for which a silent device's last difference counts
    stale_after: Behind = 256

    @property
    def max_staleness(self) -> int:
        return self.stale_after

    @property
    def rule_rows(self) -> int:
        return self.min_rows


def over_newest(rule: Rule, settings: Cached, rounds: round_machine.Rounds) -> Half[CachedState]:
    """Return the server half: the rule's result over the newest difference of every device."""

    def combined(state: CachedState) -> RoundOutcome[CachedState]:
        known, silent = quorum.without_silent(state, settings.stale_after)
        rows = Rows.of(known.held)
        try:
            verdict = rule(rows, uniform(len(rows)), known.memory)
        except TooFewRows as error:
            return quorum.outcome(known, {"silent": silent}, str(error))
        share = settings.server_rate * len(known.senders) / len(rows)
        w = known.w - share * verdict.value
        report = {
            "rows": list(rows.ids),
            "silent": silent,
            "weights": dict(verdict.weights),
            "dropped": dict(verdict.dropped),
            "step": share * float(np.linalg.norm(verdict.value)),
            **verdict.report,
        }
        if not np.isfinite(published(w)).all():
            return quorum.outcome(known, report, NOT_FINITE)
        return quorum.outcome(replace(known, w=w, memory=verdict.memory), report)

    def is_ready(state: CachedState, at_deadline: bool) -> bool:  # noqa: FBT001 - a hook
        enough = rounds.enough if at_deadline else rounds.quorum
        if len(state.senders) < enough:
            return False
        return len(quorum.without_silent(state, settings.stale_after)[0].held) >= settings.min_rows

    def init(w: Vector) -> CachedState:
        return CachedState(0, 0, False, np.asarray(w, np.float64).copy())

    tasks = partial(_tasks, task(settings.steps, settings.rate))
    hooks = replace(quorum.latest_update_hooks(rounds, tasks, combined), is_ready=is_ready)
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def _tasks(values: dict[str, float], state: CachedState, clients: Iterable[str]) -> Effects:
    arrays = {"w": published(state.w)}
    return tuple(
        Task(name, state.round, ASK, base=state.version, values=values, arrays=arrays)
        for name in sorted(clients)
    )


def cached(setup: Setup) -> Half[CachedState]:
    """Return the server half.

    Reference:
        Chang et al., Mitigating Participation Imbalance Bias in Asynchronous Federated Learning, 2025
        (arXiv 2511.19066), ACED: the mean of all devices' newest gradients within a delay limit, moved
        at every arrival. Here differences of local steps take the gradients' place, and a rule the mean's.

    Raises:
        SchemaError: Fewer rows than the rule needs, or a setting without use.
    """
    has_no_use(setup, "weighting", "share")
    settings: Cached = setup.settings
    least = getattr(setup.rule, "least", 1)
    if settings.min_rows < least:
        raise SchemaError("run.settings.min_rows", f"at least {least}", str(settings.min_rows))
    return over_newest(setup.rule, settings, setup.rounds)


METHOD = Method(Cached, cached)
