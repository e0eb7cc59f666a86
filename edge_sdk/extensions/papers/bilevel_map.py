"""Represent phi, the linear map under which BiG-FL compares the models of graph neighbours.

Models are rows, so a map acts from the right: ``x phi``. A map of a whole model has d² numbers;
three forms have fewer, and none of them is ever written out as a matrix. Both ends compute with it:
the server learns it, a device uses it in its penalty.

All forms begin as the identity, under which BiG-FL is an ordinary smoothing over the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.method import Array

Matrix = NDArray[np.float64]
Slopes = Mapping[str, Matrix]
"""Gradients of a map's parameters, under the names of ``leaves``."""


class Basis(Protocol):
    """A learnable linear map of rows, ``(n, d)`` to ``(n, d)``."""

    def forth(self, x: Matrix) -> Matrix:
        """Return ``x phi``."""

    def back(self, x: Matrix) -> Matrix:
        """Return ``x phi'``."""

    def leaves(self) -> dict[str, Matrix]:
        """Return its parameters."""

    def slopes(self, a: Matrix, b: Matrix) -> Slopes:
        """Return the gradient of ``sum_i <a_i phi, b_i>`` in its parameters."""

    def excess(self) -> float:
        """Return ``|phi - I|²``, the sum of squares."""

    def excess_slopes(self) -> Slopes:
        """Return the gradient of half of ``excess()``."""

    def with_leaves(self, leaves: Mapping[str, Array]) -> Basis:
        """Return the same form with other parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """A diagonal map, one scale per coordinate: d numbers.

    >>> Diagonal(np.array([2.0, 1.0])).forth(np.array([[1.0, 3.0]])).tolist()
    [[2.0, 3.0]]
    """

    scale: Matrix  # shape ``(d,)``

    def forth(self, x: Matrix) -> Matrix:
        """Return ``x phi``."""
        return x * self.scale

    def back(self, x: Matrix) -> Matrix:
        """Return ``x phi'``, the same."""
        return x * self.scale

    def leaves(self) -> dict[str, Matrix]:
        return {"scale": self.scale}

    def slopes(self, a: Matrix, b: Matrix) -> Slopes:
        """Return the gradient of ``sum_i <a_i phi, b_i>`` in its parameters."""
        return {"scale": np.sum(a * b, axis=0)}

    def excess(self) -> float:
        """Return ``|phi - I|²``."""
        return float(np.sum((self.scale - 1.0) ** 2))

    def excess_slopes(self) -> Slopes:
        """Return the gradient of half of ``excess()``."""
        return {"scale": self.scale - 1.0}

    def with_leaves(self, leaves: Mapping[str, Array]) -> Diagonal:
        """Return the same form with other parameters."""
        return Diagonal(np.asarray(leaves["scale"], np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """``I + U V'``: 2 r d numbers.

    >>> LowRank(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])).forth(np.array([[5.0, 1.0]]))
    array([[5., 6.]])
    """

    u: Matrix  # shape ``(d, r)``
    v: Matrix  # shape ``(d, r)``

    def forth(self, x: Matrix) -> Matrix:
        """Return ``x phi``."""
        return x + (x @ self.u) @ self.v.T

    def back(self, x: Matrix) -> Matrix:
        """Return ``x phi'``."""
        return x + (x @ self.v) @ self.u.T

    def leaves(self) -> dict[str, Matrix]:
        return {"u": self.u, "v": self.v}

    def slopes(self, a: Matrix, b: Matrix) -> Slopes:
        """Return the gradient of ``sum_i <a_i phi, b_i>`` in its parameters."""
        return {"u": a.T @ (b @ self.v), "v": b.T @ (a @ self.u)}

    def excess(self) -> float:
        """Return ``|phi - I|²``."""
        return float(np.sum((self.u.T @ self.u) * (self.v.T @ self.v)))

    def excess_slopes(self) -> Slopes:
        """Return the gradient of half of ``excess()``."""
        return {"u": self.u @ (self.v.T @ self.v), "v": self.v @ (self.u.T @ self.u)}

    def with_leaves(self, leaves: Mapping[str, Array]) -> LowRank:
        """Return the same form with other parameters."""
        return LowRank(np.asarray(leaves["u"], np.float64), np.asarray(leaves["v"], np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class MapBlock:
    """A full map of one block of coordinates, the identity for all others: m² numbers.

    With ``begin`` 0 and m the whole width, it is a full linear map.

    >>> swap = MapBlock(np.array([[0.0, 1.0], [1.0, 0.0]]), begin=1)
    >>> swap.forth(np.array([[7.0, 1.0, 2.0]])).tolist()
    [[7.0, 2.0, 1.0]]
    """

    matrix: Matrix  # shape ``(m, m)``
    begin: int = 0  # index of the first coordinate of the block

    def forth(self, x: Matrix) -> Matrix:
        """Return ``x phi``."""
        return self._mapped(x, self.matrix)

    def back(self, x: Matrix) -> Matrix:
        """Return ``x phi'``."""
        return self._mapped(x, self.matrix.T)

    def leaves(self) -> dict[str, Matrix]:
        return {"matrix": self.matrix}

    def slopes(self, a: Matrix, b: Matrix) -> Slopes:
        """Return the gradient of ``sum_i <a_i phi, b_i>`` in its parameters."""
        return {"matrix": a[:, self._part].T @ b[:, self._part]}

    def excess(self) -> float:
        """Return ``|phi - I|²``."""
        return float(np.sum(self._off**2))

    def excess_slopes(self) -> Slopes:
        """Return the gradient of half of ``excess()``."""
        return {"matrix": self._off}

    def with_leaves(self, leaves: Mapping[str, Array]) -> MapBlock:
        """Return the same form with other parameters."""
        return MapBlock(np.asarray(leaves["matrix"], np.float64), self.begin)

    @property
    def _part(self) -> slice:
        return slice(self.begin, self.begin + len(self.matrix))

    @property
    def _off(self) -> Matrix:
        return self.matrix - np.eye(len(self.matrix))

    def _mapped(self, x: Matrix, matrix: Matrix) -> Matrix:
        out = x.copy()
        out[:, self._part] = x[:, self._part] @ matrix
        return out


def gradient_step(basis: Basis, slopes: Slopes, rate: float) -> Basis:
    """Return the map after a plain gradient step.

    >>> gradient_step(Diagonal(np.ones(1)), {"scale": np.array([2.0])}, 0.25).leaves()
    {'scale': array([0.5])}
    """
    leaves = basis.leaves()
    return basis.with_leaves({name: leaves[name] - rate * slopes[name] for name in leaves})


def weighted_sum(*weighted: tuple[float, Slopes]) -> Slopes:
    """Return a weighted sum of gradients.

    >>> weighted_sum((1.0, {"scale": np.ones(1)}), (-2.0, {"scale": np.ones(1)}))
    {'scale': array([-1.])}
    """
    names = weighted[0][1]
    return {name: sum(w * slopes[name] for w, slopes in weighted) for name in names}  # type: ignore[misc]


# --- on the wire ----------------------------------------------------------------------------------

SAME, DIAGONAL, LOW_RANK, BLOCK = range(4)
"""Codes of a map's form in a task; ``SAME`` is the identity, and carries no rows."""


def pack_map(basis: Basis, width: int) -> tuple[dict[str, float], Array]:
    """Return a map as a task's numbers and as rows of the model's width, float32.

    >>> numbers, rows = pack_map(MapBlock(np.eye(2), begin=1), 3)
    >>> numbers, rows.tolist()
    ({'form': 3.0, 'begin': 1.0, 'side': 2.0}, [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    """
    if isinstance(basis, Diagonal):
        return {"form": float(DIAGONAL)}, basis.scale[None].astype(np.float32)
    if isinstance(basis, LowRank):
        rows = np.concatenate([basis.u.T, basis.v.T])
        return {"form": float(LOW_RANK)}, rows.astype(np.float32)
    leaves = basis.leaves()["matrix"].astype(np.float32).ravel()
    rows = np.zeros((-(-leaves.size // width), width), np.float32)
    rows.ravel()[: leaves.size] = leaves
    begin, side = getattr(basis, "begin", 0), len(basis.leaves()["matrix"])
    return {"form": float(BLOCK), "begin": float(begin), "side": float(side)}, rows


def unpack_map(numbers: Mapping[str, float], rows: Array | None, width: int) -> Basis | None:
    """Return the map that a task carries; None if its rows do not fit its numbers.

    >>> numbers, rows = pack_map(LowRank(np.ones((3, 2)), np.zeros((3, 2))), 3)
    >>> unpack_map(numbers, rows, 3).u.shape
    (3, 2)
    >>> unpack_map(numbers, rows[:3], 3) is None
    True
    """
    form, count = int(numbers.get("form", SAME)), 0 if rows is None else len(rows)
    if form == SAME:
        return Diagonal(np.ones(width))
    if rows is None or not count or rows.shape != (count, width):
        return None
    wide = rows.astype(np.float64)
    if form == DIAGONAL:
        return Diagonal(wide[0]) if count == 1 else None
    if form == LOW_RANK:
        return None if count % 2 else LowRank(wide[: count // 2].T, wide[count // 2 :].T)
    return _block(numbers, wide, width)


def _block(numbers: Mapping[str, float], rows: Matrix, width: int) -> MapBlock | None:
    begin, side = int(numbers.get("begin", 0)), int(numbers.get("side", 0))
    if not 0 < side <= width - begin or len(rows) != -(-side * side // width):
        return None
    return MapBlock(rows.ravel()[: side * side].reshape(side, side), begin)
