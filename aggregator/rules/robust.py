"""Rules: many rows in, one row out. Arithmetic only; who may be in the rows was decided before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.rows import Rows, TooFewRows, Verdict


def mean(rows: Rows, shares: NDArray[np.float64]) -> Verdict:
    """Average the rows by their shares.

    Survives no faulty row at all: one client moves the result as far as it likes. O(n d).

    Args:
        rows: Updates, shape ``(n, d)``.
        shares: What each row counts, shape ``(n,)``, not negative, summing to 1.

    Raises:
        TooFewRows: There is none.

    Example:
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
    if not len(rows):
        raise TooFewRows(needed=1, got=0)
    weights = dict(zip(rows.ids, map(float, shares), strict=True))
    return Verdict(rows.combine(shares), weights)
