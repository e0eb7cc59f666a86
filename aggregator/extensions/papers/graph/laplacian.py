"""Chebyshev polynomials of a graph's scaled Laplacian, float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def laplacian(adjacent: Matrix) -> Matrix:
    """Return ``I - D^-1/2 A D^-1/2``, ``(N, N)``; a node without neighbours has a row of I.

    The paper prints ``I + D^-1/2 A D^1/2``, which is not symmetric and whose spectrum leaves
    [0, 2].

    >>> laplacian(path(3)).round(8).tolist()
    [[1.0, -0.70710678, 0.0], [-0.70710678, 1.0, -0.70710678], [0.0, -0.70710678, 1.0]]
    >>> laplacian(np.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    degree = adjacent.sum(1)
    scale = np.zeros(len(adjacent))
    np.divide(1.0, np.sqrt(degree), out=scale, where=degree > 0)
    found: Matrix = np.eye(len(adjacent)) - scale[:, None] * adjacent * scale
    return found


def scaled(adjacent: Matrix) -> Matrix:
    """Return ``2 L / lambda_max - I``, whose eigenvalues lie in [-1, 1]; one node has 0.

    >>> scaled(path(3)).diagonal().round(12).tolist()  # lambda_max is 2: L - I
    [0.0, 0.0, 0.0]
    >>> scaled(np.zeros((1, 1))).tolist()
    [[0.0]]
    """
    n = len(adjacent)
    if n <= 1:
        return np.zeros((n, n))
    found = laplacian(adjacent)
    largest = float(np.linalg.eigvalsh(found)[-1])
    return 2.0 / largest * found - np.eye(n)


def chebyshev(adjacent: Matrix, order: int) -> Matrix:
    """Return ``T_0 ... T_(order-1)`` of the scaled Laplacian, ``(order, N, N)``.

    ``T_k = 2 L T_(k-1) - T_(k-2)``, products of matrices. A widely copied implementation multiplies
    element by element: on a path of three its ``T_2`` is ``[[-1, 1, 0], [1, -1, 1], [0, 1, -1]]``.

    >>> (chebyshev(path(3), 3)[2].round(12) + 0.0).tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    n = len(adjacent)
    step = scaled(adjacent)
    terms = [np.eye(n), step]
    while len(terms) < order:
        terms.append(2.0 * step @ terms[-1] - terms[-2])
    return np.stack(terms[:order])


def chebyshev_of_present(adjacent: Matrix, present: NDArray[np.bool_], order: int) -> Matrix:
    """Return the polynomials of the graph of present stations; rows of the others are zero.

    >>> there = np.array([True, False, True])
    >>> chebyshev_of_present(path(3), there, 1)[0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    n, where = len(adjacent), np.flatnonzero(present)
    out = np.zeros((order, n, n))
    out[np.ix_(np.arange(order), where, where)] = chebyshev(adjacent[np.ix_(where, where)], order)
    return out


def within(adjacent: Matrix, edges: int) -> NDArray[np.bool_]:
    """Return the mask of nodes within a number of edges, oneself included, ``(N, N)``.

    >>> within(path(4), 2)[0].tolist()
    [True, True, True, False]
    """
    step = ((adjacent > 0) | np.eye(len(adjacent), dtype=np.bool_)).astype(np.float32)
    reach = np.eye(len(adjacent), dtype=np.float32)
    for _ in range(edges):
        reach = (reach @ step > 0).astype(np.float32)
    found: NDArray[np.bool_] = reach > 0
    return found


def reached(adjacent: Matrix, edges: int) -> int:
    """Return the largest number of nodes that any node has within a number of edges.

    >>> reached(path(5), 2)
    5
    """
    return int(within(adjacent, edges).sum(1).max(initial=1))


def path(n: int) -> Matrix:
    """Return a line of n nodes.

    >>> path(3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    return np.eye(n, k=1) + np.eye(n, k=-1)
