"""Rules that trust rows with close neighbours: Krum, Multi-Krum, Bulyan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.limits import Count, Faulty
from aggregator.rules.mixes import Grouped
from aggregator.rules.rows import Matrix, Rows, Values, Verdict

FAR = "far"
"""Why these rules leave a row out."""


def krum(rows: Rows, *, f: Faulty) -> Verdict:
    """Take the row whose n - f - 2 nearest others are nearest; ties go to the lowest id.

    Survives f faulty rows of n >= 2 f + 3. O(n² d).

    Example:
        >>> line = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 4.0, "e": 5.0}
        >>> krum(Rows.of({k: np.array([x]) for k, x in line.items()}), f=1).value
        array([1.])

        With n - f - 1 neighbours, as another package counts, it would be 2.

    Reference:
        Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
        NeurIPS 2017, section 3.
    """
    scores = krum_scores(rows.distances(), f)
    return _chosen(rows, np.array([int(np.argmin(scores))]))


def multi_krum(rows: Rows, *, f: Faulty, m: Count | None = None) -> Verdict:
    """Average the m rows that Krum likes best, all scored once.

    Survives f faulty rows of n >= 2 f + 3 if m <= n - f. O(n² d).

    Args:
        rows: Updates, shape ``(n, d)``.
        f: How many of them may be anything.
        m: How many to average; left out: n - f.

    Reference:
        Blanchard et al., NeurIPS 2017, section 4.
    """
    scores = krum_scores(rows.distances(), f)
    best = np.argsort(scores, kind="stable")[: len(rows) - f if m is None else m]
    return _chosen(rows, np.sort(best))


def bulyan(rows: Rows, *, f: Faulty) -> Verdict:
    """Select n - 2 f rows by Krum one after another, then average what is near their median.

    Of the selected rows, every coordinate is the mean of the n - 4 f values closest to its median;
    of two as close, that of the lower id. Survives f faulty rows of n >= 4 f + 3.
    O(n² d + n² log n).

    Reference:
        El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018,
        section 4.
    """
    chosen = np.sort(bulyan_selection(rows.distances(), f))
    keep = len(rows) - 4 * f
    some = rows.mixed(Grouped([[i] for i in chosen], len(rows)), tuple(rows.ids[i] for i in chosen))
    value = some.columnwise(lambda block: _near_median(block, keep))
    return Verdict(value, dropped=_left_out(rows, chosen))


def krum_scores(distances: Matrix, f: int) -> Matrix:
    """Return the sum of every row's n - f - 2 smallest squared distances to other rows."""
    n = len(distances)
    scores: Matrix = np.sort(_to_others(distances), axis=1)[:, : max(n - f - 2, 1)].sum(axis=1)
    return scores


def bulyan_selection(distances: Matrix, f: int) -> NDArray[np.intp]:
    """Return the n - 2 f rows that Krum picks in turn, in the order in which they are picked.

    Neighbours are counted among the rows that are left: their number less f less 2, at least 1.
    """
    n = len(distances)
    left, picked = np.arange(n), []
    for _ in range(n - 2 * f):
        scores = krum_scores(distances[np.ix_(left, left)], f)
        best = int(np.argmin(scores))
        picked.append(left[best])
        left = np.delete(left, best)
    return np.array(picked)


def _to_others(distances: Matrix) -> Matrix:
    out = distances.copy()
    np.fill_diagonal(out, np.inf)
    return out


def _near_median(block: Values, keep: int) -> NDArray[Any]:
    centre = np.median(block, axis=0)
    order = np.argsort(np.abs(block - centre), axis=0, kind="stable")[:keep]
    near: Matrix = np.take_along_axis(block, order, axis=0).mean(axis=0, dtype=np.float64)
    return near


def _chosen(rows: Rows, chosen: NDArray[np.intp]) -> Verdict:
    weights = np.zeros(len(rows))
    weights[chosen] = 1.0 / len(chosen)
    return Verdict(rows.combine(weights), rows.named(weights), _left_out(rows, chosen))


def _left_out(rows: Rows, chosen: NDArray[np.intp]) -> dict[str, str]:
    weights = np.zeros(len(rows))
    weights[chosen] = 1.0
    return {name: FAR for name, weight in rows.named(weights).items() if not weight}
