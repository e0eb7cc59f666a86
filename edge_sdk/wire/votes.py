"""What a sign that was made private is worth: how likely it is kept, and what that costs.

The arithmetic that both ends need for DP-RSA. A device's mechanism draws the noise; the server may
only undo its bias. Everything is per coordinate: a whole message of P coordinates costs P times
as much, which is no meaningful number for a large P and must be reported as what it is.
"""

from __future__ import annotations

import math


def keep_probability(eps: float) -> float:
    """Return how likely sign flipping keeps a sign at a per-coordinate budget, ``e^eps/(1+e^eps)``.

    This is randomised response: pure (eps, 0)-differential privacy of one sign.

    >>> round(keep_probability(1.0), 8), keep_probability(0.0), keep_probability(1e6)
    (0.73105858, 0.5, 1.0)
    """
    return 1.0 / (1.0 + math.exp(-eps)) if eps < 700.0 else 1.0


def debias(eps: float) -> float:
    """Return by what a flipped sign must be multiplied to be right on average.

    It is the inverse of ``2 p - 1``, and it is the larger the more private the signs are: so is
    then the reach of a liar, whose sign is multiplied too.

    Raises:
        ValueError: A budget of 0: a sign that says nothing cannot be undone.

    >>> round(debias(1.0), 8)
    2.16395341
    """
    if not eps > 0.0:
        raise ValueError(f"expected a budget above 0, got {eps}")
    return 1.0 / math.tanh(eps / 2.0)


def gaussian_budget(bound: float, sigma: float) -> float:
    """Return the per-coordinate budget of ``sign(clip(u, -bound, bound) + N(0, sigma^2))``.

    The likeliest and the least likely cause of a plus lie at the two bounds, hence
    ``ln(Phi(bound/sigma) / Phi(-bound/sigma))``. Without the clip there is no budget at all: the
    ratio is unbounded.

    Raises:
        ValueError: A bound below 0, or a sigma that is not above 0.

    >>> [round(gaussian_budget(b, 1.0), 5) for b in (0.1, 0.5, 1.0)]
    [0.15965, 0.80697, 1.66827]
    """
    if bound < 0.0 or not sigma > 0.0:
        raise ValueError(f"expected bound >= 0 and sigma > 0, got {bound} and {sigma}")
    far = math.erfc(bound / sigma / math.sqrt(2.0))  # twice Phi(-bound/sigma)
    return math.log((2.0 - far) / far) if far > 0.0 else math.inf
