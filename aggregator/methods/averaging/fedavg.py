"""FedSGD, FedAvg, FedProx, FedAvgM and FedAdam: settings of the averaging rounds.

References:
    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017;
    Li et al., Federated Optimization in Heterogeneous Networks, 2020; Reddi et al., Adaptive
    Federated Optimization, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from aggregator.methods.base.averaging import Averaged, Averaging, averaging
from aggregator.methods.base.parameters import Prox, Rate, Share, Steps, task
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.server_optim import adam, momentum, sgd
from aggregator.methods.base.types import Setup
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.schema import Between


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
        return Averaging(sgd(self.server_rate), rounds, task(self.steps, self.rate))


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
    prox: Prox = 0.01
    server_rate: Rate = 1.0

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        values = task(self.steps, self.rate, prox=self.prox)
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
    beta: Share = 0.99
    momentum_form: Literal["average", "heavy_ball"] = "average"

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        optimiser = momentum(self.server_rate, self.beta, self.momentum_form)
        return Averaging(optimiser, rounds, task(self.steps, self.rate))


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
    beta1: Share = 0.99
    beta2: Share = 0.999
    eps: Annotated[float, Between(1e-12, 1.0)] = 1e-3

    def bound(self, rounds: Rounds) -> Averaging:
        """Return the family's settings for these numbers."""
        optimiser = adam(self.server_rate, self.beta1, self.beta2, self.eps)
        return Averaging(optimiser, rounds, task(self.steps, self.rate))


def fedavg(setup: Setup) -> Half[Averaged]:
    """Return the server half of FedSGD, FedAvg, FedProx, FedAvgM and FedAdam."""
    return averaging(setup.rule, setup.settings.bound(setup.rounds), setup.add_row)
