"""Train with local steps: the averaging family's device half, with a proximal term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from edge_sdk.methods.optim import OptimiserState, Rated, adam, sgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.wire.contract.manifest import Training
from edge_sdk.wire.contract.method import END, Array, Effects, Event, Half, Task, Update
from edge_sdk.wire.contract.parameter_layout import ParamSpec, Vector

TRAIN = "train"
"""The ask that the halves here answer; at ``END`` they only adopt the final model."""


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
    """

    optimiser: Rated = adam
    rate: float = 1e-3
    steps: int = 4
    prox: float = 0.0
    minibatch: Literal["fixed", "fresh"] = "fixed"
    start: Literal["received", "own"] = "received"
    keep_moments: bool = False

    @classmethod
    def of(cls, training: Training) -> LocalSgd:
        """Return the settings that a bundle recommends."""
        betas = {"beta1": training.beta1, "beta2": training.beta2, "eps": training.eps}
        optimiser = partial(adam, **betas) if training.optimiser == "adam" else sgd
        return cls(optimiser, training.rate, training.steps, minibatch=training.minibatch)


@dataclass(frozen=True, slots=True, eq=False)
class LocalState:
    """State of a device: its whole vector, personal layers included."""

    p: Vector
    moments: OptimiserState | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        if self.moments is None:
            return {"p": self.p}
        taken, first, second = self.moments
        return {"p": self.p, "taken": np.array(taken), "first": first, "second": second}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> LocalState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        if "taken" not in arrays:
            return cls(arrays["p"])
        moments = OptimiserState(int(arrays["taken"]), arrays["first"], arrays["second"])
        return cls(arrays["p"], moments)


def steps(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
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
        trained, report = _train(local, settings, state, placed, event)
        if not report or not _finite(report["loss"], trained.p):
            return replace(state, p=placed), ()
        return trained, (_answer(local, event, received - local.spec.shared(trained.p), report),)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def gradient(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the gradient at the received model (FedSGD); shared layers stay.

    The server does not update personal layers: they take the same step here, at the task's rate.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        received = _received(event, local.spec)
        if received is None or not isinstance(event, Task):
            return state, ()
        p = local.spec.place(state.p, received)
        for batch in () if event.ask == END else local.batches(1, event.round, fresh=True):
            loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
            plain = sgd(float(event.values.get("rate", settings.rate)))
            stepped, _ = plain.update(p, g, plain.init(p))
            if not _finite(float(loss), stepped):
                break
            report = {"loss": float(loss), "n": float(len(batch))}
            after = LocalState(local.spec.place(stepped, received))
            return after, (_answer(local, event, local.spec.shared(g), report),)
        return replace(state, p=p), ()

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def _received(event: Event, spec: ParamSpec) -> Vector | None:
    """Return the vector that a task carries, or None for any other event."""
    if not isinstance(event, Task) or event.ask not in (TRAIN, END):
        return None
    w = event.arrays.get("w")
    return w if w is not None and w.shape == (spec.shared_size,) else None


def _train(
    local: TrainingContext, settings: LocalSgd, state: LocalState, placed: Vector, task: Task
) -> tuple[LocalState, dict[str, float]]:
    """Take the steps of one round; an empty report means that there were no windows to learn from.

    A task of no steps is still answered, with the loss of the model as it was received.
    """
    wanted = int(task.values.get("steps", settings.steps))
    prox = float(task.values.get("prox", settings.prox))
    optimiser = settings.optimiser(float(task.values.get("rate", settings.rate)))
    p = placed if settings.start == "received" else state.p
    moments = state.moments if settings.keep_moments else None
    moments = optimiser.init(p) if moments is None else moments
    fresh, losses, used = settings.minibatch == "fresh", [], 0
    for batch in local.batches(max(wanted, 1), task.round, fresh=fresh):
        loss, g = local.run("gradient", p=p, x=batch.x, y=batch.y)
        losses.append(float(loss))
        used = used + len(batch) if fresh else len(batch)
        if wanted:
            pulled = g + local.spec.lift(prox * local.spec.shared(p - placed)) if prox else g
            p, moments = optimiser.update(p, pulled, moments)
    report = {"loss": float(np.mean(losses)), "n": float(used)} if losses else {}
    return LocalState(p, moments if settings.keep_moments else None), report


def _finite(loss: float, p: Vector) -> bool:
    return math.isfinite(loss) and bool(np.isfinite(p).all())


def _answer(local: TrainingContext, task: Task, vector: Vector, report: dict[str, float]) -> Update:
    return Update(local.client, task.round, task.base, vector, report)
