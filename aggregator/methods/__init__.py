"""Registry of the methods' server halves, each with the settings that a run may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from aggregator.methods.analytic.analytic import Analytic, analytic
from aggregator.methods.asynchronous.fedasync import FedAsync, FedBuff, fedasync, fedbuff
from aggregator.methods.averaging.afl import AFL, afl
from aggregator.methods.averaging.dp_averaging import UDP, NbAFL, nbafl, udp
from aggregator.methods.averaging.fedatt import FedAtt, FedDA, fedatt, fedda
from aggregator.methods.averaging.fedgru import Recurrent, fedgru, fedntp
from aggregator.methods.base.averaging import Averaged, Averaging, averaging
from aggregator.methods.base.parameters import Rate, Steps
from aggregator.methods.base.round_machine import ABANDON, OPEN, Rounds
from aggregator.methods.base.server_optim import adam, momentum, sgd
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
    """Average one gradient of every client a round.

    Attributes:
        rate: Step length of the server for shared layers and of every device for local layers.
    """

    rate: Rate = 0.01

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        return Averaging(sgd(self.rate), rounds, {"rate": self.rate})


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Average the models of clients that take several local steps a round.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Fraction of the average difference that the server applies.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 1.0

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        return Averaging(sgd(self.server_rate), rounds, _task(self.steps, self.rate))


@dataclass(frozen=True, slots=True)
class FedProx:
    """FedAvg with a proximal term that pulls every device towards the received model.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        prox: Weight of half the squared distance to the received model.
        server_rate: Fraction of the average difference that the server applies.
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
    """FedAvg with momentum at the server.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Step length of the server.
        beta: Fraction of the old momentum that is kept.
        momentum_form: ``average`` is a moving average; ``heavy_ball`` moves
            1 / (1 - beta) as far.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 1.0
    beta: Decay = 0.99
    momentum_form: Literal["average", "heavy_ball"] = "average"

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        optimiser = momentum(self.server_rate, self.beta, self.momentum_form)
        return Averaging(optimiser, rounds, _task(self.steps, self.rate))


@dataclass(frozen=True, slots=True)
class FedAdam:
    """FedAvg with adaptive steps at the server.

    Attributes:
        steps: Local steps a round.
        rate: Their learning rate.
        server_rate: Step length of the server.
        beta1: Fraction of the old first moment that is kept.
        beta2: Fraction of the old second moment that is kept.
        eps: Term added to the denominator; its square is the initial second moment.
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
        "analytic": Method(Analytic, analytic),
        "bafdp": Method(Bafdp, bafdp, own=True),
        "bsfdp": Method(Bafdp, bsfdp, own=True),
        "aspire_ease": Method(AspireEase, aspire_ease, own=True),
        "rsa": Method(Rsa, rsa, own=True),
        "rsa_weights": Method(Rsa, rsa_weights, own=True),
        "dp_rsa": Method(DpRsa, rsa, own=True),
    }
)
"""Server half of each method of ``edge_sdk.wire.contract.method.CONTRACTS``, by the same keys."""
