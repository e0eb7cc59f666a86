"""What is believed of activations and gradients that stations send: finite, and not too long.

Source: ``algorithms.md`` section 6.4, server guards. What is not finite never comes here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]

MEDIANS = 3.0
"""How many medians over the stations something may be long."""

_TINY = 1e-12


def clipped_features(h: Array, said: Mask, most: float = MEDIANS) -> tuple[Array, Array]:
    """Shorten each station's activations, window by window, to so many medians over the stations.

    Zeros, of windows that a station lacks, are not counted in the median.

    Args:
        h: Activations, ``(B, N, F, L)``.
        said: Whose these are this time, ``(N,)``: others are neither counted nor shortened.
        most: In medians; infinity shortens nothing.

    Returns:
        The activations, and the factor of each, ``(B, N)``.

    Example:
        >>> h = np.array([1.0, 2.0, 30.0, 0.0]).reshape(1, 4, 1, 1)
        >>> clipped_features(h, np.array([True, True, True, True]))[0].ravel().tolist()
        [1.0, 2.0, 6.0, 0.0]
    """
    factors = np.ones(h.shape[:2], h.dtype)
    if not np.isfinite(most) or not said.any():
        return h, factors
    norms = np.sqrt(np.sum(np.square(h, dtype=np.float64), axis=(2, 3)))
    for b, row in enumerate(norms):
        counted = row[said & (row > 0)]
        if counted.size:
            limit = most * float(np.median(counted))
            long = said & (row > limit)
            factors[b, long] = limit / np.maximum(row[long], _TINY)
    return h * factors[:, :, None, None], factors


def clipped_gradients(gz: Array, said: Mask, most: float = MEDIANS) -> Array:
    """Shorten each station's gradient, of the whole batch, to so many medians over the stations.

    Args:
        gz: Gradients, ``(B, N, F, L)``.
        said: Whose these are this time, ``(N,)``.
        most: In medians; infinity shortens nothing.

    Example:
        >>> gz = np.array([1.0, 1.0, -1e6]).reshape(1, 3, 1, 1)
        >>> clipped_gradients(gz, np.array([True, True, True])).ravel().tolist()
        [1.0, 1.0, -3.0]
    """
    if not np.isfinite(most) or not said.any():
        return gz
    norms = np.sqrt(np.sum(np.square(gz, dtype=np.float64), axis=(0, 2, 3)))
    limit = most * float(np.median(norms[said]))
    factors = np.where(said & (norms > limit), limit / np.maximum(norms, _TINY), 1.0)
    shorter: Array = gz * factors.astype(gz.dtype)[None, :, None, None]
    return shorter
