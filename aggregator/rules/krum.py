"""Rules that prefer rows with close neighbours: Krum, Multi-Krum, Bulyan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.blocked_ops import Values
from aggregator.rules.coordinatewise import middle
from aggregator.rules.parameters import Count, Faulty
from aggregator.rules.rows import Matrix, Rows, RuleVerdict

FAR = "far"  # reason of these rules to leave a row out
_MANY = 4096  # columns in which the sender of a value matters, handled at a time


def krum(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Return the row whose n - f - 2 nearest others are nearest; ties go to the lowest id.

    Tolerates f faulty rows of n >= 2 f + 3. O(n² d).

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


def multi_krum(rows: Rows, *, f: Faulty, m: Count | None = None) -> RuleVerdict:
    """Average the m rows with the lowest Krum scores, all scored once.

    Tolerates f faulty rows of n >= 2 f + 3 if m <= n - f. O(n² d).

    Args:
        rows: Updates, shape ``(n, d)``.
        f: Number of rows that may be Byzantine.
        m: Number to average; left out: n - f.

    Reference:
        Blanchard et al., NeurIPS 2017, section 4.
    """
    scores = krum_scores(rows.distances(), f)
    best = np.argsort(scores, kind="stable")[: len(rows) - f if m is None else m]
    return _chosen(rows, np.sort(best))


def bulyan(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Select n - 2 f rows by Krum one after another, then average the values near their median.

    Of the selected rows, every coordinate is the mean of the n - 4 f values closest to its median;
    of two as close, that of the lower id. Tolerates f faulty rows of n >= 4 f + 3.
    O(n² d + n² log n).

    Reference:
        El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018,
        section 4.
    """
    chosen = np.sort(bulyan_selection(rows.distances(), f))
    some, keep = rows.only(chosen), len(rows) - 4 * f
    return RuleVerdict(near_median(some, keep), dropped=_left_out(rows, chosen))


def near_median(rows: Rows, keep: int) -> Matrix:
    """Average, of every coordinate, the ``keep`` values nearest to its median; of two as near, that of the lower id.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((0.0, 1.0, 2.0, 9.0))})
    >>> near_median(rows, 3)
    array([1.])
    """
    value = rows.ordered(lambda columns: _near_middle(columns, keep))
    (tied,) = np.nonzero(np.isnan(value))
    for start in range(0, len(tied), _MANY):
        few = tied[start : start + _MANY]
        value[few] = _near_middle_by_id(rows.of_columns(few), keep)
    return value


def krum_scores(distances: Matrix, f: int) -> Matrix:
    """Return the sum of every row's n - f - 2 smallest squared distances to other rows."""
    n = len(distances)
    scores: Matrix = np.sort(_to_others(distances), axis=1)[:, : max(n - f - 2, 1)].sum(axis=1)
    return scores


def bulyan_selection(distances: Matrix, f: int) -> NDArray[np.intp]:
    """Return the n - 2 f rows that Krum selects in turn, in order of selection.

    Neighbours are counted among the remaining rows: their number less f less 2, at least 1.
    Every row's distances are sorted once; a selection changes one distance of a score.

    Args:
        distances: Squared, shape ``(n, n)``.
        f: Number of rows that may be Byzantine.
    """
    left = _Left(distances, f)
    return np.array([left.pick() for _ in range(len(distances) - 2 * f)], np.intp)


class _Left:
    """Krum scores among the remaining rows.

    ``last`` is the position, in every row's order of distance, of its farthest counted neighbour.
    """

    def __init__(self, distances: Matrix, f: int) -> None:
        n = len(distances)
        others = _to_others(distances)
        self._order = np.argsort(others, axis=1)
        self._near = np.take_along_axis(others, self._order, axis=1)
        self._place = np.empty_like(self._order)
        np.put_along_axis(self._place, self._order, np.arange(n)[None, :], axis=1)
        self._f, self._all = f, np.arange(n)
        self._gone = np.zeros(n, bool)
        self._last = np.full(n, max(n - f - 2, 1) - 1)
        self._scores = self._near[:, : self._last[0] + 1].sum(axis=1)
        self._exact = self._scores.copy()

    def pick(self) -> int:
        """Return the row with the lowest score, ties to the lowest position, and remove it."""
        best, before = self._best(), self._neighbours()
        self._gone[best] = True
        if np.count_nonzero(~self._gone) < 2:
            return best  # no row is left to be near to
        self._forget(best, shrinks=self._neighbours() < before)
        if self._neighbours() == 1:  # two that are each other's nearest tie, so no rounding here
            self._scores = self._near[self._all, self._last]
        return best

    def _best(self) -> int:
        scores = np.where(self._gone, np.inf, self._scores)
        close = np.flatnonzero(scores <= scores.min() * (1 + 1e-9))
        if len(close) > 1:
            scores[close] = [self._summed(row) for row in close]
        return int(close[np.argmin(scores[close])])

    def _summed(self, row: np.intp) -> float:
        counted = slice(0, self._last[row] + 1)
        left = ~self._gone[self._order[row, counted]]
        return float(self._near[row, counted][left].sum())

    def _neighbours(self) -> int:
        return max(int(np.count_nonzero(~self._gone)) - self._f - 2, 1)

    def _forget(self, row: int, *, shrinks: bool) -> None:
        place = self._place[:, row]
        counted = place <= self._last
        if shrinks:
            out = np.where(counted, place, self._last)
            self._scores -= self._near[self._all, out]
            self._move(~counted | (place == self._last), -1)
        else:
            self._move(counted, +1)
        self._refresh()

    def _move(self, which: NDArray[np.bool_], by: int) -> None:
        """Move ``last`` of some rows to the next position whose row remains."""
        (rows,) = np.nonzero(which & ~self._gone)
        while len(rows):
            self._last[rows] += by
            rows = rows[self._gone[self._order[rows, self._last[rows]]]]

    def _refresh(self) -> None:
        (rows,) = np.nonzero(~self._gone & (self._scores < 1e-3 * self._exact))
        for row in rows:
            self._scores[row] = self._exact[row] = self._summed(row)


def _to_others(distances: Matrix) -> Matrix:
    out = distances.copy()
    np.fill_diagonal(out, np.inf)
    return out


def _near_middle(columns: Values, keep: int) -> NDArray[Any]:
    """Return the mean of the values nearest to the middle of every ascending column.

    Of values i and i + keep exactly one is among them: the nearer. NaN where a value on either side
    is as near, so that the sender decides.
    """
    centre, chosen = middle(columns).astype(np.float64), columns[:keep].copy(order="K")
    tied = np.zeros(len(centre), np.bool_)
    for start in range(0, len(columns) - keep, keep):
        above = columns[start + keep : start + 2 * keep]
        below = columns[start : start + len(above)]
        left, right = centre - below, above - centre
        np.copyto(chosen[: len(above)], above, where=left > right)
        tied |= ((left == right) & (right > 0)).any(axis=0)
    return np.where(tied, np.nan, chosen.mean(axis=0, dtype=np.float64))


def _near_middle_by_id(block: Values, keep: int) -> NDArray[Any]:
    wide = block.astype(np.float64)
    order = np.argsort(np.abs(wide - np.median(wide, axis=0)), axis=0, kind="stable")[:keep]
    near: Matrix = np.take_along_axis(wide, order, axis=0).mean(axis=0)
    return near


def _chosen(rows: Rows, chosen: NDArray[np.intp]) -> RuleVerdict:
    weights = np.zeros(len(rows))
    weights[chosen] = 1.0 / len(chosen)
    return RuleVerdict(rows.combine(weights), rows.named(weights), _left_out(rows, chosen))


def _left_out(rows: Rows, chosen: NDArray[np.intp]) -> dict[str, str]:
    weights = np.zeros(len(rows))
    weights[chosen] = 1.0
    return {name: FAR for name, weight in rows.named(weights).items() if not weight}
