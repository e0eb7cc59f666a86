"""Euclidean projection onto the probability simplex."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def onto_simplex(values: NDArray[np.float64], total: float = 1.0) -> NDArray[np.float64]:
    """Return the point nearest to ``values`` whose entries are not negative and sum to ``total``.

    By sorting, O(n log n). The result does not depend on the order of the entries.

    Args:
        values: Any finite point, shape ``(n,)``, n at least 1.
        total: Sum of the returned entries, above 0.

    >>> third = np.full(3, 1 / 3)
    >>> onto_simplex(third + 0.1 * np.array([1.0, 2.0, 0.5])).round(8).tolist()
    [0.31666667, 0.41666667, 0.26666667]
    >>> onto_simplex(third + np.array([1.0, 2.0, 0.5])).tolist()
    [0.0, 1.0, 0.0]

    Reference:
        Held, Wolfe and Crowder, Validation of Subgradient Optimization, Mathematical Programming
        1974; Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008.
    """
    values = values - values.max()  # a common shift does not change the result, and costs digits
    falling = np.sort(values)[::-1]
    surplus = np.cumsum(falling) - total
    ranks = np.arange(1, len(values) + 1)
    kept = int(ranks[falling - surplus / ranks > 0.0][-1])
    nearest: NDArray[np.float64] = np.maximum(values - surplus[kept - 1] / kept, 0.0)
    return nearest
