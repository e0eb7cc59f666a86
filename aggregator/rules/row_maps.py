"""Linear maps of rows, as pre-aggregations use them: a small matrix and its fast application."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Values = NDArray[Any]


class Mix(Protocol):
    """A linear map of rows."""

    @property
    def matrix(self) -> Matrix:
        """Return the map itself, shape ``(rows after, rows before)``."""

    def applied(self, block: Values) -> Values:
        """Return the mixed rows of some columns, in their precision."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Map every row to any linear combination of rows.

    >>> Dense(np.array([[0.5, 0.5]])).applied(np.array([[1.0], [3.0]])).tolist()
    [[2.0]]
    """

    matrix: Matrix

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        return self.matrix.astype(np.float32)

    def applied(self, block: Values) -> Values:
        """Return the mixed rows of some columns."""
        matrix = self._single if block.dtype == np.float32 else self.matrix
        out: Values = matrix @ np.ascontiguousarray(block)
        return out


@dataclass(frozen=True, eq=False)
class Scaled:
    """Scale every row; its direction stays.

    >>> Scaled(np.array([1.0, 0.5])).applied(np.array([[1.0], [3.0]])).tolist()
    [[1.0], [1.5]]
    """

    factors: Matrix

    @cached_property
    def matrix(self) -> Matrix:
        """Return the map as a diagonal."""
        return np.diag(self.factors)

    def applied(self, block: Values) -> Values:
        """Return the scaled rows of some columns."""
        out: Values = block * self.factors[:, None].astype(block.dtype)
        return out


@dataclass(frozen=True, eq=False)
class Picked:
    """Keep some rows and remove the others.

    >>> Picked(np.array([2, 0]), 3).applied(np.array([[1.0], [5.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """

    rows: NDArray[np.intp]
    before: int

    @cached_property
    def matrix(self) -> Matrix:
        """Return the map as rows of the identity."""
        return np.eye(self.before)[self.rows]

    def applied(self, block: Values) -> Values:
        """Return the rows that stay."""
        out: Values = block[self.rows]
        return out


@dataclass(frozen=True, eq=False)
class Grouped:
    """Average groups of consecutive rows of an order; the last group may be smaller.

    >>> Grouped(np.array([0, 2, 1]), 2).applied(np.array([[1.0], [5.0], [3.0]])).tolist()
    [[2.0], [5.0]]
    """

    order: NDArray[np.intp]
    size: int

    @cached_property
    def _sizes(self) -> Matrix:
        starts = range(0, len(self.order), self.size)
        return np.array([len(self.order[start : start + self.size]) for start in starts], float)

    @cached_property
    def matrix(self) -> Matrix:
        """Return the map as ones over group sizes."""
        out = np.zeros((len(self._sizes), len(self.order)))
        out[np.arange(len(self.order)) // self.size, self.order] = 1.0
        scaled: Matrix = out / self._sizes[:, None]
        return scaled

    def applied(self, block: Values) -> Values:
        """Return the means of some columns."""
        out: Values = block[self.order[:: self.size]]
        for place in range(1, self.size):
            more = block[self.order[place :: self.size]]
            out[: len(more)] += more
        out /= self._sizes[:, None].astype(block.dtype)
        return out
