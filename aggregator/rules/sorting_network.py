"""Sorting network for a few long rows: comparisons that do not depend on the values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 24  # row count up to which comparing rows is faster than sorting columns
Values = NDArray[Any]


def sort_few(block: Values, cut: int = 0) -> Values:
    """Return the rows of a block with every column in ascending order.

    A column with NaN becomes NaN in every row.

    Args:
        block: Shape ``(n, k)``.
        cut: Number of rows left out at either end, less than n / 2; what they need is not computed.

    >>> sort_few(np.array([[3.0, 1.0], [2.0, 5.0], [1.0, 4.0]])).tolist()
    [[1.0, 1.0], [2.0, 4.0], [3.0, 5.0]]
    >>> sort_few(np.array([[3.0, 1.0], [2.0, 5.0], [1.0, 4.0]]), 1).tolist()
    [[2.0, 4.0]]
    """
    rows, spare = list(block.copy()), np.empty_like(block[0])
    for low, high, is_low, is_high in _selection(len(rows), cut):
        if is_low:
            np.minimum(rows[low], rows[high], out=spare)
        if is_high:
            np.maximum(rows[low], rows[high], out=rows[high])
        if is_low:
            rows[low], spare = spare, rows[low]
    return np.stack(rows[cut : len(rows) - cut])


@cache
def _selection(n: int, cut: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return the comparators of n items that all but ``cut`` at either end depend on.

    Each with whether the smaller item is needed, and the larger.

    >>> _selection(3, 1)
    ((0, 2, True, True), (0, 1, False, True), (1, 2, True, False))
    """
    needed, found = set(range(cut, n - cut)), []
    for low, high in reversed(comparators(n)):
        if low in needed or high in needed:
            found.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(found))


@cache
def comparators(n: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs to put in order, one after another, to sort n items.

    >>> comparators(3)
    ((0, 2), (0, 1), (1, 2))

    Reference:
        Batcher's merge exchange: Knuth, The Art of Computer Programming, volume 3, 5.2.2,
        algorithm M.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max((n - 1).bit_length() - 1, 0)
    p = top
    while p and n > 1:
        q, r, apart = top, 0, p
        while True:
            pairs += [(i, i + apart) for i in range(n - apart) if i & p == r]
            if q == p:
                break
            apart, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)
