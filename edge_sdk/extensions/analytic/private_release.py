"""Release a statistic with Gaussian noise, and the ridge penalty that the noise calls for (AdaSSP).

With rows ‖φ‖ ≤ C, targets |y| ≤ B and weights at most 1, replacing one window moves (A / C², b / (C B))
by at most ``sensitivity``. Both are one Gaussian release, so one sigma pays for them. The penalty
comes from the smallest eigenvalue of what was released, of one device or of a sum of many, and costs
nothing; in the paper that eigenvalue is a release of its own.

The count n is not protected: neighbouring records have the same number of windows.

Reference:
    Wang, "Revisiting differentially private linear regression: optimal and adaptive prediction &
    estimation in unbounded domain" (UAI 2018), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.statistics import Statistic

Floats = NDArray[np.float64]

FAILURE = 0.05
"""Probability with which the penalty may be too small. Privacy does not depend on it."""


def sensitivity(groups: int = 1) -> float:
    """Return the Euclidean sensitivity of the scaled release to replacing one window.

    With c the cosine between two rows, A moves by at most 2 - 2c² (squared, upper triangle), b by
    2 + 2|c|; together at most 4.5, at c = ½. Every group adds the same again.

    >>> round(sensitivity(), 6), round(sensitivity(2), 6)
    (2.12132, 3.0)
    """
    return math.sqrt(groups * 4.5)


def released(
    statistic: Statistic,
    sigma: float,
    *,
    row: float,
    target: float,
    normal: Callable[[int], Floats],
) -> Statistic:
    """Return a statistic with noise; Σ w y² and Σ w |r| are 0, for they are not released.

    Args:
        statistic: From ``gather`` with rows of norm at most ``row``, targets of modulus at most
            ``target``, weights of at most 1, and one group per output.
        sigma: Noise in units of the scaled release.
        normal: Returns so many standard normal numbers; never seeded ones in production.
    """
    gram, cross = statistic.gram, statistic.cross
    drawn = sigma * row * normal(gram.size + cross.size)
    nothing = np.zeros(len(cross))
    return Statistic(
        gram + row * drawn[: gram.size].reshape(gram.shape),
        cross + target * drawn[gram.size :].reshape(cross.shape),
        nothing,
        nothing,
        statistic.count,
    )


def stable_penalty(statistic: Statistic, deviation: float) -> float:
    """Return the ridge penalty under which the solution of a noisy statistic is stable.

    It lifts the smallest eigenvalue above the norm that the noise in A has with probability
    1 - ``FAILURE``; a statistic of much data needs none.

    Args:
        statistic: As released, or a sum of released ones.
        deviation: Standard deviation of the noise of every entry of A; 0 without noise.

    >>> from edge_sdk.extensions.analytic.statistics import gather
    >>> much, little = (gather(np.full((n, 1), 1.0), np.zeros((n, 1))) for n in (900, 2))
    >>> stable_penalty(much, 5.0), round(stable_penalty(little, 5.0), 3)
    (0.0, 7.603)
    """
    if not deviation:
        return 0.0
    width = statistic.width
    wanted = deviation * math.sqrt(width * math.log(2.0 * width**2 / FAILURE))
    groups = range(len(statistic.gram))
    least = min(float(np.linalg.eigvalsh(statistic.matrix(group))[0]) for group in groups)
    return max(wanted - least, 0.0)
