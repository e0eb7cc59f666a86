"""Mechanisms of pure differential privacy: Laplace noise, and randomised signs."""

from __future__ import annotations

import math

from edge_sdk.privacy.normal_distribution import log_cdf


def keep_probability(epsilon: float) -> float:
    """Return the probability that ``sign_flip`` keeps a sign: e^ε / (1 + e^ε).

    >>> round(keep_probability(1.0), 8)
    0.73105858
    """
    return 1.0 / (1.0 + math.exp(-epsilon))


def debias(epsilon: float) -> float:
    """Return the factor for a flipped sign that makes its mean the true sign.

    >>> round(debias(1.0), 8)
    2.16395341
    """
    return 1.0 / math.tanh(0.5 * epsilon)


def epsilon_of_sign(bound: float, sigma: float) -> float:
    """Return the ε of one coordinate's sign after clipping to ±bound and adding N(0, σ²).

    DP-RSA, *this project's* accounting: the publication's calibration is unknown. A message of P
    coordinates costs P times as much.

    >>> [round(epsilon_of_sign(ratio, 1.0), 5) for ratio in (0.1, 0.5, 1.0)]
    [0.15965, 0.80697, 1.66827]
    """
    return log_cdf(bound / sigma) - log_cdf(-bound / sigma)


def advanced_composition(epsilon: float, times: int, delta: float) -> float:
    """Return the ε of so many ε-private releases together, except with probability δ.

    Dwork and Roth (2014), theorem 3.20. For few releases plain addition is less.

    >>> round(advanced_composition(0.1, 100, 1e-5), 5)
    5.85024
    """
    spread = math.sqrt(2.0 * times * math.log(1.0 / delta)) * epsilon
    return spread + times * epsilon * math.expm1(epsilon)
