"""Ditto, APFL, FedRep and FedBABU on the server: FedAvg, whose devices keep models of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from aggregator.methods.averaging import fedavg
from aggregator.methods.base.round_machine import Averaging, Rounds
from aggregator.methods.base.types import Method, Prox, Rate, Setup, Share, Steps, task
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.protocol.contract.method import Half
from edge_sdk.shared_math.fedavg import server_sgd


@dataclass(frozen=True, slots=True)
class Ditto:
    """FedAvg; each device also trains a model of its own, drawn towards the fleet's."""

    steps: Steps = 4  # local steps a round of the copy that takes part
    rate: Rate = 1e-3  # learning rate of both
    own_steps: Steps = 4  # steps a round of the device's own model
    pull: Prox = 0.1  # weight of half the squared distance to the fleet's model (lambda)
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: Rounds) -> Averaging:
        values = {"own_steps": float(self.own_steps), "pull": self.pull}
        return Averaging(server_sgd(self.server_rate), rounds, task(self.steps, self.rate) | values)


@dataclass(frozen=True, slots=True)
class Apfl:
    """FedAvg; each device forecasts with a mixture of the fleet's model and one of its own."""

    steps: Steps = 4  # local steps a round, of both models
    rate: Rate = 1e-3  # their learning rate
    share: Share = 0.5  # of the own model at first (alpha)
    # step of the share along its slope; 0 leaves it
    share_rate: Annotated[float, Between(0.0, 1e3)] = 0.01
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: Rounds) -> Averaging:
        values = {"share": self.share, "share_rate": self.share_rate}
        return Averaging(server_sgd(self.server_rate), rounds, task(self.steps, self.rate) | values)


@dataclass(frozen=True, slots=True)
class FedRep:
    """FedAvg of the shared layers; a device trains its personal layers first, then these."""

    steps: Steps = 4  # steps a round on the shared layers
    rate: Rate = 1e-3  # learning rate of both
    head_steps: Steps = 4  # steps a round on the personal layers, before
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: Rounds) -> Averaging:
        values = {"head_steps": float(self.head_steps)}
        return Averaging(server_sgd(self.server_rate), rounds, task(self.steps, self.rate) | values)


@dataclass(frozen=True, slots=True)
class FedBabu:
    """FedAvg of the shared layers under personal ones that never move; a device tunes a copy."""

    steps: Steps = 4  # steps a round on the shared layers
    rate: Rate = 1e-3  # learning rate of both
    tune_steps: Steps = 8  # steps a round, on all layers, of the copy that forecasts
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: Rounds) -> Averaging:
        values = {"tune_steps": float(self.tune_steps)}
        return Averaging(server_sgd(self.server_rate), rounds, task(self.steps, self.rate) | values)


def fedrep(setup: Setup) -> Half[Any]:
    """Return FedAvg's server half; raise SchemaError where no layer is personal."""
    if setup.spec is not None and setup.spec.shared_size == setup.spec.size:
        raise SchemaError("run.shared", "layers that leave some to the device", "all layers")
    return fedavg(setup)


DITTO = Method(Ditto, fedavg, is_stepped=True)
APFL = Method(Apfl, fedavg, is_stepped=True)
FEDREP = Method(FedRep, fedrep, is_stepped=True)
FEDBABU = Method(FedBabu, fedrep, is_stepped=True)
