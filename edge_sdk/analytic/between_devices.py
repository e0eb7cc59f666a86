"""Estimate how much devices differ in each coefficient: an empirical Bayes prior of the personal model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.solve import ridge
from edge_sdk.analytic.statistics import Statistic

Floats = NDArray[np.float64]

RANGE = 100.0
"""Largest ratio of a relative penalty to the mean one, either way."""


def own_variance(statistic: Statistic, penalty: float) -> Floats:
    """Return the sampling variance of a device's own ridge coefficients, shape ``(outputs, P)``.

    s² (A + κI)⁻¹ A (A + κI)⁻¹ on its diagonal, with s² the weighted residual variance.

    Args:
        statistic: The device's own.
        penalty: κ of its solution, above 0, not per window.
    """
    found = ridge(statistic, penalty)
    variances = []
    for output, own in enumerate(found):
        gram = statistic.matrix(output)
        inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
        explained = 2.0 * own @ statistic.cross[output] - own @ gram @ own
        noise = max(float(statistic.squares[output] - explained), 0.0) / max(statistic.count, 1.0)
        variances.append(noise * np.einsum("ij,jk,ik->i", inverse, gram, inverse, optimize=True))
    return np.stack(variances)


def relative_penalty(models: Floats, sampling: Floats) -> Floats:
    """Return d, the relative penalty of each coordinate: large where devices agree.

    The variance between devices is estimated by moments (variance of the devices' own coefficients
    minus their mean sampling variance), and d is proportional to its inverse, bounded, with
    geometric mean 1.

    Args:
        models: Own coefficients of each device, shape ``(devices, outputs, P)``.
        sampling: Their sampling variances, same shape.

    Returns:
        Shape ``(P,)``, averaged over outputs.

    Example:
        >>> models = np.array([[[0.0, 1.0]], [[4.0, 1.1]]])
        >>> relative_penalty(models, np.zeros_like(models)).round(3).tolist()
        [0.025, 40.0]

    Reference:
        Efron and Morris, "Data analysis using Stein's estimator and its generalizations", 1975.
    """
    between = np.maximum(models.var(axis=0, ddof=1) - sampling.mean(axis=0), 0.0).mean(axis=0)
    typical = float(np.median(between[between > 0.0])) if (between > 0.0).any() else 1.0
    inverse = typical / np.maximum(between, typical / RANGE**2)
    inverse = inverse / np.exp(np.log(inverse).mean())
    return np.asarray(np.clip(inverse, 1.0 / RANGE, RANGE))
