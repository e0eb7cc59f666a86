"""Take one local step with a penalty towards a consensus: smooth part first, then the l1 term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_sdk.methods.optim import Optimiser, OptimiserState, Rated, adam, sgd
from edge_sdk.shared_math.consensus_dual import Ascent
from edge_sdk.wire.contract.method import Scalars
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

PROX, SIGN, AWAY = 0.0, 1.0, 2.0
"""Values of a task's ``l1_mode``."""

OPTIMISERS: Final[Mapping[float, Rated]] = {1.0: sgd, 2.0: adam}
"""Values of a task's ``optimiser``; 0 is the bundle's own."""


@dataclass(frozen=True, slots=True, eq=False)
class ProximalStep:
    """Update rule of one device's weights for a given gradient.

    Attributes:
        spec: Layout of the vector; only its shared layers have the penalty.
        optimiser: Optimiser of the smooth part; the l1 term is applied separately, since Adam would
            rescale it to full steps everywhere.
        z: Consensus, shape ``(shared_size,)``.
        dual: Dual of the constraint ``w = z``, shape ``(shared_size,)``.
        reach: Rate times the weight of the l1 term.
        mode: ``PROX``, ``SIGN`` or ``AWAY``.
        prox: Weight of half the squared distance to the consensus.
        weight: Weight of the device's own loss.
    """

    spec: ParamSpec
    optimiser: Optimiser
    z: Vector
    dual: Vector
    reach: float = 0.0
    mode: float = PROX
    prox: float = 0.0
    weight: float = 1.0

    def step(self, p: Vector, g: Vector, moments: OptimiserState) -> tuple[Vector, OptimiserState]:
        """Return the whole vector after one step along a gradient, and the optimiser's moments.

        ``d = weight g + prox (w - z) - dual`` goes through the optimiser; then, by mode, the l1
        term's proximal step, or its subgradient at the weights before the step.

        Example:
            At a distance of 0.03 from the consensus, the proximal step stops there and the
            subgradient overshoots it:

            >>> one = ParamSpec.of([("w", (1,))])
            >>> still = {"spec": one, "optimiser": sgd(0.1), "z": np.zeros(1), "dual": np.zeros(1)}
            >>> p, none, fresh = np.full(1, 0.03), np.zeros(1), sgd(0.1).init(np.zeros(1))
            >>> float(ProximalStep(**still, reach=0.05).step(p, none, fresh)[0][0])
            0.0
            >>> round(float(ProximalStep(**still, reach=0.05, mode=SIGN).step(p, none, fresh)[0][0]), 9)
            -0.02
        """
        w = self.spec.shared(p)
        drawn = (w - self.z) * w.dtype.type(self.prox) - self.dual
        smooth = g * g.dtype.type(self.weight) + self.spec.lift(drawn)
        moved, moments = self.optimiser.update(p, smooth, moments)
        if self.reach == 0.0:
            return moved, moments
        return self.spec.place(moved, self._l1(w, self.spec.shared(moved))), moments

    def _l1(self, before: Vector, after: Vector) -> Vector:
        if self.mode == PROX:
            return self.z + soft(after - self.z, self.reach)
        away = np.sign(before - self.z) * after.dtype.type(self.reach)
        stepped: Vector = after + away if self.mode == AWAY else after - away
        return stepped


def soft(x: Vector, reach: float) -> Vector:
    """Return ``sign(x) max(|x| - reach, 0)``: the proximal step of an l1 term.

    >>> soft(np.array([0.03, -0.2, 0.0]), 0.05)
    array([ 0.  , -0.15,  0.  ])
    """
    shrunk: Vector = np.sign(x) * np.maximum(np.abs(x) - x.dtype.type(reach), 0)
    return shrunk


def ascent(asked: Scalars) -> Ascent:
    """Return the dual's ascent from a task's numbers; a bound left out is infinite.

    A damping floor that would make it unstable is lowered to the stable limit.

    >>> ascent({"cons_rate": 0.05, "cons_max": 0.01}).most, ascent({"cons_rate": 0.05}).most
    (0.01, inf)
    """
    rate, least = asked.get("cons_rate", 0.0), asked.get("kappa_min", 0.0)
    return Ascent(
        rate=rate,
        most=asked.get("cons_max", math.inf),
        least=least if rate * least <= 1.0 else 0.999 / rate,
        fading=asked.get("fading", 0.25),
        is_damped=asked.get("undamped", 0.0) == 0.0,
    )
