"""Solve statistics: ridge regression, towards zero or towards a given model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.statistics import Statistic

Floats = NDArray[np.float64]

FLEET_PENALTY = 1e-3
"""κ of the fleet's solution, per window: (Σ A + κ n I) w = Σ b."""


def ridge(
    statistic: Statistic, penalty: float | Floats = 0.0, towards: Floats | None = None
) -> Floats:
    """Return argmin Σ w (y - vᵀφ)² + Σ penalty (v - towards)² for every output.

    Args:
        statistic: Of a device or of a fleet.
        penalty: At least 0, the same for all coordinates or of shape ``(P,)``. With a penalty
            of 0 the solution of least norm is returned.
        towards: Shape ``(outputs, P)``; zero if left out.

    Returns:
        Coefficients, shape ``(outputs, P)``.

    Example:
        >>> from edge_sdk.analytic.statistics import gather
        >>> data = gather(np.array([[1.0], [1.0]]), np.array([[2.0], [4.0]]))
        >>> ridge(data).round(9).tolist(), ridge(data, 2.0, np.array([[7.0]])).round(9).tolist()
        ([[3.0]], [[5.0]])
    """
    diagonal = np.broadcast_to(np.asarray(penalty, np.float64), (statistic.width,))
    goal = statistic.cross if towards is None else statistic.cross + diagonal * towards
    definite = bool((diagonal > 0.0).all())
    if len(statistic.gram) == 1:
        return _solved(statistic.matrix(0) + np.diag(diagonal), goal.T, definite=definite).T
    matrices = (statistic.matrix(o) + np.diag(diagonal) for o in range(len(goal)))
    return np.stack([_solved(m, b, definite=definite) for m, b in zip(matrices, goal, strict=True)])


def fleet_solution(statistic: Statistic, penalty: float = FLEET_PENALTY) -> Floats:
    """Return the fleet's model, shape ``(outputs, P)``: ridge with ``penalty`` per window."""
    return ridge(statistic, penalty * max(statistic.count, 1.0))


def predicted(design: Floats, coefficients: Floats) -> Floats:
    """Return the forecasts of design rows, shape ``(n, outputs)``."""
    return np.asarray(design @ coefficients.T)


def _solved(matrix: Floats, goal: Floats, *, definite: bool) -> Floats:
    if definite:
        return np.asarray(np.linalg.solve(matrix, goal))
    return np.asarray(np.linalg.lstsq(matrix, goal, rcond=None)[0])
