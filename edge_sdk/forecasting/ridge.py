"""Solve ridge regressions, and compute their products, by numpy's own loops, without a BLAS.

A BLAS takes tens of megabytes at its first product, and ends the process where a limit of memory
forbids that.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.calendar_features import Floats

Precision = TypeVar("Precision", np.float32, np.float64)


def product(left: NDArray[Precision], right: NDArray[Precision]) -> NDArray[Precision]:
    """Return leftᵀ right, ``(i, j)``, of ``(n, i)`` and ``(n, j)``."""
    return np.asarray(np.einsum("ni,nj->ij", left, right, optimize=False))


def outputs_of(design: NDArray[Precision], coefficients: NDArray[Precision]) -> NDArray[Precision]:
    """Return design coefficientsᵀ, ``(n, outputs)``, of ``(n, P)`` and ``(outputs, P)``."""
    return np.asarray(np.einsum("np,hp->nh", design, coefficients, optimize=False))


def ridge_solution(gram: Floats, cross: Floats, penalty: float) -> Floats:
    """Return the solutions of (gram + penalty I) w = cross, ``(outputs, P)``, by Gauss-Jordan steps.

    Args:
        gram: Symmetric and positive semidefinite, ``(P, P)``.
        cross: Right-hand sides, ``(outputs, P)``.
        penalty: Above 0, so that every pivot is.

    >>> ridge_solution(np.array([[2.0]]), np.array([[6.0]]), 1.0).tolist()
    [[2.0]]
    """
    width = len(gram)
    rows = np.concatenate([gram + penalty * np.eye(width), cross.T], axis=1)
    for at in range(width):
        rows[at] /= rows[at, at]
        factors = rows[:, at].copy()
        factors[at] = 0.0
        rows -= factors[:, None] * rows[at]
    return np.ascontiguousarray(rows[:, width:].T)
