"""Rules on one coordinate at a time: mean, median, trimmed mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.parameters import Faulty, Shares
from aggregator.rules.rows import Rows, RuleVerdict

Columns = NDArray[Any]


def mean(rows: Rows, shares: Shares) -> RuleVerdict:
    """Average the rows by their shares.

    Tolerates no faulty row: one client moves the result without bound. O(n d).

    >>> rows = Rows.of({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4.0])})
    >>> mean(rows, np.array([0.25, 0.25, 0.5])).value
    array([2.75])
    >>> liar = Rows.of({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4e9])})
    >>> bool(mean(liar, np.array([0.25, 0.25, 0.5])).value > 1e9)
    True

    Reference:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
        AISTATS 2017.
    """
    return RuleVerdict(rows.combine(shares), rows.named(shares))


def median(rows: Rows) -> RuleVerdict:
    """Take the middle of every coordinate; of an even number, the mean of the two middle ones.

    Tolerates any minority of faulty rows: f < n / 2. O(n log n d).

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 3.0, 1e9))})
    >>> median(rows).value
    array([2.5])

    Reference:
        Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML
        2018, definition 1.
    """
    return RuleVerdict(middle_of(rows))


def trimmed_mean(rows: Rows, *, f: Faulty, b: Faulty | None = None) -> RuleVerdict:
    """Drop the b smallest and the b largest of every coordinate, and average the rest.

    Tolerates f <= b faulty rows. O(n log n d).

    Args:
        rows: Updates, shape ``(n, d)``, n > 2 b.
        f: Number of rows that may be Byzantine.
        b: Number to drop at either end; left out: f.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 6.0, 1e9))})
    >>> trimmed_mean(rows, f=1).value
    array([4.])

    Reference:
        Yin et al., ICML 2018, definition 2.
    """
    cut = f if b is None else b
    return RuleVerdict(rows.ordered(_mean, cut))


def middle(columns: Columns) -> Columns:
    """Return the middle of every ascending column, the mean of two where there are two."""
    n = len(columns)
    low, high = columns[(n - 1) // 2], columns[n // 2]
    centre: Columns = (low.astype(np.float64) + high) / 2 if n % 2 == 0 else low
    return centre


def middle_of(rows: Rows) -> NDArray[np.float64]:
    """Return the middle of every coordinate, shape ``(d,)``; only the middle values are put in order."""
    return rows.ordered(middle, (len(rows) - 1) // 2)


def _mean(columns: Columns) -> Columns:
    kept: Columns = columns.mean(axis=0, dtype=np.float64)
    return kept
