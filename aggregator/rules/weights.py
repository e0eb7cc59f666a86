"""Weight of each client's row before a rule is applied: shares that sum to 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def uniform(n: int) -> NDArray[np.float64]:
    """Return equal shares for ``n`` clients; no claim is used."""
    return np.full(n, 1.0 / n) if n else np.zeros(0)


def by_samples(counts: Sequence[float], cap: float = 10.0) -> NDArray[np.float64]:
    """Return shares proportional to claimed sample counts, capped at ``cap`` times their median.

    The client claims its count, so a claim is capped; one below 1 counts as 1.

    Example:
        >>> by_samples([1, 1, 2]).tolist()
        [0.25, 0.25, 0.5]
        >>> by_samples([1, 1, 1_000_000]).round(3).tolist()
        [0.083, 0.083, 0.833]
    """
    if not len(counts):
        return np.zeros(0)
    claimed = np.maximum(np.asarray(counts, np.float64), 1.0)
    capped = np.minimum(claimed, cap * np.median(claimed))
    shares: NDArray[np.float64] = capped / capped.sum()
    return shares
