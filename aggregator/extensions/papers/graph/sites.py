"""Neighbourhood of stations, from public coordinates or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph.laplacian import Matrix
from edge_sdk.app.schema import Between

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
