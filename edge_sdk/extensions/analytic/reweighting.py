"""Absolute and pinball loss by iteratively re-weighted least squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.solve import predicted, ridge
from edge_sdk.extensions.analytic.statistics import DesignRows, gather

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QuantileLoss:
    """Pinball loss of each output; one half everywhere is the absolute error."""

    levels: Sequence[float] = (0.5,)  # quantile level of every output, or one for all of them
    # ε, in the unit of the scaled target: residuals below it count as it, so that no window's
    # weight is infinite
    floor: float = 0.02

    def weights(self, residuals: Floats, *, is_normalised: bool = True) -> Floats:
        """Return the weights under which least squares takes a step of this loss.

        1 / max(|r|, ε), times q where r > 0 and 1 - q elsewhere; then divided by the mean of each
        output, so that a device counts by its windows. Without that, times ε: every weight is at
        most 1 and depends on its own window alone, which a bounded sensitivity needs.

        Args:
            residuals: Target minus forecast, shape ``(n, outputs)``.
            is_normalised: Divide by the mean; else multiply by ε.

        >>> QuantileLoss((0.9,), 0.5).weights(np.array([[1.0], [-0.1]])).round(6).tolist()
        [[1.636364], [0.363636]]
        """
        levels = np.asarray(self.levels, np.float64)
        side = np.where(residuals > 0.0, levels, 1.0 - levels)
        weights = side / np.maximum(np.abs(residuals), self.floor)
        if not is_normalised:
            return np.asarray(self.floor * weights)
        return np.asarray(weights / np.maximum(weights.mean(axis=0), 1e-300))

    def pointwise(self, residuals: Floats) -> Floats:
        """Return the pinball loss of every window and output, shape ``(n, outputs)``."""
        levels = np.asarray(self.levels, np.float64)
        return np.asarray(np.maximum(levels * residuals, (levels - 1.0) * residuals))

    def objective(self, residuals: Floats) -> Floats:
        """Return the mean pinball loss of each output, shape ``(outputs,)``.

        >>> QuantileLoss((0.9,)).objective(np.array([[1.0], [-1.0]])).round(6).tolist()
        [0.5]
        """
        return np.asarray(self.pointwise(residuals).mean(axis=0))


def reweighted(
    design: DesignRows,
    targets: Floats,
    loss: QuantileLoss,
    start: Floats,
    *,
    penalty: float | Floats,
    towards: Floats | None = None,
    passes: int = 4,
    is_exact: bool = False,
) -> Floats:
    """Return one device's coefficients after ``passes`` steps of the loss.

    Args:
        design: Shape ``(n, P)``.
        targets: Shape ``(n, outputs)``.
        start: Coefficients whose residuals weigh the first pass, shape ``(outputs, P)``.
        penalty: As for ``solve.ridge``; not per window.
        towards: As for ``solve.ridge``.
        is_exact: As for ``statistics.gather``.
    """
    found = start
    for _ in range(passes):
        weights = loss.weights(targets - predicted(design, found))
        found = ridge(gather(design, targets, weights, is_exact=is_exact), penalty, towards)
    return found
