"""Keep a device's weights near a consensus: a pull on the gradient, and an l1 term after the step."""

from __future__ import annotations

import math

import numpy as np

from edge_sdk.extensions.papers.consensus_dual import Ascent
from edge_sdk.protocol.contract.method import Scalars
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import IDENTITY, Transform, stateless

PROX, SIGN = 0.0, 1.0
"""Values of a task's ``l1_mode``."""


def consensus_pull(
    spec: ParamSpec, z: Vector, dual: Vector, prox: float = 0.0, weight: float = 1.0
) -> Transform:
    """Return ``weight g + prox (w - z) - dual`` on the shared layers, ``weight g`` on the others.

    Args:
        spec: Layout of the vector.
        z: Consensus, shape ``(shared_size,)``.
        dual: Dual of the constraint ``w = z``, shape ``(shared_size,)``.
        prox: Weight of half the squared distance to the consensus.
        weight: Weight of the device's own loss.
    """

    def pulled(g: Vector, p: Vector) -> Vector:
        w = spec.shared(p)
        drawn = (w - z) * w.dtype.type(prox) - dual
        return g * g.dtype.type(weight) + spec.lift(drawn)

    return stateless(pulled)


def l1_penalty(spec: ParamSpec, z: Vector, reach: float, mode: float = PROX) -> Transform:
    """Return the l1 term's part of a step, to be applied after the smooth part.

    It is separate from the optimiser, since Adam would rescale it to full steps everywhere. By
    mode, it is the term's proximal step, or its subgradient at the weights before the step.

    Args:
        spec: Layout of the vector; only its shared layers have the penalty.
        z: Consensus, shape ``(shared_size,)``.
        reach: Rate times the weight of the l1 term.
        mode: ``PROX`` or ``SIGN``.

    Example:
        At a distance of 0.03 from the consensus, the proximal step stops there and the subgradient
        overshoots it:

        >>> one, p = ParamSpec.of([("w", (1,))]), np.full(1, 0.03)
        >>> l1_penalty(one, np.zeros(1), 0.05).update(p, {}, p)[0].tolist()
        [0.0]
        >>> l1_penalty(one, np.zeros(1), 0.05, SIGN).update(p, {}, p)[0].round(9).tolist()
        [-0.02]
    """
    if reach == 0.0:
        return IDENTITY

    def placed(moved: Vector, p: Vector) -> Vector:
        before, w = spec.shared(p), spec.shared(moved)
        if mode == PROX:
            return spec.place(moved, z + soft_threshold(w - z, reach))
        return spec.place(moved, w - np.sign(before - z) * w.dtype.type(reach))

    return stateless(placed)


def soft_threshold(x: Vector, reach: float) -> Vector:
    """Return ``sign(x) max(|x| - reach, 0)``: the proximal step of an l1 term.

    >>> soft_threshold(np.array([0.03, -0.2, 0.0]), 0.05)
    array([ 0.  , -0.15,  0.  ])
    """
    shrunk: Vector = np.sign(x) * np.maximum(np.abs(x) - x.dtype.type(reach), 0)
    return shrunk


def dual_ascent(asked: Scalars) -> Ascent:
    """Return the dual's ascent from a task's numbers; a bound left out is infinite.

    A damping floor that would make it unstable is lowered to the stable limit.

    >>> dual_ascent({"cons_rate": 0.05, "cons_max": 0.01}).most, dual_ascent({"cons_rate": 0.05}).most
    (0.01, inf)
    """
    rate, least = asked.get("cons_rate", 0.0), asked.get("kappa_min", 0.0)
    return Ascent(
        rate=rate,
        most=asked.get("cons_max", math.inf),
        least=least if rate * least <= 1.0 else 0.999 / rate,
        fading=asked.get("fading", 0.25),
    )
