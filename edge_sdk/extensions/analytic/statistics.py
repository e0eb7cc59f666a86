"""Sufficient statistics of weighted least squares: gather, add, subtract, sum over a fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.bundle_section import statistic_layout
from edge_sdk.protocol.contract.parameter_layout import Vector

Floats = NDArray[np.float64]
DesignRows = NDArray[np.float64] | NDArray[np.float32]
"""Design rows: float64, or float32 for half the memory."""

_SMALL = 256  # the same for a device, whose memory is scarce
_BLOCK = 2048  # rows whose products are taken at once: bounds memory, and the rounding of float32


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """Sufficient statistics of a device's least squares: sums over its windows."""

    # upper triangles of Σ w φφᵀ, row by row, shape ``(groups, P(P+1)/2)``, float64. One group for
    # all outputs, or one per output if the weights differ.
    gram: Floats
    cross: Floats  # Σ w φ y, shape ``(outputs, P)``
    squares: Floats  # Σ w y², shape ``(outputs,)``
    # Σ w |r| under the weights' own model, shape ``(outputs,)``; 0 in a first pass
    residuals: Floats
    count: float  # number of windows n

    @property
    def width(self) -> int:
        return int(self.cross.shape[1])

    def matrix(self, output: int) -> Floats:
        """Return Σ w φφᵀ of an output as a symmetric matrix, shape ``(P, P)``."""
        return unpacked(self.gram[output if len(self.gram) > 1 else 0])

    def __add__(self, other: Statistic) -> Statistic:
        """Return the statistic of both sets of windows."""
        return self._with(other, 1.0)

    def __sub__(self, other: Statistic) -> Statistic:
        """Return the statistic without the windows of ``other``, to rounding."""
        return self._with(other, -1.0)

    def scaled(self, factor: float) -> Statistic:
        """Return every sum times ``factor``: forgetting, or a cap of the count."""
        return Statistic(
            self.gram * factor,
            self.cross * factor,
            self.squares * factor,
            self.residuals * factor,
            self.count * factor,
        )

    def _with(self, other: Statistic, sign: float) -> Statistic:
        if self.gram.shape != other.gram.shape or self.cross.shape != other.cross.shape:
            raise ValueError(
                f"statistics of shapes {self.gram.shape}, {self.cross.shape} and "
                f"{other.gram.shape}, {other.cross.shape} do not add up"
            )
        return Statistic(
            self.gram + sign * other.gram,
            self.cross + sign * other.cross,
            self.squares + sign * other.squares,
            self.residuals + sign * other.residuals,
            self.count + sign * other.count,
        )


def gather(
    design: DesignRows,
    targets: Floats,
    weights: Floats | None = None,
    residuals: Floats | None = None,
    *,
    is_exact: bool = False,
) -> Statistic:
    """Return the statistic of a device's windows.

    Args:
        design: Rows φ, shape ``(n, P)``, float64 or, for half the memory, float32. Products are
            taken in that precision, block by block, and their sums in float64.
        targets: Shape ``(n, outputs)``, float64.
        weights: Weight of every window, shape ``(n, 1)`` (all outputs alike) or ``(n, outputs)``;
            1 if left out.
        residuals: Residuals under the current model, shape ``(n, outputs)``, for Σ w |r|.
        is_exact: Whether to take the products of float32 rows in float64 too, at half the speed.

    >>> made = gather(np.array([[1.0, 2.0], [1.0, 0.0]]), np.array([[3.0], [1.0]]))
    >>> made.gram.tolist(), made.cross.tolist(), made.squares.tolist(), made.count
    ([[2.0, 2.0, 4.0]], [[4.0, 6.0]], [10.0], 2.0)
    """
    weights = np.ones((len(design), 1)) if weights is None else weights
    width, weighted = design.shape[1], weights * targets
    gram, cross = np.zeros((weights.shape[1], width, width)), np.zeros((targets.shape[1], width))
    size, kind = (_SMALL, np.float64) if is_exact else (_BLOCK, design.dtype)
    for start in range(0, len(design), size):
        block = slice(start, start + size)
        rows = design[block].astype(kind, copy=False)
        for group, root in enumerate(np.sqrt(weights[block]).astype(kind).T):
            scaled = rows * root[:, None]
            gram[group] += np.asarray(scaled.T @ scaled, np.float64)
        narrow = np.asarray(weighted[block], kind)
        cross += np.asarray(np.matmul(narrow.T, rows), np.float64)
    missed = np.zeros_like(targets) if residuals is None else np.abs(residuals)
    return Statistic(
        np.stack([packed(one) for one in gram]),
        cross,
        np.einsum("no,no->o", weighted, targets),
        (weights * missed).sum(axis=0),
        float(len(design)),
    )


def total(statistics: Mapping[str, Statistic]) -> Statistic:
    """Return the fleet's statistic: the sum over devices, in order of name.

    The order is that of the names, so the result has the same bits whatever the order of arrival
    was, and a fleet without a device has the same bits as one that never knew it.

    Raises:
        ValueError: No device, or statistics of different shapes.
    """
    if not statistics:
        raise ValueError("a fleet of 0 devices has no statistic; at least 1 is needed")
    first, *rest = sorted(statistics)
    result = statistics[first]
    for name in rest:
        result = result + statistics[name]
    return result


def packed(matrix: Floats) -> Floats:
    """Return the upper triangle of a matrix, row by row.

    >>> packed(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    return matrix[np.triu_indices(len(matrix))]


def unpacked(triangle: Floats) -> Floats:
    """Return the symmetric matrix of an upper triangle.

    >>> unpacked(np.array([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    width = triangle_width(len(triangle))
    matrix = np.empty((width, width))
    rows, places = np.triu_indices(width)
    matrix[rows, places] = matrix[places, rows] = triangle
    return matrix


def triangle_width(length: int) -> int:
    """Return P for a triangle of P(P + 1) / 2 numbers.

    >>> triangle_width(6)
    3
    >>> triangle_width(5)
    Traceback (most recent call last):
    ValueError: 5 numbers are not a triangular matrix; 3 or 6 are
    """
    width = (math.isqrt(8 * length + 1) - 1) // 2
    if width * (width + 1) // 2 != length:
        fewer, more = width * (width + 1) // 2, (width + 1) * (width + 2) // 2
        raise ValueError(f"{length} numbers are not a triangular matrix; {fewer} or {more} are")
    return width


def payload_bytes(width: int, outputs: int, groups: int = 1, *, item: int = 4) -> int:
    """Return the size of a statistic as numbers of ``item`` bytes.

    >>> payload_bytes(58, 1), payload_bytes(258, 1)
    (7088, 134688)
    """
    return item * (groups * width * (width + 1) // 2 + outputs * (width + 2) + 1)


def to_vector(statistic: Statistic) -> Vector:
    """Return a statistic with one group per output as float32, in order of its layout."""
    parts = (statistic.gram, statistic.cross, statistic.squares, statistic.residuals)
    joined = np.concatenate([*(np.ravel(part) for part in parts), [statistic.count]])
    return joined.astype(np.float32)


def from_vector(vector: NDArray[np.floating], outputs: int, width: int) -> Statistic:
    """Return the statistic of a vector, in float64.

    Args:
        vector: As ``to_vector`` returns it; float64 is kept as it is.
        width: Length P of a design row.

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
