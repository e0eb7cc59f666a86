"""The constrained D-norm set: bounded shifts of the clients' weights, and the worst of them.

``P = {q : |q_j - prior_j| <= deviation_j, sum_j |q_j - prior_j| / deviation_j <= budget, sum_j q_j = 1}``
(ASPIRE-EASE (16), read in full in a public copy of the preprint). Budget 0 is the prior alone;
with the number of clients as budget every weight may change by its full deviation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def worst(losses: Floats, prior: Floats, deviation: Floats, budget: float) -> Floats:
    """Return the weights of the set under which the weighted loss is largest, shape ``(n,)``.

    With equal deviations the solution is greedy: take from the smallest losses and give to the
    largest, one pair of clients for every two units of budget. In general it is a linear program
    with one equation: for a given price of weight every client's move is independent, and the price
    at which the moves cancel is found by bisection. Equal losses leave the prior.

    Args:
        losses: One a client, finite, shape ``(n,)``.
        prior: Weights before any shift; sum 1.
        deviation: Largest change of each weight, above 0 and at most its prior.
        budget: Number of clients that may be moved by their full deviation, from 0.

    Raises:
        ValueError: A maximum deviation exceeds its prior, so a weight may be negative, or is not positive.

    Source:
        ASPIRE-EASE (17), which sorts ``deviation_j f_j``; that is the optimum for equal deviations only.

    >>> f, even = np.array([1.0, 2.0, 3.0, 6.0]), np.full(4, 0.25)
    >>> for budget in (0, 1, 2, 4):
    ...     q = worst(f, even, even, budget)
    ...     print(q.round(6), round(float(q @ f), 6))
    [0.25 0.25 0.25 0.25] 3.0
    [0.125 0.25  0.25  0.375] 3.625
    [0.   0.25 0.25 0.5 ] 4.25
    [0.  0.  0.5 0.5] 4.5
    """
    if not ((deviation > 0.0) & (deviation <= prior)).all():
        raise ValueError("deviation: expected above 0 and at most the prior")
    low, high = float(losses.min()), float(losses.max())
    while low < (middle := 0.5 * (low + high)) < high:
        wanted = _moves(losses - middle, deviation, budget)
        low, high = (middle, high) if wanted.sum() >= 0.0 else (low, middle)
    cheap = _moves(losses - low, deviation, budget)
    dear = -_moves(high - losses, deviation, budget)
    return prior + _balanced(cheap, dear)


def _moves(gains: Floats, deviation: Floats, budget: float) -> Floats:
    """Move each client by its deviation towards its gain, the largest gain first, within the budget.

    A client without gain in either direction moves up.
    """
    order = np.argsort(-(deviation * np.abs(gains)), kind="stable")
    share = np.zeros_like(deviation)
    share[order] = np.clip(budget - np.arange(len(order)), 0.0, 1.0)
    moves: Floats = share * deviation * np.where(gains >= 0.0, 1.0, -1.0)
    return moves


def _balanced(cheap: Floats, dear: Floats) -> Floats:
    """Mix the moves at a price just too low and one just too high, so that their sum is 0."""
    over, under = float(cheap.sum()), -float(dear.sum())
    if over + under <= 0.0:
        return cheap
    mixed: Floats = (under * cheap + over * dear) / (over + under)
    return mixed


def even(count: int) -> Floats:
    """Return the uniform prior, ``1/n`` each.

    >>> even(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    filled: NDArray[Any] = np.full(count, 1.0 / count)
    return filled
