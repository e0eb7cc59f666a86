"""k-means over clients' weights: assignment to centres (E-step) and update of centres (M-step).

Pure functions over a stack of weights, one row per client in order of client id, and a stack of
centres. Distances are sums of squared differences by coordinate, never from inner products:
clients of one cluster differ little, and their common part would cost the digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.averaging.attention_weights import Slices
from aggregator.rules import NOTHING, Memory, Rows, Rule, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.protocol.contract.method import Array

Matrix = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Result of one M-step."""

    centres: Matrix  # shape ``(K, P)``; one without members, or whose rule refused, is as before
    decided: tuple[str, ...]  # clusters whose rule returned a verdict
    memories: Mapping[str, Memory]  # memory of each cluster's rule, by its label
    weights: Mapping[str, float]  # weight of each client in its cluster
    dropped: Mapping[str, str]  # clients that a rule left out, each with the reason
    kept: Mapping[str, str]  # clusters whose rule had too few members, each with its reason


def distances(points: Sequence[Array], centres: Matrix, scale: Matrix | None = None) -> Matrix:
    """Return squared distances, ``sum_p scale_p (point_p - centre_p)^2``, shape ``(n, K)``.

    Args:
        points: n vectors of shape ``(P,)``, float32 or float64.
        centres: Shape ``(K, P)``, float64.
        scale: Weight of each coordinate, shape ``(P,)``; None weighs all equally.

    >>> distances([np.array([1.0, 2.0])], np.array([[0.0, 0.0], [1.0, 4.0]])).tolist()
    [[5.0, 4.0]]
    >>> distances([np.ones(2)], np.zeros((1, 2)), np.array([1.0, 0.5])).tolist()
    [[1.5]]
    """
    out = np.empty((len(points), len(centres)))
    for number, point in enumerate(points):
        squares = np.square(centres - point)
        out[number] = np.sum(squares if scale is None else squares * scale, axis=1)
    return out


def nearest(points: Sequence[Array], centres: Matrix, scale: Matrix | None = None) -> Labels:
    """Return every point's nearest centre, the lowest of several equally near (the E-step).

    >>> nearest([np.array([0.5]), np.array([10.0])], np.array([[0.0], [1.0], [10.0]])).tolist()
    [0, 2]
    """
    labels: Labels = np.argmin(distances(points, centres, scale), axis=1)
    return labels


def layered(slices: Slices) -> Matrix:
    """Return a scale that weighs every layer by its mean square, independent of its size.

    >>> layered((slice(0, 1), slice(1, 5))).tolist()
    [1.0, 0.25, 0.25, 0.25, 0.25]
    """
    sizes = [part.stop - part.start for part in slices]
    return np.repeat(1.0 / np.array(sizes, np.float64), sizes)


def draws(seed: int, version: int, count: int) -> Matrix:
    """Return uniform numbers in [0, 1) for one seeding, fixed by the arguments."""
    text = f"fesem {seed} {version}".encode()
    key = int.from_bytes(hashlib.sha256(text).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def plus_plus(points: Sequence[Array], drawn: Matrix, scale: Matrix | None = None) -> list[int]:
    """Choose points as initial centres, far from each other with high probability (k-means++).

    The first is drawn uniformly; each further one with probability proportional to its squared
    distance from the nearest chosen. If all others coincide with a chosen one, the first of them.

    Args:
        points: n vectors of shape ``(P,)``.
        drawn: A uniform number in [0, 1) for each centre, shape ``(K,)``, K at most n.
        scale: As ``distances``.

    >>> plus_plus([np.zeros(1), np.zeros(1), np.full(1, 9.0)], np.array([0.4, 0.0]))
    [1, 2]

    Reference:
        Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, SODA 2007.
    """
    chosen = [int(drawn[0] * len(points))]
    left = np.full(len(points), np.inf)
    for u in drawn[1:]:
        newest = np.asarray(points[chosen[-1]], np.float64)[None]
        left = np.minimum(left, distances(points, newest, scale)[:, 0])
        chosen.append(_picked(left, float(u), chosen))
    return chosen


def _picked(weights: Matrix, u: float, chosen: list[int]) -> int:
    total = np.cumsum(weights)
    if not total[-1] > 0.0:
        return next(i for i in range(len(weights)) if i not in chosen)
    found = int(np.searchsorted(total, u * total[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def moved(
    rule: Rule,
    points: Mapping[str, Array],
    labels: Mapping[str, int],
    centres: Matrix,
    memories: Mapping[str, Memory],
) -> Moved:
    """Move every centre to the rule's result over its members: with ``mean``, their mean (M-step).

    A rule receives centre minus member, as it receives received minus trained elsewhere.

    Args:
        rule: Rule that is applied inside each cluster; all members count equally.
        points: Weights by client, shape ``(P,)``.
        labels: The cluster of each of these clients.
        centres: Shape ``(K, P)``.
        memories: Memory of each cluster's rule, by its label.

    >>> from aggregator.rules import bind
    >>> points = {"a": np.array([1.0]), "b": np.array([3.0])}
    >>> moved(bind("mean"), points, {"a": 1, "b": 1}, np.array([[7.0], [9.0]]), {}).centres
    array([[7.],
           [2.]])
    """
    after, kept, decided = centres.copy(), dict[str, str](), list[str]()
    remembered, weights, dropped = dict(memories), dict[str, float](), dict[str, str]()
    for number, centre in enumerate(centres):
        rows = Rows.of({name: centre - points[name] for name in points if labels[name] == number})
        if not rows.ids and not rows.refused:
            continue
        label = str(number)
        try:
            verdict = rule(rows, uniform(len(rows)), memories.get(label, NOTHING))
        except TooFewRows as error:
            kept[label] = str(error)
            continue
        after[number] = centre - verdict.value
        decided.append(label)
        remembered[label] = verdict.memory
        weights |= verdict.weights
        dropped |= verdict.dropped
    return Moved(after, tuple(decided), remembered, weights, dropped, kept)


def farthest(
    points: Sequence[Array], labels: Labels, centres: Matrix, scale: Matrix | None = None
) -> int | None:
    """Return the point farthest from its own centre, the first of several.

    A point that is alone in its cluster is not considered, nor one at its centre: None if there is
    no other.

    >>> points = [np.array([0.0]), np.array([3.0]), np.array([90.0])]
    >>> farthest(points, np.array([0, 0, 1]), np.array([[1.0], [10.0]]))
    1
    """
    own = distances(points, centres, scale)[np.arange(len(points)), labels]
    sizes = np.bincount(labels, minlength=len(centres))
    own[sizes[labels] < 2] = 0.0
    best = int(np.argmax(own))
    return best if own[best] > 0.0 else None
