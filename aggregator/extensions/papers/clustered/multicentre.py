"""Multi-centre rounds: each client receives the centre of the cluster that it belongs to.

The first round is one local pass from the common first model; its updates seed the centres. Every
later round assigns each client's newest weights to the nearest centre (E-step), moves each centre
to the rule's result over its members (M-step), and sends the round's clients their centre and a
new task.

Cluster numbers have no meaning: they depend on the seeding.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.clustered.clustering import (
    Centres,
    Clustering,
    Fit,
    fitted,
    report_of,
)
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import (
    latest_update_hooks,
    outcome,
    without_silent,
)
from aggregator.methods.base.round_machine import ASK, NOT_FINITE, RoundOutcome, published
from aggregator.rules import Rule
from edge_sdk.protocol.contract.method import Effects, Half, Task
from edge_sdk.protocol.contract.parameter_layout import Vector


def multicentre(rule: Rule, settings: Clustering) -> Half[Centres]:
    """Return the server half; ``round_machine.apply`` over the latest updates."""

    def combined(state: Centres) -> RoundOutcome[Centres]:
        known, silent = without_silent(state, settings.stale_after)
        fit = fitted(known, rule, settings)
        why, report = _why_not(fit), report_of(known, fit, settings) | {"silent": silent}
        if why:
            kept = {key: report[key] for key in ("silent", "kept")}
            return outcome(known, kept, why)
        return outcome(fit.state, report)

    def init(w: Vector) -> Centres:
        first = np.asarray(w, np.float64).copy()
        placed = np.repeat(first[None], settings.count, axis=0)
        empty = np.zeros(settings.count, np.int64)
        seeded = not settings.seeding
        return Centres(0, 0, False, first, placed, empty, seeded, settings.seed)

    hooks = latest_update_hooks(settings.rounds, partial(_tasks, settings), combined)
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def _tasks(settings: Clustering, state: Centres, clients: Iterable[str]) -> Effects:
    """Return tasks to step from the clients' centres; those of one cluster share one array."""
    starts: dict[int | None, Vector] = {}
    values = settings.values if state.version else settings.first
    tasks = []
    for name in sorted(clients):
        label = state.labels.get(name)
        if label not in starts:
            starts[label] = published(_start(state, settings, label))
        arrays = {"w": starts[label]}
        task = Task(name, state.round, ASK, base=state.version, values=values, arrays=arrays)
        tasks.append(task)
    return tuple(tasks)


def _start(state: Centres, settings: Clustering, label: int | None) -> NDArray[np.float64]:
    if label is None and settings.newcomer == "largest" and state.version:
        label = int(max(state.clusters, key=lambda one: len(state.clusters[one])))
    return state.w if label is None else state.centres[label]


def _why_not(fit: Fit) -> str:
    if not (fit.moved.decided or fit.begun):
        return "; ".join(f"cluster {label}: {why}" for label, why in fit.moved.kept.items())
    if not np.isfinite(published(fit.state.centres)).all():
        return NOT_FINITE
    return ""
