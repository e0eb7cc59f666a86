"""Bias correction of randomly flipped signs: DP-RSA's votes at the server."""

from __future__ import annotations

import math


def debias(eps: float) -> float:
    """Return the factor by which a flipped sign is unbiased.

    A sign is kept with probability ``p = e^eps / (1 + e^eps)``; the factor is 1 / (2 p - 1). More
    privacy needs a larger factor, which also multiplies the sign of a Byzantine client.

    Raises:
        ValueError: A budget of 0: the sign is independent of the value.

    >>> round(debias(1.0), 8)
    2.16395341
    """
    if not eps > 0.0:
        raise ValueError(f"expected a budget above 0, got {eps}")
    return 1.0 / math.tanh(eps / 2.0)
