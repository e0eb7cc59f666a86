"""ASPIRE-EASE: settings of a run, and the engine that they configure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from aggregator.extensions.papers.consensus.consensus_engine import (
    ConsensusServerState,
    ConsensusSettings,
    consensus_half,
)
from aggregator.extensions.papers.consensus.cutting_planes import Worst
from aggregator.extensions.papers.consensus.rsa_bafdp import (
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
from aggregator.methods.base.quorum import QuorumSettings
from aggregator.methods.base.types import Method, Setup, has_no_use
from edge_sdk.app.schema import Between
from edge_sdk.extensions.papers.consensus_dual import Ascent
from edge_sdk.protocol.contract.method import Half


@dataclass(frozen=True, slots=True)
class AspireEase:
    """Distributionally robust learning over the worst weighting of devices; not Byzantine-robust.

    The run's ``quorum`` is S, the number of different devices of a firing.
    """

    steps: Steps = 1  # local steps an activation
    rate: Rate = 0.01  # their learning rate
    optimiser: Optimiser = "sgd"  # optimiser of a local step
    kappa: Weight = 1.0  # weight of the quadratic pull to the consensus
    server_rate: Rate = 0.1  # step of the consensus
    # ``mean`` averages the pulls and weighs losses by 1 on average; the paper's ``sum`` weighs
    # losses by 1/n on average
    normalise: Literal["mean", "sum"] = "mean"
    dual_rate: Rate = 0.1  # step of the consensus duals (rho_2)
    dual_max: Annotated[float, Between(0.0)] = 10.0  # bound of the duals
    # Exponent with which all damping decreases: 1/4, or the preprint's 1/8
    damping_exponent: Annotated[float, Between(0.0, 1.0)] = 0.25
    # Gamma as a fraction of the devices; 0 weighs all equally
    budget: Annotated[float, Between(0.0, 1.0)] = 0.2
    max_deviation: Share = 1.0  # largest change of a device's weight, as a fraction of 1/n
    h_rate: Rate = 0.1  # step of the epigraph variable
    # floor of the epigraph variable; left out: none. The preprint's is 0, at which small losses
    # hardly contribute.
    h_min: float | None = None
    # step of the planes' multipliers (rho_1)
    plane_rate: Annotated[float, Between(1e-9, 1e3)] = 0.1
    plane_max: Weight = 10.0  # bound of the multipliers
    cut_every: Versions = 10  # firings between two searches for a new plane
    # condition on a new plane: it exceeds the other ``planes`` (the preprint), or ``h``
    cut_condition: Literal["planes", "h"] = "planes"
    # number of searches in a row that find a multiplier of 0 before its plane is removed; the
    # preprint's is 1
    drop_after: Versions = 2
    planes: Versions = 50  # largest number of planes
    # largest claimed loss, as a multiple of the median; 0 uses losses as claimed
    loss_cap: Annotated[float, Between(0.0, 1e9)] = 10.0
    staleness_bound: Versions = 20  # number of versions that a device may fall behind
    # ``drop`` a device that is further behind, or ``wait`` for it
    overdue: Literal["drop", "wait"] = "drop"
    # activations between two checks that device and server hold one dual; 0: none
    check_every: Whole = 50
    # ingress refuses staler updates; below it updates count at any age
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
        return Ascent(self.dual_rate, self.dual_max, fading=self.damping_exponent)

    def numbers(self, _version: int) -> Mapping[str, float]:
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
            o.worst(), quorum, setup.rounds, o.server_rate, normalise=o.normalise, ascent=o.ascent
        )
    )


METHOD = Method(AspireEase, aspire_ease, own=True)
