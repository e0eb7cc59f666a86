"""Pre-aggregations: maps from rows to rows, applied before a rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.parameters import Count, Faulty, Radius, Seed
from aggregator.rules.row_maps import Dense, Grouped, Scaled
from aggregator.rules.rows import Rows

_TINY = 1e-12


def nnm(rows: Rows, *, f: Faulty) -> Rows:
    """Replace every row by the mean of its n - f nearest, itself among them.

    This reduces the differences among honest rows, which an attack exploits. n > 2 f. O(n² d).

    Args:
        rows: Updates, shape ``(n, d)``.
        f: Number of rows that may be Byzantine.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((0.0, 1.0, 9.0))})
    >>> mixed = nnm(rows, f=1)
    >>> mixed.block(0, 1).ravel().tolist()
    [0.5, 0.5, 5.0]

    Reference:
        Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity,
        AISTATS 2023, algorithm 2.
    """
    distances, n = rows.distances(), len(rows)
    np.fill_diagonal(distances, -1.0)
    near = np.argsort(distances, axis=1, kind="stable")[:, : n - f]
    matrix = np.zeros((n, n))
    np.put_along_axis(matrix, near, 1.0 / (n - f), axis=1)
    return rows.mixed(Dense(matrix))


def bucketing(rows: Rows, draw: int, *, size: Count = 2, seed: Seed = 0) -> Rows:
    """Replace rows by the means of random groups; the last group may be smaller.

    Every round draws another permutation; a repeated computation draws the same one. The rule after it
    compares n / size rows instead of n. A Byzantine row spoils its whole group, so that rule must
    tolerate f of n / size rows: Krum up to (n / size - 3) / 2 Byzantine clients instead of
    (n - 3) / 2.

    Args:
        rows: Updates, shape ``(n, d)``.
        draw: Number of verdicts so far.
        seed: Seed of the permutations. It discloses which clients share a group.

    >>> rows = Rows.of({name: np.ones(1) for name in "abcde"})
    >>> bucketing(rows, 0, size=2).block(0, 1).ravel().tolist()
    [1.0, 1.0, 1.0]

    Reference:
        Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
        2022, algorithm 1.
    """
    n = len(rows)
    order = np.random.Generator(np.random.Philox(key=seed, counter=draw)).permutation(n)
    return grouped(rows, order, size)


def norm_clipping(rows: Rows, *, radius: Radius | None = None) -> Rows:
    """Clip every row to a norm: no client moves a mean by more than that over n. O(n d).

    Args:
        rows: Updates, shape ``(n, d)``.
        radius: Largest norm; left out: the median norm of the round.

    Reference:
        Sun et al., Can You Really Backdoor Federated Learning?, 2019, section 4.
    """
    norms = rows.norms()
    bound = float(np.median(norms)) if radius is None else radius
    return rows.mixed(Scaled(np.minimum(1.0, bound / np.maximum(norms, _TINY))))


def arc(rows: Rows, *, f: Faulty) -> Rows:
    """Clip the 2 (f / n) (n - f) longest rows to the norm of the longest other one: adaptive robust clipping.

    The bound follows the round's honest norms without a parameter. For use before a robust rule.
    O(n d).

    Args:
        rows: Updates, shape ``(n, d)``.
        f: Number of rows that may be Byzantine.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 3.0, 9.0))})
    >>> arc(rows, f=1).block(0, 1).ravel().tolist()
    [1.0, 2.0, 3.0, 3.0]

    Reference:
        Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, ICLR 2025,
        algorithm 2.
    """
    norms, n = rows.norms(), len(rows)
    clipped = int(2 * f / n * (n - f))
    bound = float(np.sort(norms)[n - clipped - 1])
    return rows.mixed(Scaled(np.minimum(1.0, bound / np.maximum(norms, _TINY))))


def grouped(rows: Rows, order: NDArray[np.intp], size: int) -> Rows:
    """Return the means of consecutive groups of the rows in this order.

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 9.0))})
    >>> grouped(rows, np.arange(3), 2).block(0, 1).ravel().tolist()
    [1.5, 9.0]
    """
    ids = tuple(f"bucket-{number:05}" for number in range(-(-len(order) // size)))
    return rows.mixed(Grouped(order, size), ids)
