"""Linear maps of rows, as pre-aggregations use them: a small matrix and its fast application."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Values = NDArray[Any]


class Mix(Protocol):
    """A linear map of rows."""

    @property
    def matrix(self) -> Matrix:
        """Return the map itself, shape ``(rows after, rows before)``."""

    @property
    def is_rowwise(self) -> bool:
        """Return True if every row after depends on one row before."""

    def before(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the row before that each of some rows depends on, of a rowwise map."""

    def applied(self, block: Values, rows: NDArray[np.intp] | None = None) -> Values:
        """Return the mixed rows of some columns, in their precision.

        Args:
            block: The columns of all rows before; of a rowwise map and with ``rows``, of ``before(rows)``.
            rows: Rows to return; None is all of them.
        """

    def back(self, weights: Matrix) -> Matrix:
        """Return the weights of the rows before from weights of the rows, along the last axis."""


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

    is_rowwise: ClassVar[bool] = False

    def before(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Refuse: a row depends on many."""
        raise NotImplementedError

    def back(self, weights: Matrix) -> Matrix:
        """Return the weights of the rows before."""
        return weights @ self.matrix

    def applied(self, block: Values, rows: NDArray[np.intp] | None = None) -> Values:
        """Return the mixed rows of some columns."""
        del rows
        matrix = self._single if block.dtype == np.float32 else self.matrix
        out: Values = matrix @ np.ascontiguousarray(block)
        return out


@dataclass(frozen=True, eq=False)
class Scaled:
    """Map that scales every row; its direction stays.

    >>> Scaled(np.array([1.0, 0.5])).applied(np.array([[1.0], [3.0]])).tolist()
    [[1.0], [1.5]]
    """

    factors: Matrix

    @cached_property
    def matrix(self) -> Matrix:
        return np.diag(self.factors)

    is_rowwise: ClassVar[bool] = True

    def before(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return rows

    def back(self, weights: Matrix) -> Matrix:
        """Return the weights of the rows before."""
        scaled: Matrix = weights * self.factors
        return scaled

    def applied(self, block: Values, rows: NDArray[np.intp] | None = None) -> Values:
        """Return the scaled rows of some columns."""
        factors = self.factors if rows is None else self.factors[rows]
        out: Values = block * factors[:, None].astype(block.dtype)
        return out


@dataclass(frozen=True, eq=False)
class Picked:
    """Map that keeps some rows.

    >>> Picked(np.array([2, 0]), 3).applied(np.array([[1.0], [5.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """

    rows: NDArray[np.intp]
    before_count: int

    @cached_property
    def matrix(self) -> Matrix:
        return np.eye(self.before_count)[self.rows]

    is_rowwise: ClassVar[bool] = True

    def back(self, weights: Matrix) -> Matrix:
        """Return the weights of the rows before; those removed have none."""
        out = np.zeros((*weights.shape[:-1], self.before_count))
        out[..., self.rows] = weights
        return out

    def before(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of some rows among the rows before."""
        return self.rows[rows]

    def applied(self, block: Values, rows: NDArray[np.intp] | None = None) -> Values:
        out: Values = block[self.rows] if rows is None else block
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
        out = np.zeros((len(self._sizes), len(self.order)))
        out[np.arange(len(self.order)) // self.size, self.order] = 1.0
        scaled: Matrix = out / self._sizes[:, None]
        return scaled

    is_rowwise: ClassVar[bool] = False

    def before(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Refuse: a row depends on a group."""
        raise NotImplementedError

    def back(self, weights: Matrix) -> Matrix:
        """Return the weights of the rows before: each group's, divided by its size."""
        out = np.zeros((*weights.shape[:-1], len(self.order)))
        sizes = self._sizes.astype(np.intp)
        out[..., self.order] = np.repeat(weights * (1.0 / self._sizes), sizes, axis=-1)
        return out

    def applied(self, block: Values, rows: NDArray[np.intp] | None = None) -> Values:
        """Return the means of some columns."""
        del rows
        out: Values = block[self.order[:: self.size]]
        for place in range(1, self.size):
            more = block[self.order[place :: self.size]]
            out[: len(more)] += more
        out /= self._sizes[:, None].astype(block.dtype)
        return out
