"""Compute the normal distribution's tail without scipy: log-CDF to relative precision."""

from __future__ import annotations

import math

_FAR = -35.0  # below it erfc is close to underflow, and seven terms of the series are exact
_ROOT2 = math.sqrt(2.0)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


def cdf(x: float) -> float:
    """Return Φ(x).

    >>> round(cdf(1.0), 12), cdf(-40.0)
    (0.841344746069, 0.0)
    """
    return 0.5 * math.erfc(-x / _ROOT2)


def log_cdf(x: float) -> float:
    """Return log Φ(x), where Φ(x) itself would be 0.

    Far in the tail it is the asymptotic series of the Mills ratio (Abramowitz and Stegun 26.2.12).

    >>> round(log_cdf(-40.0), 9), round(log_cdf(-1e4), 4), log_cdf(9.0) < 0.0
    (-804.608442014, -50000010.1293, True)
    """
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x / _ROOT2))
    if x > _FAR:
        return math.log(cdf(x))
    inverse = 1.0 / (x * x)
    series, term = 0.0, 1.0
    for k in range(1, 8):
        term *= -(2 * k - 1) * inverse
        series += term
    return -0.5 * x * x - math.log(-x) - _LOG_ROOT_2PI + math.log1p(series)
