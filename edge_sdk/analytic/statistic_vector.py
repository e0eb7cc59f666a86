"""Convert a statistic to the vector of its layout, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.statistics import Statistic
from edge_sdk.wire.contract.analytic import statistic_layout
from edge_sdk.wire.contract.parameter_layout import Vector

Floats = NDArray[np.float64]


def to_vector(statistic: Statistic) -> Vector:
    """Return a statistic with one group per output as float32, in order of its layout."""
    parts = (statistic.gram, statistic.cross, statistic.squares, statistic.residuals)
    joined = np.concatenate([*(np.ravel(part) for part in parts), [statistic.count]])
    return joined.astype(np.float32)


def from_vector(vector: NDArray[np.floating], outputs: int, width: int) -> Statistic:
    """Return the statistic of a vector, in float64.

    Args:
        vector: As ``to_vector`` returns it; float64 is kept as it is.
        outputs: Number of outputs.
        width: Length P of a design row.

    Example:
        >>> found = from_vector(np.arange(8.0), 1, 2)
        >>> found.gram.tolist(), found.cross.tolist(), found.squares.tolist(), found.count
        ([[0.0, 1.0, 2.0]], [[3.0, 4.0]], [5.0], 7.0)
    """
    wide = np.asarray(vector, np.float64)
    gram, cross, squares, residuals, count = (
        wide[layer.offset : layer.offset + layer.size].reshape(layer.shape)
        for layer in statistic_layout(outputs, width).layers
    )
    return Statistic(gram, cross, squares, residuals, float(count[0]))
