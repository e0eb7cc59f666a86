"""IFCA: every device receives all centres, and says which one fits its readings best.

A round sends the centres to all devices. Each trains from the centre with the least loss, and answers
with its weights and the centre's number; every centre moves to the rule's result over its answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.clustered.clustering import Centres, Clustering, Fit, report_of
from aggregator.extensions.papers.clustered.kmeans import moved
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import accepted, latest_update_hooks, outcome, without_silent
from aggregator.methods.base.round_machine import ASK, NOT_FINITE, RoundOutcome, published
from aggregator.methods.base.types import Method, Rate, Setup, Steps, has_no_use, task
from aggregator.rules import Rule
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.protocol.contract.method import Effects, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector


def by_least_loss(rule: Rule, settings: Clustering, spread: float) -> Half[Centres]:
    """Return the server half; ``spread`` is the standard deviation of the first centres' noise."""

    def combined(state: Centres) -> RoundOutcome[Centres]:
        known, silent = without_silent(state, settings.stale_after)
        arrived = sorted(known.quorum.arrived.keys() & known.labels.keys())
        labels = {name: known.labels[name] for name in arrived}
        points = {name: known.held[name] for name in arrived}
        made = moved(rule, points, labels, known.centres, known.memories)
        after = replace(
            known, centres=made.centres, memories=made.memories, w=_average(known, made.centres)
        )
        report = report_of(known, Fit(after, made, {}), settings) | {"silent": silent}
        why = "" if made.decided else "; ".join(f"cluster {x}: {y}" for x, y in made.kept.items())
        if not made.decided:
            return outcome(known, {"silent": silent}, why or "no answer names a centre")
        if not np.isfinite(published(after.centres)).all():
            return outcome(known, {"silent": silent}, NOT_FINITE)
        return outcome(after, report)

    def accept(state: Centres, update: Update) -> Centres:
        number = int(update.values.get("cluster", settings.count))
        labels = {name: at for name, at in state.labels.items() if name != update.sender}
        own = {update.sender: number} if number < settings.count else {}  # another one is no centre
        return replace(accepted(state, update), labels=labels | own)

    def init(w: Vector) -> Centres:
        first = np.asarray(w, np.float64).copy()
        empty = np.zeros(settings.count, np.int64)
        placed = first_centres(first, settings.count, spread, settings.seed)
        return Centres(0, 0, False, first, placed, empty, seeded=True, seed=settings.seed)

    hooks = latest_update_hooks(settings.rounds, partial(_tasks, settings), combined, accept)
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def first_centres(
    w: Vector | NDArray[np.float64], count: int, spread: float, seed: int
) -> NDArray[np.float64]:
    """Return centres around the first model, shape ``(count, P)``; the first is the model itself.

    The same seed gives the same centres.

    >>> first_centres(np.ones(2), 2, 0.0, 0).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    first = np.asarray(w, np.float64)
    length = float(np.sqrt(np.mean(first**2))) if first.size else 0.0
    noise = np.random.Generator(np.random.Philox(key=seed)).normal(size=(count, first.size))
    noise[0] = 0.0
    return first + spread * length * noise


def _average(state: Centres, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    counted = list(state.labels.values())
    sizes = np.bincount(counted, minlength=len(centres)) / max(len(counted), 1)
    total = np.zeros_like(state.w)
    for size, centre in zip(sizes, centres, strict=True):
        total = total + size * centre
    return total if counted else state.w


def _tasks(settings: Clustering, state: Centres, clients: Iterable[str]) -> Effects:
    """Return tasks with all centres, which are one array."""
    arrays = {"centres": published(state.centres)}
    return tuple(
        Task(name, state.round, ASK, base=state.version, values=settings.values, arrays=arrays)
        for name in sorted(clients)
    )


Count = Annotated[int, Between(1, 64)]
Rounds = Annotated[int, Between(1, 2**31 - 1)]


@dataclass(frozen=True, slots=True)
class IFCA:
    """Clusters by loss: each device trains the one of several models that fits its readings best.

    A rule other than the mean is applied inside each cluster. A Byzantine device chooses its cluster.
    """

    centres: Count = 3  # number of models (K); a device receives all of them in every round
    steps: Steps = 5  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    # standard deviation of the noise by which the first models differ, as a share of the root mean
    # square of the first model
    spread: Annotated[float, Between(0.0, 100.0)] = 0.5
    stale_after: Rounds = 5  # number of rounds that the last weights of a silent device are kept

    @property
    def max_staleness(self) -> int:
        return self.stale_after


def ifca(setup: Setup) -> Half[Centres]:
    """Return IFCA's server half.

    Reference:
        Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning,
        NeurIPS 2020, algorithm 1, with averages of models. The paper begins with random models; these
        begin around the bundle's.

    Raises:
        SchemaError: A trusted device, which is in one cluster only, or a setting without use.
    """
    has_no_use(setup, "weighting", "share")
    settings: IFCA = setup.settings
    if getattr(getattr(setup.rule, "settings", None), "root", None) is not None:
        expected = "a rule without a trusted device: the device is in one cluster only"
        raise SchemaError("run.rule.name", expected, repr(getattr(setup.rule, "name", "")))
    bound = Clustering(
        settings.centres,
        setup.rounds,
        task(settings.steps, settings.rate),
        stale_after=settings.stale_after,
        seed=setup.seed,
    )
    return by_least_loss(setup.rule, bound, settings.spread)


METHOD = Method(IFCA, ifca)
