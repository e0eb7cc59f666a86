"""FedAvg whose devices answer with a moving average of their differences."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.methods.averaging import fedavg
from aggregator.methods.base.round_machine import Averaging, Rounds
from aggregator.methods.base.types import Method, Rate, Share, Steps, task
from edge_sdk.shared_math.fedavg import server_sgd


@dataclass(frozen=True, slots=True)
class WorkerMomentum:
    """FedAvg; each device answers with a moving average of its differences, for a robust rule."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    beta: Share = 0.9  # part of the average that a device keeps from its earlier rounds
    server_rate: Rate = 1.0  # fraction of the rule's result that the server applies

    def bound(self, rounds: Rounds) -> Averaging:
        values = task(self.steps, self.rate) | {"beta": self.beta}
        return Averaging(server_sgd(self.server_rate), rounds, values)


METHOD = Method(WorkerMomentum, fedavg, is_stepped=True)
