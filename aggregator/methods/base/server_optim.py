"""Server optimisers: the step of the common model along an aggregated difference.

Everything here is float64. The model is kept in float64 as well and rounded to float32 only where
it is published, so that a saved state continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector64 = NDArray[np.float64]
Moments = Mapping[str, Vector64]
"""State of an optimiser, by name; every value has the model's shape."""


class ServerOptimiser(NamedTuple):
    """Two pure functions; neither changes an argument.

    ``init(w)`` gives the first moments. ``update(w, delta, moments)`` gives the next model and
    moments; ``delta`` is received minus trained (or a gradient), so it is *subtracted*.
    """

    init: Callable[[Vector64], Moments]
    update: Callable[[Vector64, Vector64, Moments], tuple[Vector64, Moments]]


def sgd(rate: float = 1.0) -> ServerOptimiser:
    """Return plain steps, ``w - rate * delta``. Rate 1 is federated averaging.

    >>> step = sgd(1.0)
    >>> step.update(np.zeros(1), np.array([-2.75]), {})[0]
    array([2.75])
    """

    def update(w: Vector64, delta: Vector64, moments: Moments) -> tuple[Vector64, Moments]:
        return w - rate * delta, moments

    return ServerOptimiser(lambda _w: {}, update)


def averaged(
    rate: float = 1.0, beta: float = 0.99, form: Literal["average", "heavy_ball"] = "average"
) -> ServerOptimiser:
    """Return steps with server momentum.

    ``average`` keeps a moving average, ``m = beta m + (1 - beta) delta``: it starts slowly (63 % of
    the way after 1 / (1 - beta) rounds). ``heavy_ball`` keeps the sum ``m = beta m + delta``: its
    steps are up to 1 / (1 - beta) times as long.

    >>> w, m = averaged(beta=0.9).update(np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})
    >>> round(float(w[0]), 3)
    0.275
    >>> ball = averaged(beta=0.9, form="heavy_ball")
    >>> float(ball.update(np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})[0][0])
    2.75
    """
    gain = 1.0 - beta if form == "average" else 1.0

    def update(w: Vector64, delta: Vector64, moments: Moments) -> tuple[Vector64, Moments]:
        m = beta * moments["m"] + gain * delta
        return w - rate * m, {"m": m}

    return ServerOptimiser(lambda w: {"m": np.zeros_like(w)}, update)


def adam(
    rate: float = 0.01, beta1: float = 0.99, beta2: float = 0.999, eps: float = 1e-3
) -> ServerOptimiser:
    """Return adaptive steps: no bias correction, ``v`` starts at ``eps²``, denominator √v + ε.

    Differs from other libraries on purpose: some correct the bias, which multiplies the first
    step by (1 - beta1)⁻¹ √(1 - beta2).

    >>> opt = adam(rate=0.01, beta1=0.99, beta2=0.999, eps=1e-3)
    >>> w, moments = opt.update(np.zeros(1), np.array([-2.75]), opt.init(np.zeros(1)))
    >>> round(float(w[0]), 8), round(float(moments["v"][0]), 9)
    (0.00312612, 0.007563499)

    Reference:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021.
    """

    def update(w: Vector64, delta: Vector64, moments: Moments) -> tuple[Vector64, Moments]:
        m = beta1 * moments["m"] + (1.0 - beta1) * delta
        v = beta2 * moments["v"] + (1.0 - beta2) * delta * delta
        return w - rate * m / (np.sqrt(v) + eps), {"m": m, "v": v}

    return ServerOptimiser(
        lambda w: {"m": np.zeros_like(w), "v": np.full_like(w, eps * eps)}, update
    )


class Corrected(NamedTuple):
    """State of Adam with bias correction: the number of steps and its two averages."""

    taken: int
    first: NDArray[Any]
    second: NDArray[Any]


def corrected(
    p: NDArray[Any],
    g: NDArray[Any],
    memory: Corrected,
    rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[NDArray[Any], Corrected]:
    """Step as ``torch.optim.Adam`` does, with bias correction: for the server's own parameters.

    ``adam`` above moves a model by the clients' differences, and does not correct the bias.

    >>> p, memory = corrected(np.zeros(1), np.array([-3.0]), Corrected(0, *np.zeros((2, 1))), 0.1)
    >>> round(float(p[0]), 9), memory.taken
    (0.1, 1)
    """
    taken, (beta1, beta2) = memory.taken + 1, betas
    first = beta1 * memory.first + (1.0 - beta1) * g
    second = beta2 * memory.second + (1.0 - beta2) * g * g
    root = np.sqrt(second / (1.0 - beta2**taken)) + eps
    step = rate / (1.0 - beta1**taken) * first / root
    kind = p.dtype
    return (p - step).astype(kind), Corrected(taken, first.astype(kind), second.astype(kind))
