"""Update a device's model with each new window: recursive least squares with forgetting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.solve import ridge
from edge_sdk.analytic.statistics import Statistic

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OnlineModel:
    """A model that takes one window at a time; O(P²) numbers, O(P²) work a window.

    Attributes:
        inverse: (Σ w φφᵀ + penalty)⁻¹, shape ``(P, P)``; shared by all outputs.
        coefficients: Shape ``(outputs, P)``.
        bound: Trace of ``inverse`` above which nothing is forgotten: directions that no window
            excites would else lose all memory (wind-up).
    """

    inverse: Floats
    coefficients: Floats
    bound: float

    @classmethod
    def of(
        cls, statistic: Statistic, penalty: float | Floats, towards: Floats | None = None
    ) -> OnlineModel:
        """Return the state from which single windows go on.

        Args:
            statistic: The device's own, with one group.
            penalty: As for ``solve.ridge``, above 0.
            towards: As for ``solve.ridge``.

        Raises:
            ValueError: Outputs with weights of their own, or a penalty that is not above 0.
        """
        diagonal = np.broadcast_to(np.asarray(penalty, np.float64), (statistic.width,))
        if len(statistic.gram) != 1 or not (diagonal > 0.0).all():
            raise ValueError(
                f"online updates need 1 group and a penalty above 0, got {len(statistic.gram)} "
                f"groups and {diagonal.min()}"
            )
        inverse = np.asarray(np.linalg.inv(statistic.matrix(0) + np.diag(diagonal)), np.float64)
        bound = float((1.0 / diagonal).sum())
        return cls(inverse, ridge(statistic, diagonal, towards), bound)

    def updated(
        self, row: Floats, target: Floats, *, weight: float = 1.0, forgetting: float = 1.0
    ) -> OnlineModel:
        """Return the state after one more window (Plackett 1950; Haykin, "Adaptive filter theory").

        Args:
            row: φ, shape ``(P,)``.
            target: Shape ``(outputs,)``.
            weight: Weight of the window, above 0.
            forgetting: Factor on everything before, above 0 and at most 1.

        Example:
            >>> from edge_sdk.analytic.statistics import gather
            >>> empty = gather(np.zeros((0, 1)), np.zeros((0, 1)))
            >>> state = OnlineModel.of(empty, 1.0)
            >>> state = state.updated(np.array([1.0]), np.array([4.0]))
            >>> state.coefficients.tolist(), state.inverse.tolist()
            ([[2.0]], [[0.5]])
        """
        keep = forgetting if np.trace(self.inverse) <= self.bound * forgetting else 1.0
        image = self.inverse @ row
        gain = image / (keep / weight + row @ image)
        error = target - self.coefficients @ row
        inverse = (self.inverse - np.outer(gain, image)) / keep
        inverse = 0.5 * (inverse + inverse.T)
        return OnlineModel(inverse, self.coefficients + np.outer(error, gain), self.bound)
