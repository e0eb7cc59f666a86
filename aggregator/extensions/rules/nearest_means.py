"""Rules that average what lies close together: MeaMed, MDA, MoNNA."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.factory import RuleSpec
from aggregator.rules.krum import FAR, near_median
from aggregator.rules.parameters import Client, Faulty
from aggregator.rules.rows import Matrix, Rows, RuleVerdict, TooFewRows


def mean_around_median(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Average, of every coordinate, the n - f values nearest to its median.

    Of two as near, that of the lower id counts. Tolerates f faulty rows of n > 2 f. O(n log n d).

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 6.0, 1e9))})
    >>> mean_around_median(rows, f=1).value
    array([3.])

    Reference:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018, section 4.
    """
    return RuleVerdict(near_median(rows, len(rows) - f))


def mda(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Average the n - f rows whose largest distance to one another is least.

    Of several such sets, the first in order of ids counts. Tolerates f faulty rows of n > 2 f.
    O(n² d); the search takes a time that doubles with every faulty row in the worst case, and far rows
    cost nothing.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((0.0, 1.0, 3.0, 4.5))})
    >>> mda(rows, f=1).value.round(3)
    array([1.333])

    Reference:
        El Mhamdi et al., Genuinely Distributed Byzantine Machine Learning, PODC 2020, section 4.
    """
    return _averaged(rows, least_diameter(rows.distances(), f))


def monna(rows: Rows, *, f: Faulty, root: Client) -> RuleVerdict:
    """Average a trusted client's row and the n - f - 1 other rows nearest to it.

    Tolerates f faulty others of n > 2 f: each that counts is as near as some honest row. After a
    pre-aggregation the others are mixed, and the trusted row is not. O(n d).

    Args:
        rows: Updates, shape ``(n, d)``, the trusted client's among them.
        f: Number of rows that may be Byzantine.
        root: Id of the trusted client.

    Raises:
        TooFewRows: The trusted client has sent no update.

    >>> rows = Rows.of({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([9.0])})
    >>> monna(rows, f=1, root="b").value
    array([1.5])

    Reference:
        Farhadkhani et al., Robust Collaborative Learning with Linear Gradient Overhead, ICML 2023.
    """
    if root not in rows.senders:
        raise TooFewRows(1, 0, f"no update of the trusted client {root!r}")
    sent = rows if rows.sent is None else rows.sent
    trusted = sent.row(sent.ids.index(root)).astype(np.float64)
    away = rows.distances_to(trusted)
    if root in rows.ids:
        away[rows.ids.index(root)] = -1.0
        return _averaged(rows, np.argsort(away, kind="stable")[: len(rows) - f])
    kept = np.argsort(away, kind="stable")[: max(len(rows) - f, 0)]
    weights = np.zeros(len(rows))
    weights[kept] = 1.0 / (len(kept) + 1)
    counted = {**rows.named(weights), root: 1.0 / (len(kept) + 1)}
    dropped = {name: FAR for name, weight in counted.items() if not weight}
    return RuleVerdict(rows.combine(weights) + trusted / (len(kept) + 1), counted, dropped)


def least_diameter(distances: Matrix, f: int) -> NDArray[np.intp]:
    """Return the first set of n - f rows, in lexicographic order, with the least diameter.

    Rows farther apart than a diameter conflict; a set is found where removing f rows removes all
    conflicts (a vertex cover of f). The least such distance is found by bisection.

    Args:
        distances: Between all pairs, in any increasing measure, shape ``(n, n)``.
        f: Number of rows to leave out.
    """
    n = len(distances)
    alive = np.ones(n, np.bool_)
    steps = np.unique(distances[np.triu_indices(n, 1)]) if n > 1 else np.zeros(1)
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        if _can_clear(distances > steps[middle], alive, f):
            high = middle
        else:
            low = middle + 1
    conflicts, kept = distances > steps[low], np.zeros(n, np.bool_)
    for row in range(n):
        after = alive & ~conflicts[row]
        if kept.sum() == n - f or not alive[row]:
            continue
        if _can_clear(conflicts, after, int(after.sum()) - (n - f)):
            kept[row], alive = True, after
        else:
            alive[row] = False
    return np.flatnonzero(kept)


def _can_clear(conflicts: NDArray[np.bool_], alive: NDArray[np.bool_], budget: int) -> bool:
    """Return whether removing at most ``budget`` of the rows that are left removes all conflicts."""
    if budget < 0:
        return False
    degrees = np.where(alive, (conflicts & alive).sum(axis=1), 0)
    worst = int(np.argmax(degrees))
    most = int(degrees[worst])
    if most == 0:
        return True
    if int(degrees.sum()) > 2 * budget * most:
        return False
    without = alive.copy()
    without[worst] = False
    if _can_clear(conflicts, without, budget - 1):
        return True
    if most > budget:
        return False
    return _can_clear(conflicts, alive & ~conflicts[worst], budget - most)


def _averaged(rows: Rows, kept: NDArray[np.intp]) -> RuleVerdict:
    weights = np.zeros(len(rows))
    weights[kept] = 1.0 / len(kept)
    counted = rows.named(weights)
    dropped = {name: FAR for name, weight in counted.items() if not weight}
    return RuleVerdict(rows.combine(weights), counted, dropped)


MEAN_AROUND_MEDIAN = RuleSpec(mean_around_median, reads_blocks=True)
MDA = RuleSpec(mda, compares_pairs=True, reads_blocks=True)
MONNA = RuleSpec(monna, lambda settings: max(2, 2 * settings.f + 1), reads_blocks=True)
