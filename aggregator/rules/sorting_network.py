"""Sorting network for a few long rows: comparisons that do not depend on the values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 24
"""Row count up to which comparing rows is faster than sorting columns."""

Values = NDArray[Any]


def sort_few(block: Values) -> Values:
    """Return the rows of a block with every column in ascending order.

    >>> sort_few(np.array([[3.0, 1.0], [2.0, 5.0], [1.0, 4.0]])).tolist()
    [[1.0, 1.0], [2.0, 4.0], [3.0, 5.0]]
    """
    rows, spare = list(block.copy()), np.empty_like(block[0])
    for low, high in comparators(len(rows)):
        np.minimum(rows[low], rows[high], out=spare)
        np.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return np.stack(rows)


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
