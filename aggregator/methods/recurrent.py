"""FedGRU and Fed-NTP: FedAvg with a recurrent model and a random part of the clients in a round."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.methods.averaging import Averaged, Averaging, Rounds, averaging
from aggregator.methods.optim import sgd
from aggregator.methods.ranges import Rate, Steps, task
from aggregator.methods.setup import Setup
from edge_sdk.wire.method import Half
from edge_sdk.wire.strict import Misfit

LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Recurrent:
    """As FedAvg; ``run.share`` says which part of the clients a round draws, from 0.1 to 1.

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
        return Averaging(sgd(self.server_rate), rounds, task(self.steps, self.rate))


def fedgru(setup: Setup) -> Half[Averaged]:
    """Return FedGRU's server half: the model has GRU layers.

    Raises:
        Misfit: It has none, or the share is below 0.1.

    Reference:
        Liu et al., Privacy-Preserving Traffic Flow Prediction: A Federated Learning Approach, IEEE
        Internet of Things Journal 2020.
    """
    return _averaging(setup, "gru")


def fedntp(setup: Setup) -> Half[Averaged]:
    """Return Fed-NTP's server half: the model has LSTM layers (two of 64 in the paper).

    Raises:
        Misfit: It has none, or the share is below 0.1.

    Reference:
        Sepasgozar and Pierre, Fed-NTP: A Federated Learning Algorithm for Network Traffic
        Prediction in VANET, IEEE Access 2022.
    """
    return _averaging(setup, "lstm")


def _averaging(setup: Setup, layer: str) -> Half[Averaged]:
    names = () if setup.spec is None else tuple(one.name for one in setup.spec.layers)
    if names and not any(layer in name.split(".") for name in names):
        raise Misfit("run.bundle", f"a model with a layer {layer!r}", ", ".join(names)[:60])
    if setup.share < LEAST_SHARE:
        raise Misfit("run.share", f"from {LEAST_SHARE} to 1", str(setup.share))
    return averaging(setup.rule, setup.settings.bound(setup.rounds))
