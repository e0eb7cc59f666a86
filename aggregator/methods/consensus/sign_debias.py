"""What a sign that was flipped now and then is worth: DP-RSA's votes at the server."""

from __future__ import annotations

import math


def debias(eps: float) -> float:
    """Return by what a flipped sign must be multiplied to be right on average.

    A sign is kept with probability ``p = e^eps / (1 + e^eps)``; this is 1 / (2 p - 1). It is the
    larger the more private the signs are, and so is then the reach of a liar, whose sign is
    multiplied too.

    Raises:
        ValueError: A budget of 0: a sign that says nothing cannot be undone.

    >>> round(debias(1.0), 8)
    2.16395341
    """
    if not eps > 0.0:
        raise ValueError(f"expected a budget above 0, got {eps}")
    return 1.0 / math.tanh(eps / 2.0)
