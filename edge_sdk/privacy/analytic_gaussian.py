"""Compute the Gaussian noise for a privacy guarantee, and the guarantee of a given noise.

Analytic calibration: Balle and Wang, "Improving the Gaussian mechanism for differential privacy"
(2018), theorem 8. Every answer is rounded to the safe side. ``sigma`` is in units of the release.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from edge_sdk.privacy.normal_distribution import cdf, log_cdf

_SAFE = 1e-12  # the relative step towards more noise, or a larger epsilon
_ROUNDING = 4.0 * 2.0**-53
_HALVINGS = 200


def sigma_for(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest noise that is (ε, δ)-private, rounded up.

    Args:
        epsilon: Above 0; any size.
        delta: Between 0 and 1.
        sensitivity: Largest Euclidean distance between two neighbouring inputs.

    Raises:
        ValueError: Numbers outside these ranges.

    Example:
        >>> f"{sigma_for(1.0, 1e-5):.6f}", f"{sigma_for(70.0, 1e-5):.6f}"
        ('3.730632', '0.119383')
    """
    _check(epsilon, delta)
    guess = 1.0 / math.sqrt(2.0 * epsilon)
    return sensitivity * _least(lambda sigma: sum(_delta(sigma, epsilon)) <= delta, guess)


def epsilon_of(sigma: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest ε for which noise of ``sigma`` is (ε, δ)-private, rounded up.

    Example:
        >>> f"{epsilon_of(0.1, 1e-5):.3f}", f"{epsilon_of(0.161494, 1e-5):.3f}"
        ('91.817', '44.822')
    """
    _check(1.0, delta)
    if not (sigma > 0.0 and sensitivity > 0.0):
        raise ValueError(f"sigma {sigma}, sensitivity {sensitivity}")
    unit = sigma / sensitivity
    if sum(_delta(unit, 0.0)) <= delta:
        return 0.0
    return _least(lambda epsilon: sum(_delta(unit, epsilon)) <= delta, 1.0)


def extra_sigma(wanted: float, least: float) -> float:
    """Return the independent noise that makes a version with ``least`` noise one with ``wanted``.

    An epsilon that moves up to a final one: draw the final, least noise first and keep it; every
    earlier version is that plus this. All versions together cost what the least noisy one does.

    Raises:
        ValueError: Less noise is wanted than is there.

    >>> extra_sigma(0.5, 0.3)
    0.4
    """
    if wanted < least:
        raise ValueError(f"noise {least} cannot become {wanted}")
    return math.sqrt((wanted - least) * (wanted + least))


def classical_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return √(2 ln(1.25/δ)) · Δ / ε, whatever ε is: a guarantee for ε ≤ 1 only.

    Dwork and Roth, "The algorithmic foundations of differential privacy" (2014), theorem A.1. The
    papers use it up to ε = 70, where the true ε is 165.

    Example:
        >>> f"{classical_sigma(1.0, 1e-5):.6f}"
        '4.844805'
        >>> f"{epsilon_of(classical_sigma(70.0, 1e-5), 1e-5):.2f}"
        '165.12'
    """
    _check(epsilon, delta)
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def _delta(sigma: float, epsilon: float) -> tuple[float, float]:
    """Return δ at sensitivity 1, and how far rounding may have taken it from the truth."""
    half, shift = 0.5 / sigma, epsilon * sigma
    far, near = log_cdf(-half - shift), log_cdf(half - shift)
    share = cdf(half - shift)
    return share * -math.expm1(min(epsilon + far - near, 0.0)), _ROUNDING * share * (1.0 - far)


def _check(epsilon: float, delta: float) -> None:
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be above 0, got {epsilon}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")


def _least(holds: Callable[[float], bool], guess: float) -> float:
    """Return the smallest positive number for which a monotone condition holds, from above."""
    low = high = guess
    while holds(low):
        low /= 2.0
    while not holds(high):
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high * (1.0 + _SAFE)
