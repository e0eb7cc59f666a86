"""What a rule sees: one float64 row per client, sorted by id, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_BLOCK = 65_536  # columns handled at a time, so that temporaries stay small beside the rows


class TooFewRows(Exception):  # noqa: N818 - the word of the specification
    """Fewer clients answered than a rule can give a trustworthy result for.

    Attributes:
        needed: The least number of rows.
        got: How many there were.
    """

    def __init__(self, needed: int, got: int) -> None:
        """Say how many are missing."""
        super().__init__(f"needs at least {needed} rows, got {got}")
        self.needed = needed
        self.got = got


@dataclass(frozen=True, eq=False)
class Rows:
    """One vector per client, as the rows of an ``(n, d)`` float64 matrix in order of client id.

    Every operation is a sum over rows or works block by block over columns, so that a second
    implementation may split the columns over machines without changing a result.

    Attributes:
        ids: Client ids, ascending.
        values: Shape ``(n, d)``.
    """

    ids: tuple[str, ...]
    values: Matrix

    @classmethod
    def of(cls, vectors: Mapping[str, NDArray[np.floating]]) -> Rows:
        """Stack named vectors. The order in which they came has no influence on any result.

        Raises:
            ValueError: Vectors of different shapes; screening comes before rules.

        Example:
            >>> Rows.of({"b": np.array([2.0]), "a": np.array([1.0])}).values.tolist()
            [[1.0], [2.0]]
        """
        ids = tuple(sorted(vectors))
        if not ids:
            return cls((), np.zeros((0, 0)))
        return cls(ids, np.stack([np.asarray(vectors[name], np.float64) for name in ids]))

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.ids)

    def combine(self, weights: NDArray[np.float64]) -> Matrix:
        """Return ``sum_i weights[i] * row_i``, shape ``(d,)``, added up in order of client id.

        Deliberately not a matrix product: a BLAS may add in another order on another day, and a
        journal that is replayed must give the same bits.
        """
        total = np.zeros(self.values.shape[1])
        for weight, row in zip(weights, self.values, strict=True):
            total += weight * row
        return total

    def gram(self) -> Matrix:
        """Return the ``(n, n)`` inner products of the rows, centred on their mean.

        Near convergence clients send almost equal rows; without centring the differences that
        distances are made of drown in the common part.

        Example:
            >>> rows = Rows.of({"a": np.array([1e8]), "b": np.array([1e8 + 1.0])})
            >>> rows.distances().tolist()
            [[0.0, 1.0], [1.0, 0.0]]
        """
        n = len(self)
        out = np.zeros((n, n))
        for start in range(0, self.values.shape[1], _BLOCK):
            block = self.values[:, start : start + _BLOCK]
            block = block - block.mean(axis=0)
            out += block @ block.T
        return out

    def distances(self) -> Matrix:
        """Return the squared Euclidean distances between rows, shape ``(n, n)``, never negative."""
        gram = self.gram()
        squares = np.diag(gram)
        out = np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)
        np.fill_diagonal(out, 0.0)
        return out

    def norms(self) -> Matrix:
        """Return the Euclidean norm of every row, shape ``(n,)``."""
        lengths: Matrix = np.sqrt(np.einsum("ij,ij->i", self.values, self.values))
        return lengths

    def coordinatewise(self, statistic: Callable[[Matrix], Matrix]) -> Matrix:
        """Apply a statistic that maps ``(n, k)`` to ``(k,)`` to all columns, block by block.

        Example:
            >>> rows = Rows.of({"a": np.array([1.0]), "b": np.array([9.0]), "c": np.array([2.0])})
            >>> rows.coordinatewise(lambda block: np.median(block, axis=0))
            array([2.])
        """
        d = self.values.shape[1]
        out = np.empty(d)
        for start in range(0, d, _BLOCK):
            out[start : start + _BLOCK] = statistic(self.values[:, start : start + _BLOCK])
        return out


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a rule decided.

    Attributes:
        value: The aggregate, shape ``(d,)``.
        weights: What every client counted, by id; empty where a rule has no such thing.
        dropped: Ids that were left out, each with the reason in one word.
        report: Further numbers worth a place in the round's report.
    """

    value: Matrix
    weights: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)
