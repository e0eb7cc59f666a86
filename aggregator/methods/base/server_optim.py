"""Server optimisers: the step of the common model along an aggregated difference.

A difference is received minus trained (or a gradient), so every optimiser here *subtracts* it.
Everything is float64. The model is kept in float64 as well and rounded to float32 only where it is
published, so that a saved state continues exactly where it stopped.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from edge_sdk.protocol.contract.method import Array
from edge_sdk.shared_math.optim import State, Transform, chain, scale, trace


def sgd(rate: float = 1.0) -> Transform:
    """Return plain steps, ``w - rate * delta``. Rate 1 is federated averaging.

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> optimiser_step(sgd(1.0), np.zeros(1), np.array([-2.75]), {})[0]
    array([2.75])
    """
    return scale(-rate)


def momentum(
    rate: float = 1.0, beta: float = 0.99, form: Literal["average", "heavy_ball"] = "average"
) -> Transform:
    """Return steps with server momentum.

    ``average`` keeps a moving average, ``m = beta m + (1 - beta) delta``: it starts slowly (63 % of
    the way after 1 / (1 - beta) rounds). ``heavy_ball`` keeps the sum ``m = beta m + delta``: its
    steps are up to 1 / (1 - beta) times as long.

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> w, m = optimiser_step(momentum(beta=0.9), np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})
    >>> round(float(w[0]), 3)
    0.275
    >>> ball = momentum(beta=0.9, form="heavy_ball")
    >>> float(optimiser_step(ball, np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})[0][0])
    2.75
    """
    return chain(trace(beta, 1.0 - beta if form == "average" else 1.0), scale(-rate))


def adam(
    rate: float = 0.01, beta1: float = 0.99, beta2: float = 0.999, eps: float = 1e-3
) -> Transform:
    """Return adaptive steps: no bias correction, ``v`` starts at ``eps²``, denominator √v + ε.

    Differs from other libraries on purpose: some correct the bias, which multiplies the first
    step by (1 - beta1)⁻¹ √(1 - beta2).

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> opt = adam(rate=0.01, beta1=0.99, beta2=0.999, eps=1e-3)
    >>> w, state = optimiser_step(opt, np.zeros(1), np.array([-2.75]), opt.init(np.zeros(1)))
    >>> round(float(w[0]), 8), round(float(state["v"][0]), 9)
    (0.00312612, 0.007563499)

    Reference:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021.
    """

    def update(delta: Array, state: State, _w: Array) -> tuple[Array, State]:
        m = beta1 * state["m"] + (1.0 - beta1) * delta
        v = beta2 * state["v"] + (1.0 - beta2) * delta * delta
        return -rate * m / (np.sqrt(v) + eps), {"m": m, "v": v}

    return Transform(lambda w: {"m": np.zeros_like(w), "v": np.full_like(w, eps * eps)}, update)


def corrected_adam(
    rate: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> Transform:
    """Return Adam with bias correction, for parameters that only the server has.

    It equals ``edge_sdk.shared_math.optim.adam`` but for the order of the operations, on which the
    last bits depend: journals that were written with it must replay exactly.

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> opt = corrected_adam(0.1)
    >>> p, state = optimiser_step(opt, np.zeros(1), np.array([-3.0]), opt.init(np.zeros(1)))
    >>> round(float(p[0]), 9), int(state["taken"])
    (0.1, 1)
    """

    def init(p: Array) -> State:
        return {"taken": np.array(0), "first": np.zeros_like(p), "second": np.zeros_like(p)}

    def update(g: Array, state: State, p: Array) -> tuple[Array, State]:
        taken, kind = int(state["taken"]) + 1, p.dtype
        first = beta1 * state["first"] + (1.0 - beta1) * g
        second = beta2 * state["second"] + (1.0 - beta2) * g * g
        root = np.sqrt(second / (1.0 - beta2**taken)) + eps
        moved = -rate / (1.0 - beta1**taken) * first / root
        kept = {"first": first.astype(kind), "second": second.astype(kind)}
        return moved, {"taken": np.array(taken), **kept}

    return Transform(init, update)
