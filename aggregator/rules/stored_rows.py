"""Rows outside of memory, as the rules read them: what a file of rows offers.

``aggregator.store.row_file`` has the files. A rule reads some rows, or some columns of all rows, and
computes the same bits as with rows in memory, because the same functions add in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]  # float32 or float64
Picks = slice | NDArray[np.intp]


@runtime_checkable
class StoredMatrix(Protocol):
    """A matrix of rows that is read piece by piece."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the precision, float32 or float64."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, key: tuple[Picks, Picks], /) -> Values:
        """Return some columns of some rows as an array; one of both may be an array of positions."""

    def mapped(self, function: Callable[[Values], Values], count: int) -> Values | StoredMatrix:
        """Return the matrix of ``count`` rows that a function makes of every block of columns."""


@runtime_checkable
class SpooledVectors(Protocol):
    """Named vectors outside of memory."""

    def sorted_matrix(
        self, is_usable: Callable[[Values], bool]
    ) -> tuple[tuple[str, ...], StoredMatrix, tuple[str, ...]]:
        """Return names, rows in order of name, and the names of the vectors that are not usable."""
