"""Sort clients into clusters by the shape of their weekly profiles: k-means, by pure functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.clustered.kmeans import draws, nearest, plus_plus

Floats = NDArray[np.float64]

ITERATIONS = 100
"""Most steps of the k-means; it ends sooner where no label changes."""


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
