"""How a pre-aggregation makes rows of rows: a small matrix, and the quick way to apply it."""

from __future__ import annotations

from collections.abc import Sequence
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
        """The map itself, shape ``(rows after, rows before)``."""

    def applied(self, block: Values) -> Values:
        """Return the mixed rows of some columns, in the precision they came in."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Every row may become any combination of rows.

    >>> Dense(np.array([[0.5, 0.5]])).applied(np.array([[1.0], [3.0]])).tolist()
    [[2.0]]
    """

    matrix: Matrix

    def applied(self, block: Values) -> Values:
        """Return the mixed rows of some columns."""
        out: Values = self.matrix.astype(block.dtype, copy=False) @ np.ascontiguousarray(block)
        return out


@dataclass(frozen=True, eq=False)
class Scaled:
    """Every row keeps its direction.

    >>> Scaled(np.array([1.0, 0.5])).applied(np.array([[1.0], [3.0]])).tolist()
    [[1.0], [1.5]]
    """

    factors: Matrix

    @cached_property
    def matrix(self) -> Matrix:
        """The map as a diagonal."""
        return np.diag(self.factors)

    def applied(self, block: Values) -> Values:
        """Return the scaled rows of some columns."""
        out: Values = block * self.factors[:, None].astype(block.dtype)
        return out


@dataclass(frozen=True, eq=False)
class Grouped:
    """Every row becomes the mean of a few.

    >>> Grouped([[0, 2], [1]], 3).applied(np.array([[1.0], [5.0], [3.0]])).tolist()
    [[2.0], [5.0]]
    """

    groups: Sequence[Sequence[int]]
    before: int

    @cached_property
    def matrix(self) -> Matrix:
        """The map as ones over group sizes."""
        out = np.zeros((len(self.groups), self.before))
        for row, group in zip(out, self.groups, strict=True):
            row[list(group)] = 1.0 / len(group)
        return out

    def applied(self, block: Values) -> Values:
        """Return the means of some columns."""
        out = np.empty((len(self.groups), block.shape[1]), block.dtype)
        for mean, (first, *others) in zip(out, self.groups, strict=True):
            np.copyto(mean, block[first])
            for other in others:
                np.add(mean, block[other], out=mean)
            np.divide(mean, 1 + len(others), out=mean)
        return out
