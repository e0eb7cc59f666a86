"""Release a statistic with Gaussian noise, and the ridge penalty that the noise calls for (AdaSSP).

With rows ‖φ‖ ≤ C, targets |y| ≤ B and weights at most 1, replacing one window moves (A / C²,
b / (C B √outputs), λ_min / C²) by at most ``sensitivity``. The three are one Gaussian release, so one
sigma pays for all: ``edge_sdk.privacy.analytic_gaussian.sigma_for(ε, δ, sensitivity(groups))``.

The count n is not protected: neighbouring records have the same number of windows.

Reference:
    Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction &
    estimation in unbounded domain" (UAI 2018), algorithm 2; there three releases at ε / 3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.statistics import Statistic

Floats = NDArray[np.float64]

FAILURE = 0.05
"""Probability with which the penalty may be too small. Privacy does not depend on it."""


class PrivateStatistic(NamedTuple):
    """A statistic that may leave the device.

    Attributes:
        statistic: With noise; Σ w y² and Σ w |r| are 0, for they are not released.
        penalty: Ridge penalty under which its solution is stable, not per window.
    """

    statistic: Statistic
    penalty: float


def sensitivity(groups: int = 1) -> float:
    """Return the Euclidean sensitivity of the scaled release to replacing one window.

    With c the cosine between two rows, A moves by at most 2 - 2c² (squared, upper triangle), b by
    2 + 2|c|; together at most 4.5, at c = ½. The smallest eigenvalue adds 1. Every group adds the
    same again.

    >>> round(sensitivity(), 6)
    2.345208
    """
    return math.sqrt(groups * 5.5)


def released(
    statistic: Statistic,
    sigma: float,
    *,
    row: float,
    target: float,
    generator: np.random.Generator,
) -> PrivateStatistic:
    """Add noise to a statistic of clipped rows and targets with weights of at most 1.

    Args:
        statistic: From ``gather`` with rows of norm at most ``row``, targets of modulus at most
            ``target``, weights of at most 1.
        sigma: Noise in units of the scaled release.
        row: C.
        target: B.
        generator: Source of the noise; never a seeded one in production.
    """
    groups, outputs = len(statistic.gram), len(statistic.cross)
    size = row**2
    gram = statistic.gram + sigma * size * generator.standard_normal(statistic.gram.shape)
    spread = sigma * row * target * math.sqrt(outputs / groups)
    cross = statistic.cross + spread * generator.standard_normal(statistic.cross.shape)
    smallest = min(float(np.linalg.eigvalsh(statistic.matrix(g))[0]) for g in range(groups))
    seen = smallest + sigma * size * float(generator.standard_normal())
    least = max(seen - sigma * size * math.sqrt(2.0 * math.log(3.0 / FAILURE)), 0.0)
    width = statistic.width
    wanted = sigma * size * math.sqrt(width * math.log(2.0 * width**2 / FAILURE))
    nothing = np.zeros(outputs)
    noisy = Statistic(gram, cross, nothing, nothing, statistic.count)
    return PrivateStatistic(noisy, max(wanted - least, 0.0))
