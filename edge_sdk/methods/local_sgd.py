"""Train with local steps: the averaging family's device half, with a proximal term."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.manifest import Training
from edge_sdk.protocol.contract.method import Scalars, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math import optim

TRAIN = "train"
"""The ask that the halves here answer; at ``END`` they only adopt the final model."""

OPTIMISERS: Mapping[float, optim.Rated] = MappingProxyType({1.0: optim.sgd, 2.0: optim.adam})
"""Values of a task's ``optimiser``; 0 is the bundle's own."""

Gradient = Callable[[Vector, Batch], tuple[float, Vector]]
"""Function from parameters and a minibatch to the loss and its gradient."""


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """Settings of the local steps. A task's ``steps``, ``rate`` and ``prox`` have precedence."""

    # function from a rate to an optimiser, e.g. ``adam`` or ``partial(sgd, momentum=0.9)``
    optimiser: optim.Rated = optim.adam
    rate: float = 1e-3  # learning rate where the task sets none
    steps: int = 4  # number of steps where the task sets none
    # weight of the proximal term towards the received model where the task sets none
    prox: float = 0.0
    # ``fixed`` reuses one minibatch for all steps of a round, ``fresh`` draws anew
    minibatch: Literal["fixed", "fresh"] = "fixed"
    # start from the ``received`` shared layers, or from the device's ``own``
    start: Literal["received", "own"] = "received"
    # whether the optimiser's moments are kept over rounds; only sensible when nothing is shared
    # (configuration 3), for these moments do not belong to a received model
    keep_moments: bool = False
    # whether the device's owner allows a coarse week of its demand in an answer
    weekly_profile: bool = False

    @classmethod
    def of(cls, training: Training) -> LocalSgd:
        """Return the settings that a bundle recommends."""
        betas = {"beta1": training.beta1, "beta2": training.beta2, "eps": training.eps}
        optimiser = partial(optim.adam, **betas) if training.optimiser == "adam" else optim.sgd
        return cls(optimiser, training.rate, training.steps, minibatch=training.minibatch)

    def rate_of(self, values: Scalars) -> float:
        return float(values.get("rate", self.rate))

    def steps_of(self, values: Scalars) -> int:
        return int(values.get("steps", self.steps))

    def optimiser_of(self, values: Scalars) -> optim.Transform:
        rated = OPTIMISERS.get(values.get("optimiser", 0.0), self.optimiser)
        return rated(self.rate_of(values))


class TrainingResult(NamedTuple):
    """Result of local training."""

    p: Vector  # whole vector after the steps
    moments: optim.State
    # mean ``loss`` and number ``n`` of windows; empty if there were no windows
    report: dict[str, float]
    batch: Batch | None = None  # last minibatch; None if there were no windows

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.p).all()) and all(map(math.isfinite, self.report.values()))


def train(
    local: TrainingContext,
    optimiser: optim.Transform,
    p: Vector,
    moments: optim.State | None,
    *,
    steps: int,
    of_round: int,
    fresh: bool = True,
    gradient: Gradient | None = None,
    after: optim.Transform = optim.IDENTITY,
) -> TrainingResult:
    """Take one step of an optimiser on each of a round's minibatches.

    Args:
        local: Data and graphs.
        optimiser: Maps a gradient to a step.
        moments: State of the optimiser from earlier rounds; a fresh one where it does not fit.
        steps: Number of steps; with 0 the loss is measured and nothing moves.
        gradient: Loss and gradient of a minibatch; None is the bundle's own.
        after: Applied to the weights after every step.
    """
    moments, losses, used, batch = optim.resumed(optimiser, p, moments), [], 0, None
    gradient_of = partial(loss_gradient, local) if gradient is None else gradient
    for batch in local.batches(max(steps, 1), of_round, fresh=fresh):
        loss, g = gradient_of(p, batch)
        losses.append(loss)
        used = used + len(batch) if fresh else len(batch)
        if steps:
            p, moments = optim.optimiser_step(optimiser, p, g, moments, after)
    report = {"loss": float(np.mean(losses)), "n": float(used)} if losses else {}
    return TrainingResult(p, moments, report, batch)


def loss_gradient(local: TrainingContext, p: Vector, batch: Batch) -> tuple[float, Vector]:
    loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
    return float(loss), g


def answer(
    local: TrainingContext, task: Task, vector: Vector, report: Scalars, check: bytes = b""
) -> Update:
    return Update(local.client, task.round, task.base, vector, report, check)
