"""Standardise features with constants of the whole fleet, from two sums per feature."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass

Floats = NDArray[np.float64]

CLIP = 6.0
"""Bound of a standardised feature, in fleet deviations."""

CONSTANT = 1e-6
"""Deviation below which a feature counts as constant and becomes 0."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSums:
    """Sums of a device's features, which add up over devices."""

    count: float
    total: Floats  # Σ of each feature, shape ``(k,)``
    squares: Floats  # Σ of each feature's square, shape ``(k,)``

    @classmethod
    def of(cls, rows: Floats) -> FeatureSums:
        """Return the sums of feature rows, shape ``(n, k)``."""
        return cls(float(len(rows)), rows.sum(0), np.einsum("nk,nk->k", rows, rows))


@dataclass(frozen=True, slots=True, eq=False)
class Standardiser:
    """Mean and deviation of every feature over the fleet."""

    mean: Floats  # shape ``(k,)``
    deviation: Floats  # shape ``(k,)``; 0 for a feature that is constant in the fleet

    @classmethod
    def of_fleet(cls, sums: Mapping[str, FeatureSums]) -> Standardiser:
        """Return the constants of the fleet; devices are added in order of name.

        >>> rows = {"b": np.array([[1.0, 5.0]]), "a": np.array([[3.0, 5.0]])}
        >>> made = Standardiser.of_fleet({k: FeatureSums.of(v) for k, v in rows.items()})
        >>> made.mean.tolist(), made.deviation.tolist()
        ([2.0, 5.0], [1.0, 0.0])
        """
        ordered = [sums[name] for name in sorted(sums)]
        count = sum(one.count for one in ordered)
        if not count > 0.0:
            raise ValueError(f"{len(ordered)} devices with {count} rows; at least 1 is needed")
        mean = np.sum([one.total for one in ordered], axis=0) / count
        square = np.sum([one.squares for one in ordered], axis=0) / count
        deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
        return cls(mean, np.where(deviation > CONSTANT, deviation, 0.0))

    def apply(self, rows: Floats | NDArray[np.float32]) -> Floats:
        """Return rows in fleet deviations, between -6 and 6; a constant feature becomes 0.

        >>> made = Standardiser(np.array([2.0, 5.0]), np.array([0.1, 0.0]))
        >>> made.apply(np.array([[2.05, 7.0], [99.0, 5.0]])).round(6).tolist()
        [[0.5, 0.0], [6.0, 0.0]]
        """
        scale = np.where(self.deviation > 0.0, self.deviation, np.inf)
        return np.clip((rows - self.mean) / scale, -CLIP, CLIP)
