"""Turn statistics into rows for a robust rule: each device's own solution is one vote."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.solve import fleet_solution
from edge_sdk.analytic.statistics import Statistic, unpacked

Floats = NDArray[np.float64]


def votes(statistics: Mapping[str, Statistic], penalty: float) -> tuple[list[str], Floats]:
    """Return the devices in order of name and their own solutions as rows.

    Args:
        statistics: Of every device; only those that passed validation.
        penalty: λ per window of a device's own ridge regression, above 0.

    Returns:
        Names, and rows of shape ``(devices, outputs · P)`` for any rule of the catalogue.
    """
    names = sorted(statistics)
    return names, np.stack([fleet_solution(statistics[n], penalty).ravel() for n in names])


def prediction_root(statistics: Mapping[str, Statistic], jitter: float = 1e-6) -> Floats:
    """Return L with L Lᵀ = the median of the devices' Σ w φφᵀ / n, shape ``(P, P)``.

    Rows times L have Euclidean distances that are differences of forecasts. The median of every
    entry is what a minority cannot move at will; it is made definite by its own smallest
    eigenvalue.

    Args:
        statistics: With one group each.
        jitter: Least eigenvalue, relative to the mean one.

    Example:
        >>> from edge_sdk.analytic.statistics import gather
        >>> one = gather(np.array([[3.0, 0.0], [0.0, 1.0]]), np.zeros((2, 1)))
        >>> prediction_root({"a": one, "b": one, "c": one.scaled(50.0)}).round(4).tolist()
        [[2.1213, 0.0], [0.0, 0.7071]]
    """
    grams = np.stack([one.gram[0] / max(one.count, 1e-300) for one in statistics.values()])
    middle = unpacked(np.median(grams, axis=0))
    values, vectors = np.linalg.eigh(middle)
    floor = jitter * max(float(values.mean()), 1e-300)
    definite = (vectors * np.maximum(values, floor)) @ vectors.T
    return np.asarray(np.linalg.cholesky(0.5 * (definite + definite.T)))
