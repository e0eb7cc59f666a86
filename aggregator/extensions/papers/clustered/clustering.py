"""Clusters of clients: the state of a run with several centres, and the steps of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.clustered.kmeans import (
    Moved,
    distances,
    draws,
    farthest,
    moved,
    nearest,
    plus_plus,
)
from aggregator.methods.base.quorum import LatestUpdates
from aggregator.methods.base.round_machine import Rounds
from aggregator.rules import Memory, Rule

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clustering:
    """Settings of a run with several centres."""

    count: int  # K, number of centres
    rounds: Rounds
    # numbers of every task, as the contract names them
    values: Mapping[str, float] = field(default_factory=dict)
    # numbers of the tasks before the centres have moved
    first: Mapping[str, float] = field(default_factory=dict)
    # true seeds the centres with the first updates; else all stay at the first model
    seeding: bool = True
    reseed_after: int | None = 2  # rounds after which an empty cluster is reseeded; None never
    stale_after: int = 5  # number of rounds that a silent client's weights count
    # start of a client without a cluster: the average of all, or the centre of the largest cluster
    newcomer: Literal["average", "largest"] = "average"
    # weight of each coordinate in a distance, shape ``(P,)``; None weighs all equally
    scale: Matrix | None = None
    seed: int = 0  # seed of the draws that seed the centres


@dataclass(frozen=True, slots=True, eq=False)
class Centres(LatestUpdates):
    """The server's state; ``w`` is the average over clients of their centres."""

    centres: Matrix  # shape ``(K, P)``; all the first model until they are seeded
    empty: NDArray[np.int64]  # number of rounds that each centre had no member, shape ``(K,)``
    seeded: bool  # true after the centres were placed
    seed: int = 0  # seed of the draws that place them; kept, because the configured one may change
    labels: Mapping[str, int] = field(default_factory=dict)  # cluster of each client
    # memory of each cluster's rule, by its label
    memories: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Return the clients of each cluster whose weights count; empty clusters too."""
        members: dict[str, list[str]] = {str(number): [] for number in range(len(self.centres))}
        for name in sorted(frozenset(self.labels) & frozenset(self.held)):
            members[str(self.labels[name])].append(name)
        return {label: tuple(names) for label, names in members.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Result of a round: the centres and the clients' clusters."""

    # state with centres, labels and average in place; round and version are as before
    state: Centres
    moved: Moved  # result of the M-step
    begun: Mapping[str, str]  # clusters that were reseeded, each with the client at which


def fitted(state: Centres, rule: Rule, settings: Clustering) -> Fit:
    """Seed in the first round; then take an E-step and an M-step, and reseed empty clusters."""
    state = state if state.seeded else _seeded(state, settings)
    names = sorted(state.held)
    points = [state.held[name] for name in names]
    found = nearest(points, state.centres, settings.scale)
    labels = dict(zip(names, map(int, found), strict=True))
    held = {name: state.held[name] for name in names}
    made = moved(rule, held, labels, state.centres, state.memories)
    sizes = np.bincount(found, minlength=settings.count)
    state = replace(
        state,
        centres=made.centres,
        memories=made.memories,
        labels={**state.labels, **labels},
        empty=np.where(sizes > 0, 0, state.empty + 1),
    )
    state, begun = _reseeded(state, settings)
    return Fit(replace(state, w=_average(state)), made, begun)


def _seeded(state: Centres, settings: Clustering) -> Centres:
    names = sorted(state.held)
    points = [state.held[name] for name in names]
    drawn = draws(state.seed, state.version, settings.count)
    chosen = plus_plus(points, drawn, settings.scale)
    placed = np.stack([points[number].astype(np.float64) for number in chosen])
    return replace(state, centres=placed, seeded=True)


def _reseeded(state: Centres, settings: Clustering) -> tuple[Centres, dict[str, str]]:
    """Reseed clusters that were empty too long, each at the client farthest from its centre.

    That client belongs to the new cluster at once; its old cluster counts it one last time.
    """
    begun: dict[str, str] = {}
    if settings.reseed_after is None:
        return state, begun
    names = sorted(state.held)
    points = [state.held[name] for name in names]
    for number in np.flatnonzero(state.empty >= settings.reseed_after):
        labels = np.array([state.labels[name] for name in names], np.intp)
        found = farthest(points, labels, state.centres, settings.scale)
        if found is None:
            break
        state = _begun(state, int(number), names[found])
        begun[str(number)] = names[found]
    return state, begun


def _begun(state: Centres, number: int, client: str) -> Centres:
    centres, empty = state.centres.copy(), state.empty.copy()
    centres[number], empty[number] = state.held[client], 0
    labels = {name: at for name, at in state.labels.items() if at != number}  # of the absent
    memories = {label: kept for label, kept in state.memories.items() if label != str(number)}
    return replace(
        state, centres=centres, empty=empty, labels={**labels, client: number}, memories=memories
    )


def _average(state: Centres) -> Matrix:
    labels = np.array([state.labels[name] for name in sorted(state.held)], np.intp)
    sizes = np.bincount(labels, minlength=len(state.centres))
    total = np.zeros_like(state.w)
    for size, centre in zip(sizes, state.centres, strict=True):
        total = total + (size / len(labels)) * centre
    return total


def report_of(before: Centres, fit: Fit, settings: Clustering) -> dict[str, Any]:
    """Return the report of a round; plain values only, for a page or JSON."""
    state = fit.state
    return {
        "clusters": {label: list(names) for label, names in state.clusters.items()},
        "changed": sorted(
            name for name, at in before.labels.items() if state.labels.get(name, at) != at
        ),
        "reseeded": dict(fit.begun),
        "kept": dict(fit.moved.kept),
        "spread": _spread(state, settings),
        "weights": dict(fit.moved.weights),
        "dropped": dict(fit.moved.dropped),
        "step": float(np.linalg.norm(state.w - before.w)),
    }


def _spread(state: Centres, settings: Clustering) -> dict[str, float]:
    out = {}
    for label, names in state.clusters.items():
        centre = state.centres[int(label)][None]
        squares = distances([state.held[name] for name in names], centre, settings.scale)
        out[label] = float(np.mean(squares)) if names else 0.0
    return out
