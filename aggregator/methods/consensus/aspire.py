"""ASPIRE-EASE: settings of a run, and the engine that they configure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from aggregator.methods.base.quorum import QuorumSettings
from aggregator.methods.base.types import Setup, has_no_use
from aggregator.methods.consensus.consensus_engine import (
    ConsensusServerState,
    ConsensusSettings,
    consensus_half,
)
from aggregator.methods.consensus.cutting_planes import Worst
from aggregator.methods.consensus.rsa_bafdp import (
    Optimiser,
    Rate,
    Share,
    Steps,
    Versions,
    Weight,
    Whole,
    climbing,
    stepping,
)
from edge_sdk.shared_math.consensus_dual import Ascent
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.schema import Between


@dataclass(frozen=True, slots=True)
class AspireEase:
    """Distributionally robust learning over the worst weighting of devices; not Byzantine-robust.

    The run's ``quorum`` is S, the number of different devices of a firing.

    Attributes:
        steps: Local steps an activation.
        rate: Their learning rate.
        optimiser: Optimiser of a local step.
        kappa: Weight of the quadratic pull to the consensus.
        server_rate: Step of the consensus.
        normalise: ``mean`` averages the pulls and weighs losses by 1 on average; the paper's
            ``sum`` weighs losses by 1/n on average.
        dual_rate: Step of the consensus duals (rho_2).
        dual_max: Bound of the duals.
        damping_exponent: Exponent with which all damping decreases: 1/4, or the preprint's 1/8.
        budget: Gamma as a fraction of the devices; 0 weighs all equally.
        max_deviation: Largest change of a device's weight, as a fraction of 1/n.
        h_rate: Step of the epigraph variable.
        h_min: Floor of the epigraph variable; left out: none. The preprint's is 0, at which
            small losses hardly contribute.
        plane_rate: Step of the planes' multipliers (rho_1).
        plane_max: Bound of the multipliers.
        cut_every: Firings between two searches for a new plane.
        cut_condition: Condition on a new plane: it exceeds the other ``planes`` (the preprint), or ``h``.
        drop_after: Number of searches in a row that find a multiplier of 0 before its plane is
            removed; the preprint's is 1.
        planes: Largest number of planes.
        loss_cap: Largest claimed loss, as a multiple of the median; 0 uses losses as claimed.
        staleness_bound: Number of versions that a device may fall behind.
        overdue: ``drop`` a device that is further behind, or ``wait`` for it.
        check_every: Activations between two checks that device and server hold one dual; 0: none.
        max_staleness: Ingress refuses staler updates; below it updates count at any age.
    """

    steps: Steps = 1
    rate: Rate = 0.01
    optimiser: Optimiser = "sgd"
    kappa: Weight = 1.0
    server_rate: Rate = 0.1
    normalise: Literal["mean", "sum"] = "mean"
    dual_rate: Rate = 0.1
    dual_max: Annotated[float, Between(0.0)] = 10.0
    damping_exponent: Annotated[float, Between(0.0, 1.0)] = 0.25
    budget: Annotated[float, Between(0.0, 1.0)] = 0.2
    max_deviation: Share = 1.0
    h_rate: Rate = 0.1
    h_min: float | None = None
    plane_rate: Annotated[float, Between(1e-9, 1e3)] = 0.1
    plane_max: Weight = 10.0
    cut_every: Versions = 10
    cut_condition: Literal["planes", "h"] = "planes"
    drop_after: Versions = 2
    planes: Versions = 50
    loss_cap: Annotated[float, Between(0.0, 1e9)] = 10.0
    staleness_bound: Versions = 20
    overdue: Literal["drop", "wait"] = "drop"
    check_every: Whole = 50
    max_staleness: Versions = 2**31
    renamed: ClassVar[Mapping[str, str]] = {
        "fading": "damping_exponent",
        "reach": "max_deviation",
        "h_least": "h_min",
        "admit": "cut_condition",
        "patience": "staleness_bound",
    }

    @property
    def ascent(self) -> Ascent:
        """Return the step settings of the consensus duals."""
        return Ascent(self.dual_rate, self.dual_max, fading=self.damping_exponent)

    def numbers(self, _version: int) -> Mapping[str, float]:
        """Return the numbers of a task."""
        values = stepping(self.steps, self.rate, self.optimiser, 0.0, "prox")
        return values | {"prox": self.kappa} | climbing(self.ascent, self.check_every)

    def worst(self) -> Worst:
        """Return the settings of the worst-case weighting."""
        return Worst(
            self.numbers,
            self.kappa,
            self.budget,
            self.max_deviation,
            self.h_rate,
            -math.inf if self.h_min is None else self.h_min,
            self.plane_rate,
            self.plane_max,
            self.damping_exponent,
            self.cut_every,
            self.cut_condition,
            self.drop_after,
            self.planes,
            self.loss_cap,
            self.normalise == "mean",
        )


def aspire_ease(setup: Setup) -> Half[ConsensusServerState]:
    """Bind ASPIRE-EASE's server half."""
    has_no_use(setup, "rule", "weighting", "share")
    o: AspireEase = setup.settings
    quorum = QuorumSettings(
        setup.rounds.quorum, staleness_bound=o.staleness_bound, overdue=o.overdue
    )
    return consensus_half(
        ConsensusSettings(
            o.worst(),
            quorum,
            setup.rounds,
            o.server_rate,
            normalise=o.normalise,
            ascent=o.ascent,
        )
    )
