"""FeSEM: each client receives the centre of the cluster that it belongs to.

The first round is one local pass from the common first model; its updates seed the centres. Every
later round assigns each client's newest weights to the nearest centre (E-step), moves each centre
to the rule's result over its members (M-step), and sends the round's clients their centre and a
new task.

Cluster numbers have no meaning: they depend on the seeding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.averaging.fedatt import slices_of
from aggregator.extensions.papers.clustered.clustering import (
    Centres,
    Clustering,
    Fit,
    fitted,
    report_of,
)
from aggregator.extensions.papers.clustered.kmeans import layered
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import latest_update_hooks, outcome, without_silent
from aggregator.methods.base.round_machine import ASK, NOT_FINITE, RoundOutcome, published
from aggregator.methods.base.types import Method, Rate, Setup, Steps, has_no_use, task
from aggregator.rules import Rule
from edge_sdk.app.schema import Between, SchemaError
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


Count = Annotated[int, Between(1, 256)]
Rounds = Annotated[int, Between(1, 2**31 - 1)]
Pull = Annotated[float, Between(0.0, 5e8)]  # a task's ``prox`` is twice as much


@dataclass(frozen=True, slots=True)
class FeSEM:
    """Multi-centre learning: devices are clustered by their weights, each cluster has a model.

    A rule other than the mean is applied inside each cluster. It does not protect the clustering: a
    Byzantine device far enough away gets its own centre.
    """

    centres: Count = 3  # number of clusters (K); at most the number of updates of a round
    steps: Steps = 5  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    # local steps of the first round, whose weights seed the centres: a pass over a device's
    # windows. Devices may refuse more than 64 (``accept.max_steps``).
    first_steps: Steps = 50
    mu: Pull = 0.01  # weight of the squared distance to the centre in a device's loss (lambda)
    # initial centres: some of the first updates, far from each other (``kmeans++``); or the first
    # model (``common``): all devices are in one cluster in the first round, and the other centres
    # stay at the first model
    seeding: Literal["kmeans++", "common"] = "kmeans++"
    # a centre without members stays where it is; ``reseed`` places it at the device farthest from
    # its own after ``reseed_after`` rounds, ``keep`` never does
    empty_clusters: Literal["reseed", "keep"] = "reseed"
    # number of rounds in a row that a cluster is empty before it is reseeded
    reseed_after: Rounds = 2
    stale_after: Rounds = 5  # number of rounds that the last weights of a silent device count
    # distance of weights: over all coordinates equally (``plain``), or over each layer's mean
    # square (``layers``), so that large layers do not outweigh small ones
    distance: Literal["plain", "layers"] = "plain"
    # start of a device that joins later: the ``average`` over all devices, or the centre of the
    # ``largest`` cluster
    newcomer: Literal["average", "largest"] = "average"
    renamed: ClassVar[Mapping[str, str]] = {"empty": "empty_clusters"}

    @property
    def max_staleness(self) -> int:
        return self.stale_after

    def bound(self, setup: Setup) -> Clustering:
        """Return the half's settings. A device's pull is half its ``prox``: hence twice ``mu``."""
        by_layers = self.distance == "layers"
        return Clustering(
            self.centres,
            setup.rounds,
            task(self.steps, self.rate, prox=2.0 * self.mu),
            task(self.first_steps, self.rate, prox=2.0 * self.mu),
            seeding=self.seeding == "kmeans++",
            reseed_after=self.reseed_after if self.empty_clusters == "reseed" else None,
            stale_after=self.stale_after,
            newcomer=self.newcomer,
            scale=layered(slices_of(setup)) if by_layers and setup.spec is not None else None,
            seed=setup.seed,
        )


def fesem(setup: Setup) -> Half[Centres]:
    """Return FeSEM's server half.

    Reference:
        Xie et al., Multi-Center Federated Learning, 2020 (arXiv 2005.01026). Only its abstract and
        introduction were available; seeding, empty clusters and silent devices are our reading.

    Raises:
        SchemaError: More centres than the updates of a round can fill, with as many as the rule
            needs; a trusted device, which belongs to one cluster only; or a setting that the method
            does not use.
    """
    has_no_use(setup, "weighting", "share")
    settings: FeSEM = setup.settings
    if getattr(getattr(setup.rule, "settings", None), "root", None) is not None:
        expected = "a rule without a trusted device: the device is in one cluster only"
        raise SchemaError("run.rule.name", expected, repr(getattr(setup.rule, "name", "")))
    each, rows = int(getattr(setup.rule, "least", 1)), setup.rounds.enough
    if settings.centres * each > rows:
        needs = f", {each} for each" if each > 1 else ""
        expected = f"at most {rows // each}, for a round may have {rows} answers{needs}"
        raise SchemaError(
            "run.settings.centres",
            f"{expected} (run.quorum, run.min_updates)",
            str(settings.centres),
        )
    return multicentre(setup.rule, settings.bound(setup))


METHOD = Method(FeSEM, fesem)
