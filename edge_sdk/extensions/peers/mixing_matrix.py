"""Compute mixing matrices: the weights of the neighbours' models, without a server.

A mixing matrix W is symmetric and its rows sum to 1, hence its columns too: mixing preserves the
average. A device computes its own row from its neighbours' degrees alone (Metropolis-Hastings); the
other two need the whole graph, so the publisher of the topology computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class TopologyError(ValueError):
    """An error: a graph that is not connected, or a matrix that does not mix."""


def adjacency(names: Iterable[str], links: Iterable[tuple[str, str]]) -> Matrix:
    """Return the adjacency matrix of 0 and 1, in order of name, shape ``(n, n)``.

    Raises:
        TopologyError: An unknown name, a self-loop, or a node not reachable from the first.

    >>> adjacency("cab", [("a", "b"), ("c", "b")]).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    >>> adjacency("abcd", [("a", "b"), ("c", "d")])
    Traceback (most recent call last):
    edge_sdk.extensions.peers.mixing_matrix.TopologyError: not connected: c, d cannot be reached from a
    """
    at = {name: number for number, name in enumerate(sorted(names))}
    out = np.zeros((len(at), len(at)))
    for one, other in links:
        if one not in at or other not in at:
            raise TopologyError(f"{one} - {other}: {one if one not in at else other} is unknown")
        if one == other:
            raise TopologyError(f"{one} - {other}: a device cannot be its own neighbour")
        out[at[one], at[other]] = out[at[other], at[one]] = 1.0
    lost = [name for name, number in at.items() if number not in _reached(out)]
    if lost:
        raise TopologyError(f"not connected: {', '.join(lost)} cannot be reached from {min(at)}")
    return out


def metropolis_row(degree: int, neighbours: Mapping[str, int]) -> tuple[float, dict[str, float]]:
    """Return a device's weight of its own model, and the weight of each neighbour's.

    ``w_ij = 1 / (1 + max(d_i, d_j))``, the rest is its own. Both ends of a link compute the same
    number from the two degrees, so no matrix is sent; when a degree changes, both compute a new
    one.

    >>> own, others = metropolis_row(1, {"b": 2})
    >>> round(own, 6), {name: round(weight, 6) for name, weight in others.items()}
    (0.666667, {'b': 0.333333})

    Reference:
        Xiao and Boyd, Fast Linear Iterations for Distributed Averaging, 2004.
    """
    if degree != len(neighbours) or any(d < 1 for d in neighbours.values()):
        raise TopologyError(f"degree {degree} and neighbours of degrees {dict(neighbours)}")
    others = {name: 1.0 / (1.0 + max(degree, neighbours[name])) for name in sorted(neighbours)}
    return 1.0 - sum(others.values()), others


def metropolis(adjacent: Matrix) -> Matrix:
    """Return the Metropolis-Hastings matrix: the rows of all devices.

    >>> metropolis(adjacency("abc", [("a", "b"), ("b", "c")])).round(4).tolist()
    [[0.6667, 0.3333, 0.0], [0.3333, 0.3333, 0.3333], [0.0, 0.3333, 0.6667]]
    """
    degrees = adjacent.sum(axis=1)
    return _with_own(adjacent / (1.0 + np.maximum(degrees[:, None], degrees[None, :])))


def maximum_degree(adjacent: Matrix) -> Matrix:
    """Return ``I - L / (1 + d_max)``.

    With ``1 / d_max``, as often printed, two devices and even rings exchange models without end:
    the second largest eigenvalue is -1.

    >>> maximum_degree(adjacency("ab", [("a", "b")])).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    return _with_own(adjacent / (1.0 + adjacent.sum(axis=1).max()))


def best_constant(adjacent: Matrix, epsilon: float | None = None) -> Matrix:
    """Return ``I - epsilon L``, by default with the epsilon that mixes fastest.

    That is ``2 / (lambda_2 + lambda_n)`` of the Laplacian's eigenvalues. The diagonal may be
    negative: then a row is no longer an average of models, though mixing still preserves the
    average.

    Args:
        adjacent: Adjacency matrix of 0 and 1.
        epsilon: Step to use instead, above 0 and below ``2 / lambda_n``.

    >>> best_constant(adjacency("abc", [("a", "b"), ("b", "c")])).round(6).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
    """
    if len(adjacent) < 2:
        return np.ones((len(adjacent), len(adjacent)))
    values = np.linalg.eigvalsh(np.diag(adjacent.sum(axis=1)) - adjacent)
    step = 2.0 / (values[1] + values[-1]) if epsilon is None else epsilon
    if not 0.0 < step < 2.0 / values[-1]:
        raise TopologyError(f"epsilon: expected above 0 and below {2.0 / values[-1]:g}, got {step}")
    return _with_own(step * adjacent)


def second_eigenvalue(weights: Matrix) -> float:
    """Return the second largest eigenvalue by modulus: the factor by which differences shrink.

    With 0 all devices agree after one step, with 1 never.

    >>> round(second_eigenvalue(np.full((2, 2), 0.5)), 12), second_eigenvalue(np.eye(2)[::-1])
    (0.0, 1.0)
    """
    moduli = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


def _with_own(taken: Matrix) -> Matrix:
    """Set the diagonal to 1 minus the rest of the row."""
    out = taken.copy()
    np.fill_diagonal(out, 0.0)
    np.fill_diagonal(out, 1.0 - out.sum(axis=1))
    return out


def _reached(adjacent: Matrix) -> frozenset[int]:
    seen: set[int] = set()
    queue = [0] if len(adjacent) else []
    while queue:
        number = queue.pop()
        if number not in seen:
            seen.add(number)
            queue += map(int, np.flatnonzero(adjacent[number]))
    return frozenset(seen)
