"""Rules on the geometric median of all rows: that itself, and AutoGM."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from aggregator.rules.coordinatewise import middle_of
from aggregator.rules.factory import RuleSpec
from aggregator.rules.parameters import Radius, Shares, Times, Tolerance
from aggregator.rules.rows import PAIRS, Matrix, Rows, RuleVerdict, apart

_TINY = 1e-12
_CLOSE = 0.01  # distance to a row, in median distances, at which Weiszfeld tests for convergence


class MedianFit(NamedTuple):
    """A weighted geometric median, as a combination of the rows."""

    weights: Matrix  # coefficients of the combination, shape ``(n,)``, summing to 1
    distances: Matrix  # distance of every row to it, shape ``(n,)``
    objective: tuple[float, ...]  # weighted sum of distances after every step


def geometric_median(
    rows: Rows, shares: Shares, *, smooth: Tolerance = 1e-6, steps: Times = 100
) -> RuleVerdict:
    """Return the point with the least sum of distances to the rows, weighted by their shares.

    Weiszfeld's iteration in the space of weights: after one pass over the rows a step costs n²
    instead of n d. Beyond 2048 rows every step is a pass over the rows, without any n² numbers.
    Tolerates faulty rows that hold less than half of the shares. O(n² d), or O(steps n d).

    Args:
        rows: Updates, shape ``(n, d)``.
        smooth: Least distance that is used, in median distances, so that the iteration does not
            stop at a row that it meets.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((0.0, 1.0, 1e9))})
    >>> round(float(geometric_median(rows, np.full(3, 1 / 3)).value[0]), 3)
    1.0

    Reference:
        Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022, algorithm 2.
    """
    search = _search(rows, smooth, steps)
    fitted = search(shares, None)
    report = {"objective": fitted.objective[-1], "steps": float(len(fitted.objective))}
    return RuleVerdict(rows.combine(fitted.weights), rows.named(fitted.weights), report=report)


def autogm(
    rows: Rows, *, spread: Radius | None = None, smooth: Tolerance = 1e-6, steps: Times = 100
) -> RuleVerdict:
    """Return the geometric median under weights that themselves decrease with distance.

    Alternates between the geometric median for weights a, and the a on the simplex that minimise
    the weighted sum of distances plus ``spread / 2`` times their squared norm.

    Args:
        rows: Updates, shape ``(n, d)``.
        spread: A larger value makes weights more equal; left out: n times the median distance.
        smooth: As in ``geometric_median``.
        steps: As in ``geometric_median``; also the largest number of alternations.

    Reference:
        Li et al., Auto-weighted Robust Federated Learning with Corrupted Data Sources, ACM TIST
        2022, algorithm 1.
    """
    search, n = _search(rows, smooth, steps), len(rows)
    weights, before = np.full(n, 1.0 / n), np.inf
    fitted = search(weights, None)
    wide = n * float(np.median(fitted.distances)) if spread is None else spread
    for _ in range(steps):
        weights = water_level(fitted.distances, max(wide, _TINY))
        objective = float(weights @ fitted.distances + wide / 2 * weights @ weights)
        if before - objective <= 1e-8 * abs(objective):
            break
        before = objective
        fitted = search(weights, fitted.distances)
    report = {"objective": objective}
    return RuleVerdict(rows.combine(fitted.weights), rows.named(weights), report=report)


def weiszfeld(
    gram: Matrix,
    shares: Matrix,
    distances: Matrix,
    *,
    floor: float,
    steps: int = 100,
    tolerance: float = 1e-8,
) -> MedianFit:
    """Iterate weights of rows towards their geometric median.

    Args:
        gram: Inner products of the rows about any centre, shape ``(n, n)``.
        shares: Weight of each row, shape ``(n,)``.
        distances: Distances of the rows to the starting point, shape ``(n,)``.
        floor: Least distance that is used.
        tolerance: Stop when a step is shorter than this, relative to the median distance.
    """
    squares, last = np.diag(gram), None
    objective: list[float] = []
    for _ in range(steps):
        nearest = int(np.argmin(distances))
        if distances[nearest] <= _CLOSE * np.median(distances) and _is_at(gram, shares, nearest):
            weights = np.zeros(len(gram))
            weights[nearest] = 1.0
            distances = np.sqrt(apart(gram)[nearest])
            return MedianFit(weights, distances, (*objective, float(shares @ distances)))
        pull = shares / np.maximum(distances, floor)
        weights = pull / pull.sum()
        along = gram @ weights
        distances = np.sqrt(np.maximum(squares - 2.0 * along + weights @ along, 0.0))
        objective.append(float(shares @ distances))
        if last is not None:
            step = weights - last
            moved = np.sqrt(max(float(step @ gram @ step), 0.0))
            if moved <= tolerance * float(np.median(distances)):
                break
        last = weights
    return MedianFit(weights, distances, tuple(objective))


def _is_at(gram: Matrix, shares: Matrix, k: int) -> bool:
    """Return True if a row is the geometric median: the others' pulls do not exceed its share.

    Weiszfeld's steps towards such a row become ever shorter and would end beside it.

    Reference:
        Vardi and Zhang, The multivariate L1-median and associated data depth, PNAS 2000, eq. 2.6.
    """
    distances = np.sqrt(np.maximum(np.diag(gram) - 2.0 * gram[k] + gram[k, k], 0.0))
    here = distances <= _TINY
    pulls = np.where(here, 0.0, shares / np.maximum(distances, _TINY))
    pulls[k] = -pulls.sum()
    outwards = np.sqrt(max(float(pulls @ gram @ pulls), 0.0))
    return bool(outwards <= shares[here].sum())


def water_level(distances: Matrix, spread: float) -> Matrix:
    """Return the weights on the simplex that minimise sum a_i d_i + (spread / 2) |a|².

    >>> water_level(np.array([0.0, 0.0, 1.0]), 1.0).tolist()
    [0.5, 0.5, 0.0]
    """
    ordered = np.sort(distances)
    levels = (np.cumsum(ordered) + spread) / np.arange(1, len(ordered) + 1)
    beyond = np.flatnonzero(levels < ordered)
    level = levels[beyond[0] - 1] if len(beyond) else levels[-1]
    weights: Matrix = np.maximum(level - distances, 0.0) / spread
    return weights


# returns the geometric median for shares; starts with the second, distances of the rows to a point
Search = Callable[[Matrix, Matrix | None], MedianFit]


def _search(rows: Rows, smooth: float, steps: int) -> Search:
    if len(rows) > PAIRS:
        start = rows.distances_to(middle_of(rows))
        floor = max(smooth * float(np.median(start)), _TINY)
        return lambda shares, at: weiszfeld_passes(
            rows, shares, start if at is None else at, floor=floor, steps=steps
        )
    gram, typical, floor = _start(rows, smooth)
    return lambda shares, at: weiszfeld(
        gram, shares, typical if at is None else at, floor=floor, steps=steps
    )


def weiszfeld_passes(
    rows: Rows,
    shares: Matrix,
    distances: Matrix,
    *,
    floor: float,
    steps: int = 100,
    tolerance: float = 1e-6,
) -> MedianFit:
    """Iterate weights of rows towards their geometric median in two passes over the rows a step.

    The same iteration as ``weiszfeld`` with O(n + d) numbers in memory. Float32 rows give distances
    of about seven digits, so it stops at a longer step.

    Args:
        rows: Updates, shape ``(n, d)``.
        shares: Weight of each row, shape ``(n,)``.
        distances: Distances of the rows to the starting point, shape ``(n,)``.
        floor: Least distance that is used.
        tolerance: Stop when a step is shorter than this, relative to the median distance.
    """
    last: Matrix | None = None
    objective: list[float] = []
    for _ in range(steps):
        nearest = int(np.argmin(distances))
        if distances[nearest] <= _CLOSE * np.median(distances):
            there = rows.distances_to(rows.row(nearest).astype(np.float64))
            if _is_median(rows, shares, nearest, there):
                weights = np.zeros(len(rows))
                weights[nearest] = 1.0
                return MedianFit(weights, there, (*objective, float(shares @ there)))
        pull = shares / np.maximum(distances, floor)
        weights = pull / pull.sum()
        point = rows.combine(weights)
        distances = rows.distances_to(point)
        objective.append(float(shares @ distances))
        if last is not None:
            moved = float(np.linalg.norm(point - last))
            if moved <= tolerance * float(np.median(distances)):
                break
        last = point
    return MedianFit(weights, distances, tuple(objective))


def _is_median(rows: Rows, shares: Matrix, k: int, distances: Matrix) -> bool:
    """Return True if a row is the geometric median, as ``_is_at`` does, from its distances."""
    here = distances <= _TINY
    pulls = np.where(here, 0.0, shares / np.maximum(distances, _TINY))
    outwards = rows.combine(pulls) - pulls.sum() * rows.row(k).astype(np.float64)
    return bool(np.linalg.norm(outwards) <= shares[here].sum())


def _start(rows: Rows, smooth: float) -> tuple[Matrix, Matrix, float]:
    """Return inner products, the start of Weiszfeld's iteration, and the least distance.

    Every row starts with the inverse of its median distance to the others: a far row has little
    weight from the first step on, as in a coordinate-wise median, without another pass over the
    rows. The limit does not depend on the start.
    """
    gram = rows.gram()
    typical = np.sqrt(np.median(apart(gram), axis=1))
    return gram, typical, max(smooth * float(np.median(typical)), _TINY)


GEOMETRIC_MEDIAN = RuleSpec(geometric_median, reads_blocks=True)
AUTOGM = RuleSpec(autogm, reads_blocks=True)
