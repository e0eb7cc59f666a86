"""Solve statistics: ridge regression, towards zero or towards a given model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.statistics import DesignRows, Statistic, total

Floats = NDArray[np.float64]

FLEET_PENALTY = 1e-3
"""κ of the fleet's solution, per window: (Σ A + κ n I) w = Σ b."""

_RANK = 1e-12  # an eigenvalue below this share of the largest is a direction without data


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

    >>> from edge_sdk.extensions.analytic.statistics import gather
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


@dataclass(frozen=True, slots=True, eq=False)
class RidgePath:
    """Eigendecompositions of a statistic: every further penalty costs O(P²) instead of O(P³)."""

    values: Floats  # Eigenvalues of each group, shape ``(groups, P)``
    vectors: Floats  # Eigenvectors in columns, shape ``(groups, P, P)``
    scale: Floats  # √d of every coordinate, shape ``(P,)``
    cross: Floats  # Σ w φ y, shape ``(outputs, P)``

    @classmethod
    def of(cls, statistic: Statistic, shape: Floats | None = None) -> RidgePath:
        """Decompose a statistic for penalties of the form ``penalty · shape``.

        Args:
            statistic: Of a device or a fleet.
            shape: d, the relative penalty of each coordinate, above 0, shape ``(P,)``; 1 if left
                out.
        """
        scale = np.ones(statistic.width) if shape is None else np.sqrt(shape)
        groups = (statistic.matrix(g) / scale / scale[:, None] for g in range(len(statistic.gram)))
        pairs = [np.linalg.eigh(group) for group in groups]
        return cls(
            np.stack([pair[0] for pair in pairs]),
            np.stack([pair[1] for pair in pairs]),
            scale,
            statistic.cross,
        )

    def solution(self, penalty: float, towards: Floats) -> Floats:
        """Return the result of ``ridge`` for ``penalty · shape``, shape ``(outputs, P)``.

        With a penalty of 0, directions without data keep the value of ``towards``.

        >>> from edge_sdk.extensions.analytic.statistics import gather
        >>> path = RidgePath.of(gather(np.array([[1.0], [1.0]]), np.array([[2.0], [4.0]])))
        >>> [path.solution(p, np.array([[7.0]])).round(9).item() for p in (0.0, 2.0)]
        [3.0, 5.0]
        """
        found = []
        for output, (cross, centre) in enumerate(zip(self.cross, towards, strict=True)):
            group = output if len(self.values) > 1 else 0
            values, vectors = np.maximum(self.values[group], 0.0), self.vectors[group]
            seen = values > _RANK * values[-1]
            inverse = np.where(seen | (penalty > 0.0), 1.0, 0.0)
            inverse = inverse / np.where(inverse > 0.0, np.maximum(values + penalty, 1e-300), 1.0)
            own = vectors.T @ (centre * self.scale)
            rest = vectors.T @ (cross / self.scale) - values * own
            found.append(vectors @ (own + inverse * rest) / self.scale)
        return np.stack(found)


def fleet_solution(statistic: Statistic, penalty: float = FLEET_PENALTY) -> Floats:
    """Return the fleet's model, shape ``(outputs, P)``: ridge with ``penalty`` per window."""
    return ridge(statistic, penalty * max(statistic.count, 1.0))


def leave_one_out(
    statistics: Mapping[str, Statistic], penalty: float = FLEET_PENALTY
) -> dict[str, Floats]:
    """Return for every device the model of all others, by one subtraction each.

    A device that draws its own model towards a fleet which it is part of counts its windows twice,
    and finds the fleet's model too good on windows that it held back. With few devices that spoils
    the choice of λ. A device alone in its fleet gets zeros.

    >>> from edge_sdk.extensions.analytic.statistics import gather
    >>> one = np.array([[1.0]])
    >>> found = leave_one_out({x: gather(one, float(x) * one) for x in "26"}, 1e-12)
    >>> {x: model.round(6).item() for x, model in found.items()}
    {'2': 6.0, '6': 2.0}
    """
    whole = total(statistics)
    if len(statistics) == 1:
        return {name: np.zeros_like(own.cross) for name, own in statistics.items()}
    return {name: fleet_solution(whole - own, penalty) for name, own in statistics.items()}


def predicted(design: DesignRows, coefficients: Floats) -> Floats:
    """Return the forecasts of design rows, shape ``(n, outputs)``, in the rows' precision."""
    return np.asarray(design @ coefficients.T.astype(design.dtype), np.float64)


def _solved(matrix: Floats, goal: Floats, *, definite: bool) -> Floats:
    if definite:
        return np.asarray(np.linalg.solve(matrix, goal))
    return np.asarray(np.linalg.lstsq(matrix, goal, rcond=None)[0])


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
