"""FedDA: attention inside clusters and across them, beside a quasi-global model.

The first rounds may train on averaged weeks, whose model is the quasi-global one, and may collect
the weekly profiles that the clusters are made of. Profiles are dropped once the clusters are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.averaging.fedatt import clustered, labelled, slices_of
from aggregator.extensions.papers.clustered.kmeans import draws, nearest, plus_plus
from aggregator.methods.averaging import Averaged, averaging
from aggregator.methods.base.round_machine import Averaging, Claims, Rounds
from aggregator.methods.base.types import Method, Rate, Setup, Share, Steps, has_no_use, task
from aggregator.rules import NOTHING, Memory, Rows, Rule, RuleVerdict, TooFewRows
from edge_sdk.app.schema import Between, Length, SchemaError
from edge_sdk.extensions.papers.contracts import WEEK_PARTS
from edge_sdk.protocol.contract.method import Half, Update
from edge_sdk.shared_math.fedavg import server_sgd

Members = Annotated[tuple[str, ...], Length(1, 1_000_000)]
Clusters = Annotated[int, Between(1, 256)]
WarmUp = Annotated[int, Between(1, 1_000_000)]
Week = Annotated[int, Between(len(WEEK_PARTS), 10_080)]

PROFILE, CLUSTER, TRAFFIC = "profile-", "cluster-", "traffic-"


@dataclass(frozen=True, slots=True)
class FedDA:
    """FedAtt inside clusters of clients, then across the clusters' models.

    The authors' server collects the averaged week of every client, clusters clients by it, and
    trains a quasi-global model on all of them. Here the averaged readings stay on the devices: with
    ``quasi = "weeks"`` the first rounds average models that devices train on their own averaged
    weeks. With ``clustering = "profiles"`` devices whose owners allow it (``accept.weekly_profile``)
    report 28 numbers, the mean of each six hours of a week; others are in the cluster ``unlisted``.
    """

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 1.0  # length of both steps of the server (the paper's epsilon)
    # client ids by cluster; other clients are in the cluster ``unlisted``
    clusters: Mapping[str, Members] = field(default_factory=dict)
    # clusters are ``configured``, or made from the ``profiles`` of the first rounds
    clustering: Literal["configured", "profiles"] = "configured"
    cluster_count: Clusters = 4  # number of clusters made from profiles
    # quasi-global model: none (``off``), the ``start`` model of the run, or the model of the first
    # rounds, on averaged ``weeks``
    quasi: Literal["off", "start", "weeks"] = "off"
    quasi_rounds: WarmUp = 10  # number of these rounds
    readings_per_week: Week = 168  # readings of a device in a week: 168 if they are hourly
    rho: Share = 0.1  # weight of the pull towards the quasi-global model

    @property
    def warm_up(self) -> int:
        """Return the number of first rounds that are plain averaging.

        >>> [FedDA(quasi="weeks", quasi_rounds=3).warm_up, FedDA(clustering="profiles").warm_up]
        [3, 1]
        """
        if self.quasi == "weeks":
            return self.quasi_rounds
        return 1 if self.clustering == "profiles" else 0

    def values(self, version: int) -> dict[str, float]:
        """Return the numbers of a task by the model's version."""
        values = task(self.steps, self.rate)
        if version >= self.warm_up:
            return values
        averaged, profiles = self.quasi == "weeks", self.clustering == "profiles"
        week = {"week": float(self.readings_per_week)}
        return {**values, **week, "averaged": float(averaged), "profile": float(profiles)}


@dataclass(frozen=True, slots=True, eq=False)
class TrafficClusters(Averaged):
    """State of a run whose clusters are made from profiles."""

    @property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Return the clients of each cluster; none before the clusters are made."""
        labels = traffic_labels(self.kept)
        names = sorted(set(labels.values()), key=lambda x: int(x.removeprefix(TRAFFIC)))
        return {x: tuple(n for n in sorted(labels) if labels[n] == x) for x in names}


@dataclass(frozen=True, slots=True)
class ClusteredRounds(Claims):
    """Rounds that make clusters from profiles when the first ones are over."""

    settings: FedDA
    seed: int

    def keep(self, state: Averaged, _w: NDArray[np.float64]) -> Mapping[str, Any]:
        if state.version + 1 != self.settings.warm_up:
            return state.kept
        found = {
            name.removeprefix(PROFILE): profile
            for name, profile in state.kept.items()
            if name.startswith(PROFILE)
        }
        labels = traffic_clusters(found, self.settings.cluster_count, self.seed)
        return {
            f"{CLUSTER}{name}": np.float64(label.removeprefix(TRAFFIC))
            for name, label in labels.items()
        }


def fedda(setup: Setup) -> Half[Averaged]:
    """Return FedDA's server half.

    Reference:
        Zhang et al., Dual Attention-Based Federated Learning for Wireless Traffic Prediction,
        INFOCOM 2021. There the server trains the quasi-global model on disclosed averaged weeks;
        here devices train it, so that the averaged readings are not disclosed.

    Raises:
        SchemaError: The run names a rule or a weighting, a client is named in two clusters, or
            clusters are both configured and made from profiles.
    """
    has_no_use(setup, "rule", "weighting")
    settings: FedDA = setup.settings
    by_profile = settings.clustering == "profiles"
    if by_profile and settings.clusters:
        expected = 'none beside clustering = "profiles", which makes the clusters'
        raise SchemaError("run.settings.clusters", expected, str(sorted(settings.clusters)))
    configured = labelled(settings.clusters)
    slices, rho = slices_of(setup), settings.rho if settings.quasi != "off" else 0.0

    def rule_at(state: Averaged) -> Rule:
        if state.version < settings.warm_up:
            return warming(keeps_start=settings.quasi == "start")
        labels = traffic_labels(state.kept) if by_profile else configured
        return clustered(slices, labels, epsilon=settings.server_rate, rho=rho)

    rounds: Rounds = setup.rounds
    family = Averaging(
        server_sgd(1.0),
        rounds,
        scheme=ClusteredRounds(rounds, settings, setup.seed),
        values_at=settings.values,
        rule_at=rule_at,
        record=recorded if by_profile else None,
        state=TrafficClusters if by_profile else None,
    )
    return averaging(warming(keeps_start=False), family)


def traffic_labels(kept: Mapping[str, Any]) -> dict[str, str]:
    """Return every client's cluster in a state.

    >>> traffic_labels({"cluster-cell-1": np.float64(2.0), "profile-cell-2": np.zeros(28)})
    {'cell-1': 'traffic-2'}
    """
    labels = {n: v for n, v in kept.items() if n.startswith(CLUSTER)}
    return {name.removeprefix(CLUSTER): f"{TRAFFIC}{int(value)}" for name, value in labels.items()}


def recorded(state: Averaged, update: Update) -> Mapping[str, Any]:
    """Return the state with the weekly profile of an update, if it is complete."""
    found = [update.values.get(name) for name in WEEK_PARTS]
    numbers = [value for value in found if value is not None]
    if len(numbers) < len(WEEK_PARTS):
        return state.kept
    return {**state.kept, f"{PROFILE}{update.sender}": np.array(numbers, np.float64)}


def warming(*, keeps_start: bool) -> Rule:
    """Return the rule of the first rounds: the mean, which may remember the distance from the run's start."""

    def decide(rows: Rows, shares: NDArray[np.float64], memory: Memory = NOTHING, /) -> RuleVerdict:
        if not len(rows):
            raise TooFewRows(needed=1, got=0)
        value = np.average(np.asarray(rows.values, np.float64), axis=0, weights=shares)
        weights = dict(zip(rows.ids, map(float, shares), strict=True))
        strayed = memory.get("strayed", np.zeros_like(value)) - value
        return RuleVerdict(value, weights, memory={"strayed": strayed} if keeps_start else {})

    return decide


METHOD = Method(FedDA, fedda, own=True, is_stepped=True)


Floats = NDArray[np.float64]

ITERATIONS = 100  # most steps of the k-means; it ends sooner where no label changes


def shape_of(profile: NDArray[np.floating]) -> Floats:
    """Return a profile without its level and its size: mean 0, root mean square 1; 0 where flat.

    >>> shape_of(np.array([1.0, 3.0])).tolist(), shape_of(np.array([2.0, 2.0])).tolist()
    ([-1.0, 1.0], [0.0, 0.0])
    """
    values = np.asarray(profile, np.float64)
    centred: Floats = values - values.mean()
    size = float(np.sqrt(np.mean(centred * centred)))
    shape: Floats = centred / size if size > 0.0 else centred
    return shape


def traffic_clusters(
    profiles: Mapping[str, NDArray[np.floating]], count: int, seed: int
) -> dict[str, str]:
    """Return the cluster of every client: ``traffic-0`` and on, numbered by their first client.

    Each profile counts by its shape. The result depends neither on the order of the mapping nor on
    the level or the unit of a profile.

    Args:
        count: Number of clusters (k); fewer where there are fewer clients.
        seed: Seed of the initial centres (k-means++).

    >>> day, night = np.array([0.0, 9.0, 9.0, 0.0]), np.array([5.0, 0.0, 0.0, 5.0])
    >>> traffic_clusters({"a": day, "b": night, "c": 2 * day + 1}, 2, seed=0)
    {'a': 'traffic-0', 'b': 'traffic-1', 'c': 'traffic-0'}
    """
    names = sorted(profiles)
    if not names:
        return {}
    points = [shape_of(profiles[name]) for name in names]
    chosen = plus_plus(points, draws(seed, 0, min(count, len(names))))
    centres = np.stack([points[i] for i in chosen])
    labels = nearest(points, centres)
    for _ in range(ITERATIONS):
        centres = _means(points, labels, centres)
        after = nearest(points, centres)
        if np.array_equal(after, labels):
            break
        labels = after
    order = list(dict.fromkeys(labels.tolist()))
    return {n: f"traffic-{order.index(k)}" for n, k in zip(names, labels.tolist(), strict=True)}


def _means(points: list[Floats], labels: NDArray[np.intp], centres: Floats) -> Floats:
    out = centres.copy()
    for number in range(len(centres)):
        members = [p for p, label in zip(points, labels, strict=True) if label == number]
        if members:
            out[number] = np.mean(members, axis=0)
    return out
