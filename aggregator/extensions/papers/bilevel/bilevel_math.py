"""Loss of BiG-FL's upper level, and its gradient in the map.

Models are rows of ``theta (n, d)``; ``L`` is the graph's normalised adjacency with self-loops, and
``H = L theta phi`` is compared: neighbours should align, others should not. The map phi is trained
through the change of the devices' models under another map, for which each device solves
``(Hessian + delta I) q = p``.

Everything is float64, and no ``(d, d)`` array is made except phi itself.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.papers.bilevel_map import Basis, Slopes, weighted_sum

Matrix = NDArray[np.float64]

SHORTEST = 1e-8  # least norm of a vector when an angle is computed


def normalised(adjacent: NDArray[np.bool_] | Matrix) -> Matrix:
    """Return ``D^-1/2 (A + I) D^-1/2``, where D are the degrees with the self-loop.

    A client without neighbours keeps its own model: 1 on the diagonal. (The paper calls this matrix
    a Laplacian.)

    >>> normalised(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).round(4).tolist()
    [[0.5, 0.4082, 0.0], [0.4082, 0.3333, 0.4082], [0.0, 0.4082, 0.5]]
    """
    looped = np.asarray(adjacent, np.float64) + np.eye(len(adjacent))
    roots = 1.0 / np.sqrt(looped.sum(axis=1))
    graph: Matrix = roots[:, None] * looped * roots[None, :]
    return graph


def sampled(near: NDArray[np.bool_], count: int, rng: np.random.Generator) -> Matrix:
    """Return the weight of each non-neighbour of each: rows sum to 1, or to 0 without any.

    Args:
        near: Adjacency matrix, symmetric, shape ``(n, n)``.
        count: Strangers drawn for each, uniformly and none twice; all, where there are fewer.

    >>> near = np.zeros((3, 3), bool)
    >>> near[0, 1] = near[1, 0] = near[1, 2] = near[2, 1] = True
    >>> sampled(near, 10, np.random.default_rng(0)).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    out = np.zeros(near.shape)
    for i, row in enumerate(near):
        others = np.flatnonzero(~row & (np.arange(len(near)) != i))
        if len(others) > count:
            others = rng.choice(others, count, replace=False)
        out[i, others] = 1.0 / max(len(others), 1)
    return out


def draws(seed: int, version: int) -> np.random.Generator:
    """Return the generator of one round's non-neighbours; the same arguments give the same draws."""
    key = hashlib.sha256(f"bigfl {seed} {version}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


class Likeness(NamedTuple):
    """Similarity of neighbours, and of non-neighbours."""

    neighbours: float  # ``1/n sum_i sum_(j near i) 1 - cos(H_i, H_j)``
    non_neighbours: float  # ``1/n sum_i mean_j max(0, cos(H_i, H_j))``
    slope: Matrix  # gradient of their sum in H, shape ``(n, d)``


def likeness(h: Matrix, near: NDArray[np.bool_], strange: Matrix) -> Likeness:
    """Return the embedding loss of the upper level.

    Args:
        h: Embeddings, shape ``(n, d)``.
        near: Adjacency matrix, shape ``(n, n)``.
        strange: Result of ``sampled``.

    >>> near = np.array([[False, True], [True, False]])
    >>> told = likeness(np.eye(2), near, np.zeros((2, 2)))
    >>> told.neighbours, told.slope.tolist()
    (1.0, [[0.0, -1.0], [-1.0, 0.0]])
    """
    n = len(h)
    length = np.sqrt(np.sum(h * h, axis=1, keepdims=True))
    unit = h / np.maximum(length, SHORTEST)
    cosine = unit @ unit.T
    gap = np.where(near, 1.0 - cosine, 0.0).sum() / n
    non_neighbours = (strange * np.maximum(cosine, 0.0)).sum() / n
    weights = (strange * (cosine > 0.0) - near) / n
    pull = (weights + weights.T) @ unit
    turning = pull - np.sum(pull * unit, axis=1, keepdims=True) * unit
    slope = np.where(length > SHORTEST, turning, pull) / np.maximum(length, SHORTEST)
    return Likeness(float(gap), float(non_neighbours), slope)


class Upper(NamedTuple):
    """Loss of the upper level at some models and a map."""

    value: float
    likeness: Likeness  # its first two terms
    p: Matrix  # its gradient in the models, shape ``(n, d)``
    slopes: Slopes  # its gradient in the map's numbers, at fixed models


def upper(
    theta: Matrix,
    graph: Matrix,
    basis: Basis,
    near: NDArray[np.bool_],
    *,
    strange: Matrix,
    pull: float = 1.0,
) -> Upper:
    """Return the upper level's loss and its gradients.

    Args:
        theta: Models, shape ``(n, d)``.
        graph: Result of ``normalised``.
        near: Adjacency matrix.
        strange: Result of ``sampled``.
        pull: Weight of ``|phi - I|² / 2`` (u).
    """
    mixed = graph @ theta
    alike = likeness(basis.forth(mixed), near, strange)
    value = alike.neighbours + alike.non_neighbours + 0.5 * pull * basis.excess()
    slopes = weighted_sum((1.0, basis.slopes(mixed, alike.slope)), (pull, basis.excess_slopes()))
    return Upper(value, alike, graph.T @ basis.back(alike.slope), slopes)


def off(mixed: Matrix, theta: Matrix, basis: Basis) -> Matrix:
    """Return the residual of the models under graph and map, ``(L theta) phi - theta``."""
    return basis.forth(mixed) - theta


def crossed(
    mixed: Matrix, theta: Matrix, own: Matrix, basis: Basis, *, q: Matrix, weight: float
) -> Slopes:
    """Return ``sum_i d/dphi <grad_theta g_i, q_i>``: the map's effect on the devices' gradients.

    Only the graph's term of g_i depends on the map: ``s/2 |r_i|²`` with ``r_i = (c_i + L_ii
    theta_i) phi - theta_i``, whose gradient in theta_i is ``s r_i (L_ii phi' - I)``.

    Args:
        mixed: ``c_i + L_ii theta_i``, shape ``(n, d)``.
        theta: Models, shape ``(n, d)``.
        own: ``L_ii``, shape ``(n,)``.
        q: Solutions of the devices, shape ``(n, d)``.

    >>> from edge_sdk.extensions.papers.bilevel_map import Diagonal
    >>> one = np.ones((1, 1))
    >>> phi, q = Diagonal(np.ones(1)), -6 / 7 * one
    >>> crossed(3 * one, 2 * one, np.zeros(1), phi, q=q, weight=2.0)
    {'scale': array([5.14285714])}
    """
    rest = off(mixed, theta, basis)
    tilted = own[:, None] * basis.forth(q) - q
    first, second = basis.slopes(mixed, tilted), basis.slopes(own[:, None] * q, rest)
    return weighted_sum((weight, first), (weight, second))


def hypergradient(slopes: Slopes, crossed_by: Slopes) -> Slopes:
    """Return the gradient of the upper loss in the map, with its effect through the models."""
    return weighted_sum((1.0, slopes), (-1.0, crossed_by))


def coupled(p: Matrix, q: Matrix, graph: Matrix, basis: Basis, weight: float) -> Matrix:
    """Return the next right-hand sides where each model moves its neighbours' too.

    A model enters its neighbours' loss through ``c``; the gradient of the game's solution is
    ``J' q = p`` with blocks ``s L_ij phi (L_ii phi' - I)`` beside the diagonal. This is one step of
    the block-Jacobi iteration: ``p_j - sum_(i != j) s L_ij q_i (L_ii phi - I) phi'``.

    Args:
        p: Gradient of the upper loss in the models, shape ``(n, d)``.
        q: Last solutions of the devices.
        graph: Result of ``normalised``.
    """
    tilted = basis.back(np.diag(graph)[:, None] * basis.forth(q) - q)
    beside = graph - np.diag(np.diag(graph))
    return p - weight * beside.T @ tilted
