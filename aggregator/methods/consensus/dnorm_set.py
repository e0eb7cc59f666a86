"""The constrained D-norm set: how far the weights of clients may be shifted against us, and where.

``P = {q : |q_j - prior_j| <= reach_j, sum_j |q_j - prior_j| / reach_j <= budget, sum_j q_j = 1}``
(ASPIRE-EASE (16), read in full in a public copy of the preprint). Budget 0 is the prior alone, the
number of clients lets every weight go as far as its reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def worst(losses: Floats, prior: Floats, reach: Floats, budget: float) -> Floats:
    """Return the weights of the set under which the weighted loss is largest, shape ``(n,)``.

    With equal reaches this is what a greedy hand would do: take from the smallest losses and give
    to the largest, one pair of clients for every two units of budget. In general it is a linear
    program with one equation; for the right price of weight every client wants to move by itself,
    and the price at which the wishes cancel is found by halving. Equal losses leave the prior.

    Args:
        losses: One a client, finite, shape ``(n,)``.
        prior: Their weights before anybody interferes; sum 1.
        reach: How far each may be moved, above 0 and at most its prior.
        budget: How many may be moved by their whole reach, from 0.

    Raises:
        ValueError: A reach beyond its prior, which would make a weight negative, or none at all.

    Source:
        ASPIRE-EASE (17), which sorts ``reach_j f_j``; that is the optimum for equal reaches only.

    Example:
        >>> f, even = np.array([1.0, 2.0, 3.0, 6.0]), np.full(4, 0.25)
        >>> for budget in (0, 1, 2, 4):
        ...     q = worst(f, even, even, budget)
        ...     print(q.round(6), round(float(q @ f), 6))
        [0.25 0.25 0.25 0.25] 3.0
        [0.125 0.25  0.25  0.375] 3.625
        [0.   0.25 0.25 0.5 ] 4.25
        [0.  0.  0.5 0.5] 4.5
    """
    if not ((reach > 0.0) & (reach <= prior)).all():
        raise ValueError("reach: expected above 0 and at most the prior")
    low, high = float(losses.min()), float(losses.max())
    while low < (middle := 0.5 * (low + high)) < high:
        wanted = _moves(losses - middle, reach, budget)
        low, high = (middle, high) if wanted.sum() >= 0.0 else (low, middle)
    cheap = _moves(losses - low, reach, budget)
    dear = -_moves(high - losses, reach, budget)
    return prior + _balanced(cheap, dear)


def _moves(gains: Floats, reach: Floats, budget: float) -> Floats:
    """Move each client by its reach towards its gain, the most profitable first, while it lasts.

    Who gains nothing either way moves up.
    """
    order = np.argsort(-(reach * np.abs(gains)), kind="stable")
    share = np.zeros_like(reach)
    share[order] = np.clip(budget - np.arange(len(order)), 0.0, 1.0)
    moves: Floats = share * reach * np.where(gains >= 0.0, 1.0, -1.0)
    return moves


def _balanced(cheap: Floats, dear: Floats) -> Floats:
    """Mix the wishes at a price just too low and just too high, so that nothing is left over."""
    over, under = float(cheap.sum()), -float(dear.sum())
    if over + under <= 0.0:
        return cheap
    mixed: Floats = (under * cheap + over * dear) / (over + under)
    return mixed


def even(count: int) -> Floats:
    """Return the prior that knows nothing, ``1/n`` each.

    >>> even(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    filled: NDArray[Any] = np.full(count, 1.0 / count)
    return filled
