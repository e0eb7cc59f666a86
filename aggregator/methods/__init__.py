"""The server halves by name, each with the settings a run may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from aggregator.methods.asynchronous.fedasync import FedAsync, FedBuff, fedasync, fedbuff
from aggregator.methods.averaging.afl import AFL, afl
from aggregator.methods.averaging.dp_averaging import UDP, NbAFL, nbafl, udp
from aggregator.methods.averaging.fedatt import FedAtt, FedDA, fedatt, fedda
from aggregator.methods.averaging.fedgru import Recurrent, fedgru, fedntp
from aggregator.methods.base.averaging import ABANDON, OPEN, Averaged, Averaging, Rounds, averaging
from aggregator.methods.base.parameters import Rate, Steps
from aggregator.methods.base.server_optim import adam, averaged, sgd
from aggregator.methods.base.types import Clustered, Course, Credited, Linked, Method, Setup
from aggregator.methods.bilevel.bigfl import BiGFL, bigfl
from aggregator.methods.clustered.fesem import FeSEM, fesem
from aggregator.methods.consensus.aspire import AspireEase, aspire_ease
from aggregator.methods.consensus.rsa_bafdp import Bafdp, DpRsa, Rsa, bafdp, bsfdp, rsa, rsa_weights
from aggregator.methods.peers.peer_topology import DflGt, DflSgd, hosting
from aggregator.methods.personalised.pfl import PFL, pfl
from aggregator.methods.split.pfgl import PFGL, SplitAveraging, averaged_through, pfgl
from aggregator.methods.split.split import AGAIN
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.schema import Between

__all__ = [
    "ABANDON",
    "AGAIN",
    "METHODS",
    "OPEN",
    "Averaged",
    "Clustered",
    "Course",
    "Credited",
    "Linked",
    "Method",
    "Rounds",
    "Setup",
]

Decay = Annotated[float, Between(0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class FedSgd:
    """One gradient a round, averaged.

    Attributes:
        rate: The step, of the server on what is shared and of every device on what is not.
    """

    rate: Rate = 0.01

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        return Averaging(sgd(self.rate), rounds, {"rate": self.rate})


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Local steps, averaged.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: What share of the average difference the server takes over.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 1.0

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        return Averaging(sgd(self.server_rate), rounds, _task(self.steps, self.rate))


@dataclass(frozen=True, slots=True)
class FedProx:
    """As FedAvg; every device is also pulled back towards what it received.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        prox: Weight of half the squared distance to the received model.
        server_rate: What share of the average difference the server takes over.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    prox: Annotated[float, Between(0.0, 1e9)] = 0.01
    server_rate: Rate = 1.0

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        values = {**_task(self.steps, self.rate), "prox": self.prox}
        return Averaging(sgd(self.server_rate), rounds, values)


@dataclass(frozen=True, slots=True)
class FedAvgM:
    """As FedAvg, with momentum at the server.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Length of the server's step.
        beta: Share of the old momentum that is kept.
        momentum_form: A moving ``average``, or a ``heavy_ball`` that rolls 1 / (1 - beta) as far.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 1.0
    beta: Decay = 0.99
    momentum_form: Literal["average", "heavy_ball"] = "average"

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        optimiser = averaged(self.server_rate, self.beta, self.momentum_form)
        return Averaging(optimiser, rounds, _task(self.steps, self.rate))


@dataclass(frozen=True, slots=True)
class FedAdam:
    """As FedAvg, with adaptive steps at the server.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Length of the server's step.
        beta1: Share of the old first moment that is kept.
        beta2: Share of the old second moment that is kept.
        eps: Floor of the denominator; its square is where the second moment starts.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 0.01
    beta1: Decay = 0.99
    beta2: Decay = 0.999
    eps: Annotated[float, Between(1e-12, 1.0)] = 1e-3

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        optimiser = adam(self.server_rate, self.beta1, self.beta2, self.eps)
        return Averaging(optimiser, rounds, _task(self.steps, self.rate))


def _of_family(setup: Setup) -> Half[Averaged]:
    return averaging(setup.rule, setup.settings.bound(setup.rounds))


def _task(steps: int, rate: float) -> dict[str, float]:
    return {"steps": float(steps), "rate": rate}


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "fedsgd": Method(FedSgd, _of_family),
        "fedavg": Method(FedAvg, _of_family),
        "fedprox": Method(FedProx, _of_family),
        "fedavgm": Method(FedAvgM, _of_family),
        "fedadam": Method(FedAdam, _of_family),
        "fedasync": Method(FedAsync, fedasync, own=True),
        "fedbuff": Method(FedBuff, fedbuff),
        "afl": Method(AFL, afl, own=True),
        "fedatt": Method(FedAtt, fedatt, own=True),
        "fedda": Method(FedDA, fedda, own=True),
        "fedgru": Method(Recurrent, fedgru),
        "fedntp": Method(Recurrent, fedntp),
        "nbafl": Method(NbAFL, nbafl),
        "udp": Method(UDP, udp),
        "fesem": Method(FeSEM, fesem),
        "dfl_sgd": Method(DflSgd, hosting, own=True),
        "dfl_gt": Method(DflGt, hosting, own=True),
        "pfl": Method(PFL, pfl, own=True),
        "bigfl": Method(BiGFL, bigfl, own=True),
        "pfgl": Method(PFGL, pfgl, own=True),
        "cnfgnn": Method(SplitAveraging, averaged_through, own=True),
        "lstm_cnn_fedavg": Method(SplitAveraging, averaged_through, own=True),
        "lstm_cnn_pfl": Method(PFGL, pfgl, own=True),
        "bafdp": Method(Bafdp, bafdp, own=True),
        "bsfdp": Method(Bafdp, bsfdp, own=True),
        "aspire_ease": Method(AspireEase, aspire_ease, own=True),
        "rsa": Method(Rsa, rsa, own=True),
        "rsa_weights": Method(Rsa, rsa_weights, own=True),
        "dp_rsa": Method(DpRsa, rsa, own=True),
    }
)
"""The server half of every method of ``edge_sdk.wire.contract.method.CONTRACTS``, under the same keys."""
