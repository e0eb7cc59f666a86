"""Credit attention: each client receives a mixture of the models most similar to its own.

Rows in, rows out: row i of the result may go back to client i. The nearer a model is to a client's
own, relative to the nearest of all, the larger its weight; one that is too far has no weight.

Two limits apply with any settings. Nearness is rewarded: a client that sends a copy of another's
model plus a little drift is its nearest, takes almost half of its mixture and makes all others look
far (``anti_sybil`` weakens that). And a ``credit`` near 1 admits every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.rows import Rows
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = NDArray[np.intp]
_TINY = 1e-300  # below every relevant square; avoids 0/0


@dataclass(frozen=True, slots=True)
class Credit:
    """Settings of the comparison and the mixture of models."""

    alpha: float = 0.8  # weight of likeness; the rest is the weight of neighbourhood
    least: float = 0.01  # likeness below which a model has no weight (``A_min``)
    floor: float = 1e-6  # lower bound of the nearest distance, as a fraction of a model's length
    anti_sybil: bool = False  # true also bounds the nearest distance below by half the median one
    # scale of distances: ``squared`` by the nearest, so that the nearest has exactly the credit; or
    # as ``printed``, by its first power, which makes weights near-uniform
    scale: Literal["squared", "printed"] = "squared"
    # ``averaged`` over a client and its neighbours; or as ``printed``, a plain one for each, so
    # that rows do not sum to 1
    adjacency: Literal["averaged", "printed"] = "averaged"
    # a model that is too far stays out of the ``mixture``; or of ``likeness`` only, as printed:
    # then a neighbour comes back in
    drop: Literal["mixture", "likeness"] = "mixture"
    # rows of the mixture are made to sum to ``one``, or left as ``printed``
    sums: Literal["one", "printed"] = "one"


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Result of mixing rows."""

    values: Mapping[str, Matrix]  # mixture of each client, by id, float64, shape ``(d,)``
    # weight for each client (row) of each other (column), the mean over modules, shape ``(n, n)``,
    # in order of id
    weights: Matrix
    let_in: Mask  # mask of the models that each client admits, in every module, shape ``(n, n)``


def credited(
    rows: Rows, sigma: Matrix, adjacency: Mask, modules: tuple[Columns, ...], how: Credit
) -> Mixed:
    """Mix rows by their likeness, module by module.

    Args:
        rows: One model a client, in order of id.
        sigma: Each client's credit, in (0, 1), shape ``(n,)``.
        adjacency: Adjacency matrix, symmetric, zero diagonal, shape ``(n, n)``.
        modules: Columns that are compared and mixed together; together all of them.

    Reference:
        The personalised aggregation (14)-(18) of the PFGL paper, with the resolutions that
        ``Credit`` names.
    """
    total = np.zeros((len(rows), len(rows)))
    let_in = np.ones(total.shape, np.bool_)
    out = np.empty((len(rows), rows.width))
    for columns in modules:
        part = rows if len(modules) == 1 else _part(rows, columns)
        alike = likeness(part.distances(), part.norms(), sigma, how)
        weights, mask = mixture(alike, adjacency, how)
        for i in range(len(rows)):
            out[i, columns] = part.combine(weights[i])
        total, let_in = total + weights, let_in & mask
    return Mixed(dict(zip(rows.ids, out, strict=True)), total / len(modules), let_in)


def likeness(squares: Matrix, norms: Matrix, sigma: Matrix, how: Credit) -> Matrix:
    """Return the likeness of models: 1 to oneself, ``sigma_i ** r_ij`` to others.

    ``r_ij`` is the squared distance over that of the nearest; computed in the log domain, so that a
    far model underflows to 0. A single client has no others.

    Args:
        squares: Squared distances, shape ``(n, n)``.
        norms: Lengths of the models, shape ``(n,)``.
        sigma: Each client's credit, shape ``(n,)``.
        how: Settings ``scale``, ``floor`` and ``anti_sybil``.

    Example:
        The nearest has exactly the credit, here 0.8; the paper's printed scale gives it 0.98:

        >>> w = np.array([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2]])
        >>> squares = ((w[:, None] - w[None]) ** 2).sum(axis=2)
        >>> norms, sigma = np.sqrt((w**2).sum(axis=1)), np.full(3, 0.8)
        >>> likeness(squares, norms, sigma, Credit())[0].round(5).tolist()
        [1.0, 0.8, 0.32768]
        >>> likeness(squares, norms, sigma, Credit(scale="printed"))[0].round(5).tolist()
        [1.0, 0.97793, 0.89443]
    """
    n = len(squares)
    if n < 2:
        return np.ones((n, n))
    others = squares[~np.eye(n, dtype=np.bool_)].reshape(n, n - 1)
    nearest = np.maximum(others.min(axis=1), (how.floor * norms) ** 2)
    if how.anti_sybil:
        nearest = np.maximum(nearest, 0.25 * np.median(np.sqrt(others), axis=1) ** 2)
    unit = nearest if how.scale == "squared" else np.sqrt(nearest) * norms
    ratios = squares / np.maximum(unit, _TINY)[:, None]
    alike: Matrix = np.exp(ratios * np.log(sigma)[:, None])
    np.fill_diagonal(alike, 1.0)
    return alike


def mixture(alike: Matrix, adjacency: Mask, how: Credit) -> tuple[Matrix, Mask]:
    """Return the weight for each client of each other, and the mask of admitted models.

    A model that is too far is found before neighbourhood is mixed in, and stays out of the mixture
    even if it is a neighbour's.

    Example:
        Client 1 has two neighbours; the one that is too unlike stays out, and rows sum to 1:

        >>> alike = np.array([[1.0, 0.5, 0.001], [0.5, 1.0, 0.5], [0.001, 0.5, 1.0]])
        >>> near = np.array([[False, True, True], [True, False, False], [True, False, False]])
        >>> weights, let_in = mixture(alike, near, Credit(alpha=0.5))
        >>> weights[0].round(6).tolist(), let_in[0].tolist()
        ([0.6, 0.4, 0.0], [True, True, False])
        >>> mixture(alike, near, Credit(alpha=0.5, drop="likeness"))[0][0].round(6).tolist()
        [0.5, 0.333333, 0.166667]
    """
    let_in = alike >= how.least
    np.fill_diagonal(let_in, val=True)
    shares = _rows_to_one(np.where(let_in, alike, 0.0))
    near = adjacency.astype(np.float64)
    if how.adjacency == "averaged":
        near = _rows_to_one(near + np.eye(len(near)))
    mixed = how.alpha * shares + (1.0 - how.alpha) * near
    if how.drop == "mixture":
        mixed = np.where(let_in, mixed, 0.0)
    return (_rows_to_one(mixed) if how.sums == "one" else mixed), let_in


def modules_of(spec: ParamSpec) -> tuple[Columns, ...]:
    """Return the columns of each module: of the shared layers whose names have the same first part.

    >>> layers = [("encoder.a", (2,)), ("decoder.a", (1,)), ("encoder.b", (1,))]
    >>> [columns.tolist() for columns in modules_of(ParamSpec.of(layers))]
    [[2], [0, 1, 3]]
    """
    found: dict[str, list[Columns]] = {}
    start = 0
    for layer in spec.layers:
        if layer.name in spec.shared_names:
            place = np.arange(start, start + layer.size)
            found.setdefault(layer.name.partition(".")[0], []).append(place)
            start += layer.size
    return tuple(np.concatenate(found[name]) for name in sorted(found))


def _part(rows: Rows, columns: Columns) -> Rows:
    return Rows(rows.ids, np.ascontiguousarray(rows.of_columns(columns)))


def _rows_to_one(matrix: Matrix) -> Matrix:
    sums = matrix.sum(axis=1, keepdims=True)
    divided: Matrix = matrix / np.where(sums > 0.0, sums, 1.0)
    return divided
