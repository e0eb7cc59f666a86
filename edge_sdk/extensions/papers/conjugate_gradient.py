"""Solve ``A q = p`` with products ``A v`` only, in float64.

The number of products is bounded: a device answers with its best approximation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Product = Callable[[Wide], Wide]
"""Function from v to A v; A is symmetric."""


class Solution(NamedTuple):
    """Result of an iterative solver."""

    q: Wide  # shape ``(d,)``
    residual: float  # last known value of ``|p - A q| / |p|``
    # reason for the end: ``small``, ``count``, ``negative`` (a direction of negative curvature)
    why: str


def conjugate_gradients(
    product: Product, p: Wide, iterations: int = 10, tolerance: float = 1e-3
) -> Solution:
    """Solve by conjugate gradients, from zero.

    It ends when the residual is at most ``tolerance`` times ``|p|``, after ``iterations`` products,
    or at a direction of negative curvature; the result before that direction is returned.

    >>> curved = np.array([2.0, 4.0])
    >>> found = conjugate_gradients(lambda v: curved * v, np.array([2.0, 2.0]), tolerance=1e-9)
    >>> found.q.round(9).tolist(), found.why
    ([1.0, 0.5], 'small')
    >>> conjugate_gradients(lambda v: -v, np.ones(1)).why
    'negative'
    """
    q, rest = np.zeros_like(p), p.copy()
    way, square, first = rest.copy(), float(rest @ rest), float(p @ p)
    for _ in range(iterations):
        if square <= tolerance**2 * first:
            return Solution(q, _share(square, first), "small")
        turned = product(way)
        curve = float(way @ turned)
        if not curve > 0.0:
            return Solution(q, _share(square, first), "negative")
        step = square / curve
        q, rest = q + step * way, rest - step * turned
        after = float(rest @ rest)
        way, square = rest + (after / square) * way, after
    why = "small" if square <= tolerance**2 * first else "count"
    return Solution(q, _share(square, first), why)


def neumann_series(product: Product, p: Wide, iterations: int, step: float) -> Solution:
    """Return ``step sum_(k < K) (I - step A)^k p``, a truncated Neumann series.

    It approaches the solution while ``step`` is below 2 over the largest eigenvalue, from below
    where A is positive; with few terms, it is a solution of a more damped A.

    >>> found = [neumann_series(lambda v: 3.5 * v, np.ones(1), k, 0.25) for k in (1, 3, 10)]
    >>> [float(one.q[0].round(8)) for one in found]
    [0.25, 0.28515625, 0.28571429]
    """
    term, q = p, p.copy()
    for _ in range(iterations - 1):
        term = term - step * product(term)
        q = q + term
    left = float(np.linalg.norm(term - step * product(term)))
    return Solution(step * q, left / max(float(np.linalg.norm(p)), 1e-300), "count")


def largest_eigenvalue(product: Product, begin: Wide, iterations: int = 10) -> float:
    """Return an estimate of the largest eigenvalue by modulus (power iteration).

    >>> round(largest_eigenvalue(lambda v: np.array([1.0, 5.0]) * v, np.ones(2), 30), 6)
    5.0
    """
    way, size = begin / max(float(np.linalg.norm(begin)), 1e-300), 0.0
    for _ in range(iterations):
        turned = product(way)
        size = float(np.linalg.norm(turned))
        if not size > 0.0:
            return 0.0
        way = turned / size
    return size


def _share(square: float, first: float) -> float:
    return float(np.sqrt(square / first)) if first > 0.0 else 0.0
