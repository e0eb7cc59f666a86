"""Train with local steps: the averaging family's device half, with a proximal term."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.shared_math.optim import (
    IDENTITY,
    Rated,
    State,
    Transform,
    adam,
    add_proximal,
    chain,
    optimiser_step,
    resumed,
    saved,
    sgd,
)
from edge_sdk.wire.contract.manifest import Training
from edge_sdk.wire.contract.method import END, Array, Effects, Event, Half, Scalars, Task, Update
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

TRAIN = "train"
"""The ask that the halves here answer; at ``END`` they only adopt the final model."""

OPTIMISERS: Mapping[float, Rated] = MappingProxyType({1.0: sgd, 2.0: adam})
"""Values of a task's ``optimiser``; 0 is the bundle's own."""

Gradient = Callable[[Vector, Batch], tuple[float, Vector]]
"""Function from parameters and a minibatch to the loss and its gradient."""


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """Settings of the local steps. A task's ``steps``, ``rate`` and ``prox`` have precedence.

    Attributes:
        optimiser: Function from a rate to an optimiser, e.g. ``adam`` or ``partial(sgd,
            momentum=0.9)``.
        rate: Learning rate where the task sets none.
        steps: Number of steps where the task sets none.
        prox: Weight of the proximal term towards the received model where the task sets none.
        minibatch: ``fixed`` reuses one minibatch for all steps of a round, ``fresh`` draws anew.
        start: Start from the ``received`` shared layers, or from the device's ``own``.
        keep_moments: Whether the optimiser's moments are kept over rounds; only sensible when
            nothing is shared (configuration 3), for these moments do not belong to a received
            model.
        weekly_profile: Whether the device's owner allows a coarse week of its demand in an answer.
    """

    optimiser: Rated = adam
    rate: float = 1e-3
    steps: int = 4
    prox: float = 0.0
    minibatch: Literal["fixed", "fresh"] = "fixed"
    start: Literal["received", "own"] = "received"
    keep_moments: bool = False
    weekly_profile: bool = False

    @classmethod
    def of(cls, training: Training) -> LocalSgd:
        """Return the settings that a bundle recommends."""
        betas = {"beta1": training.beta1, "beta2": training.beta2, "eps": training.eps}
        optimiser = partial(adam, **betas) if training.optimiser == "adam" else sgd
        return cls(optimiser, training.rate, training.steps, minibatch=training.minibatch)

    def rate_of(self, values: Scalars) -> float:
        """Return the learning rate of a task."""
        return float(values.get("rate", self.rate))

    def steps_of(self, values: Scalars) -> int:
        """Return the number of steps of a task."""
        return int(values.get("steps", self.steps))

    def optimiser_of(self, values: Scalars) -> Transform:
        """Return the optimiser of a task, at its rate."""
        rated = OPTIMISERS.get(values.get("optimiser", 0.0), self.optimiser)
        return rated(self.rate_of(values))


class TrainingResult(NamedTuple):
    """Result of local training.

    Attributes:
        p: Whole vector after the steps.
        moments: State of the optimiser.
        report: Mean ``loss`` and number ``n`` of windows; empty if there were no windows.
        batch: Last minibatch; None if there were no windows.
    """

    p: Vector
    moments: State
    report: dict[str, float]
    batch: Batch | None = None

    @property
    def is_finite(self) -> bool:
        """Return whether the weights and everything reported are finite numbers."""
        return bool(np.isfinite(self.p).all()) and all(map(math.isfinite, self.report.values()))


def train(
    local: TrainingContext,
    optimiser: Transform,
    p: Vector,
    moments: State | None,
    *,
    steps: int,
    of_round: int,
    fresh: bool = True,
    gradient: Gradient | None = None,
    after: Transform = IDENTITY,
) -> TrainingResult:
    """Take one step of an optimiser on each of a round's minibatches.

    Args:
        local: Data and graphs.
        optimiser: Maps a gradient to a step.
        p: Whole vector at the start.
        moments: State of the optimiser from earlier rounds; a fresh one where it does not fit.
        steps: Number of steps; with 0 the loss is measured and nothing moves.
        of_round: Round, by which minibatches are drawn.
        fresh: True draws a minibatch for every step, False one for all.
        gradient: Loss and gradient of a minibatch; None is the bundle's own.
        after: Applied to the weights after every step.
    """
    moments, losses, used, batch = resumed(optimiser, p, moments), [], 0, None
    gradient_of = partial(loss_gradient, local) if gradient is None else gradient
    for batch in local.batches(max(steps, 1), of_round, fresh=fresh):
        loss, g = gradient_of(p, batch)
        losses.append(loss)
        used = used + len(batch) if fresh else len(batch)
        if steps:
            p, moments = optimiser_step(optimiser, p, g, moments, after)
    report = {"loss": float(np.mean(losses)), "n": float(used)} if losses else {}
    return TrainingResult(p, moments, report, batch)


def loss_gradient(local: TrainingContext, p: Vector, batch: Batch) -> tuple[float, Vector]:
    """Return the loss on a minibatch and its gradient, by the bundle's graph."""
    loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
    return float(loss), g


@dataclass(frozen=True, slots=True, eq=False)
class LocalState:
    """State of a device: its whole vector, personal layers included."""

    p: Vector
    moments: State | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"p": self.p, **(self.moments or {})}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LocalState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        return cls(arrays["p"], saved(arrays))


def fedavg(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the change by local steps: received minus trained, on shared layers.

    Personal layers keep their training and are in no answer. A device without windows adopts the
    received layers and answers nothing; neither does one whose weights became non-finite, which
    keeps its earlier personal layers.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = _received(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        placed = local.spec.place(state.p, received)
        if event.ask == END:
            return replace(state, p=placed), ()
        trained = _trained(local, settings, state, placed, event)
        if not (trained.report and trained.is_finite):
            return replace(state, p=placed), ()
        change = received - local.spec.shared(trained.p)
        kept = trained.moments if settings.keep_moments else None
        return LocalState(trained.p, kept), (answer(local, event, change, trained.report),)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def fedsgd(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the gradient at the received model (FedSGD); shared layers stay.

    The server does not update personal layers: they take the same step here, at the task's rate.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = _received(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        p = local.spec.place(state.p, received)
        for batch in () if event.ask == END else local.batches(1, event.round, fresh=True):
            loss, g = loss_gradient(local, p, batch)
            plain = sgd(settings.rate_of(event.values))
            trained = TrainingResult(
                *optimiser_step(plain, p, g, plain.init(p)), {"loss": loss, "n": float(len(batch))}
            )
            if not trained.is_finite:
                break
            after = LocalState(local.spec.place(trained.p, received))
            return after, (answer(local, event, local.spec.shared(g), trained.report),)
        return replace(state, p=p), ()

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def _received(event: Event, spec: ParamSpec) -> Vector | None:
    """Return the vector that a task carries, or None for any other event."""
    if not isinstance(event, Task) or event.ask not in (TRAIN, END):
        return None
    w = event.arrays.get("w")
    return w if w is not None and w.shape == (spec.shared_size,) else None


def _trained(
    local: TrainingContext, settings: LocalSgd, state: LocalState, placed: Vector, task: Task
) -> TrainingResult:
    """Train for one round; a task of no steps is still answered, with the received model's loss."""
    prox = float(task.values.get("prox", settings.prox))
    pull = add_proximal(local.spec, prox, local.spec.shared(placed))
    return train(
        local,
        chain(pull, settings.optimiser_of(task.values)),
        placed if settings.start == "received" else state.p,
        state.moments if settings.keep_moments else None,
        steps=settings.steps_of(task.values),
        of_round=task.round,
        fresh=settings.minibatch == "fresh",
    )


def answer(
    local: TrainingContext, task: Task, vector: Vector, report: Scalars, check: bytes = b""
) -> Update:
    """Return the update that answers a task."""
    return Update(local.client, task.round, task.base, vector, report, check)
