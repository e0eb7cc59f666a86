"""Optimisers over one flat vector, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from edge_sdk.wire.contract.parameter_layout import Vector


class OptimiserState(NamedTuple):
    """State of an optimiser between two steps: number of steps, and two moving averages.

    An optimiser without an average holds an empty vector in its place, so that moments can be saved
    and loaded as arrays for any optimiser.
    """

    taken: int
    first: Vector
    second: Vector


class Optimiser(NamedTuple):
    """Two pure functions: neither changes an argument in place.

    ``init(p)`` gives the moments of a fresh start; ``update(p, g, moments)`` gives the next vector
    and moments, in the dtype of ``p``.
    """

    init: Callable[[Vector], OptimiserState]
    update: Callable[[Vector, Vector, OptimiserState], tuple[Vector, OptimiserState]]


Rated = Callable[[float], Optimiser]
"""Function from a learning rate, which a task sets, to an optimiser."""


def sgd(rate: float, momentum: float = 0.0) -> Optimiser:
    """Return gradient descent, ``p - rate * b`` with ``b = momentum * b + g`` (heavy ball).

    >>> plain = sgd(0.1)
    >>> p, _ = plain.update(np.ones(1), np.full(1, 2.0), plain.init(np.ones(1)))
    >>> p
    array([0.8])
    """

    def init(p: Vector) -> OptimiserState:
        first = np.zeros_like(p) if momentum else np.zeros(0, p.dtype)
        return OptimiserState(0, first, np.zeros(0, p.dtype))

    def update(p: Vector, g: Vector, moments: OptimiserState) -> tuple[Vector, OptimiserState]:
        ball = momentum * moments.first + g if momentum else g
        kept = ball if momentum else moments.first
        return p - rate * ball, OptimiserState(moments.taken + 1, kept, moments.second)

    return Optimiser(init, update)


def adam(rate: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """Return Adam as ``torch.optim.Adam`` computes it, with float64 bias correction.

    The correction must not be taken in float32: ``1 - 0.999**t`` is then wrong by 1e-5, always in
    the same direction, which is a visible drift after a hundred steps. It uses the second moment of
    *this* step: with that of the step before, the first step would be ``g / eps``, some 1e7.

    >>> opt = adam(0.1)
    >>> theta = np.zeros(1)
    >>> theta, moments = opt.update(theta, theta - 3.0, opt.init(theta))
    >>> round(float(theta[0]), 9)
    0.1
    """

    def init(p: Vector) -> OptimiserState:
        return OptimiserState(0, np.zeros_like(p), np.zeros_like(p))

    def update(p: Vector, g: Vector, moments: OptimiserState) -> tuple[Vector, OptimiserState]:
        taken = moments.taken + 1
        step = rate / (1.0 - beta1**taken)
        root = math.sqrt(1.0 - beta2**taken)
        first = g - moments.first  # m + (1 - b1)(g - m): one rounding less than b1 m + (1 - b1) g
        first *= 1.0 - beta1
        first += moments.first
        scratch = g * g
        scratch *= 1.0 - beta2
        second = moments.second * beta2
        second += scratch
        np.sqrt(second, out=scratch)
        scratch /= root
        scratch += eps
        np.divide(first, scratch, out=scratch)
        scratch *= step
        return np.subtract(p, scratch, out=scratch), OptimiserState(taken, first, second)

    return Optimiser(init, update)
