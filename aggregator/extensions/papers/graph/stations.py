"""Neighbourhood of stations, and Chebyshev polynomials of its graph's scaled Laplacian, float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.schema import Between

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


EARTH = 6371.0088  # mean radius of the Earth in km (IUGG)


@dataclass(frozen=True, slots=True)
class Site:
    """Coordinates of a station, in degrees."""

    latitude: Annotated[float, Between(-90.0, 90.0)]
    longitude: Annotated[float, Between(-180.0, 180.0)]


def distances(sites: Sequence[Site]) -> Matrix:
    """Return great-circle distances in km, ``(N, N)``, by the haversine formula.

    >>> distances([Site(0.0, 0.0), Site(0.0, 90.0), Site(0.0, 180.0)])[0].round(1).tolist()
    [0.0, 10007.6, 20015.1]
    """
    at = np.radians([(site.latitude, site.longitude) for site in sites]).reshape(-1, 2)
    north, east = at[:, 0], at[:, 1]
    half = np.sin((north[:, None] - north) / 2) ** 2
    half = half + np.cos(north[:, None]) * np.cos(north) * np.sin((east[:, None] - east) / 2) ** 2
    found: Matrix = 2 * EARTH * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))
    return found


def adjacency(far: Matrix, threshold: float | None = None) -> Matrix:
    """Return 1 where two different stations lie within the threshold but not at one place.

    Args:
        far: Distances in km, ``(N, N)``, symmetric.
        threshold: Largest distance in km; None is the median over all pairs (the paper gives none).

    >>> far = distances([Site(0.0, 0.0), Site(0.0, 1.0), Site(0.0, 2.0), Site(0.0, 2.0)])
    >>> adjacency(far).tolist()  # of two stations at one place neither is the other's neighbour
    [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    """
    if threshold is None:
        pairs = far[np.triu_indices(len(far), 1)]
        threshold = float(np.median(pairs)) if len(pairs) else 0.0
    return ((far > 0) & (far <= threshold)).astype(np.float64)


def nearest(far: Matrix, count: int) -> Matrix:
    """Return 1 where one of two stations is among the ``count`` nearest of the other.

    For fleets of thousands: a median distance makes every second pair neighbours.

    >>> far = distances([Site(0.0, 0.0), Site(0.0, 1.0), Site(0.0, 3.0)])
    >>> nearest(far, 1).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    others: NDArray[np.float64] = far + np.where(np.eye(len(far)) > 0, np.inf, 0.0)
    chosen = np.argsort(others, axis=1, kind="stable")[:, : min(count, len(far) - 1)]
    out = np.zeros_like(far)
    np.put_along_axis(out, chosen, 1.0, axis=1)
    return np.maximum(out, out.T)
