"""Train from the device's own model with a proximal term to a mixture: PFL's device half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.extensions.papers.chosen_model import FLEET, LAST, OWN, ChosenModel, fleet_choice
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer, train
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Scalars, Task
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.fedavg import TrainingResult
from edge_sdk.shared_math.optim import add_proximal, chain


@dataclass(frozen=True, slots=True, eq=False)
class PersonalState(ChosenModel):
    """State of a device: its model, the chosen one, and the steps to take at the end of the run."""

    tune: int = 0  # number of steps to take from the chosen model at the end of the run
    rate: float = 0.0  # learning rate of these steps

    def arrays(self) -> dict[str, Array]:
        tune = {"tune": np.array(self.tune), "tune_rate": np.array(self.rate)}
        return ChosenModel.arrays(self) | tune

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> PersonalState:
        one = ChosenModel.from_arrays(arrays)
        tune, rate = int(arrays["tune"]), float(arrays["tune_rate"])
        return cls(one.p, one.answered, one.moments, one.kept, tune, rate)


def pfl_half(local: TrainingContext, settings: LocalSgd) -> Half[PersonalState]:
    """Answer ``train`` with the shared weights after steps from the device's *own* model.

    The task's ``w`` is the mixture for this device. It enters only the proximal term, with weight
    ``prox``; in the first task of all it is also the starting point. The model to forecast with is
    the last one; or the one with the lowest loss on held-back windows, by this device's own loss
    (``choice`` ``OWN``) or by the fleet's, whose best round is in ``kept`` (``FLEET``): with the
    next task, or the final model.

    At the end of the run, the chosen model is tuned for as many steps as a round has, without a
    proximal term (``tune``), and the result is discarded if it is worse. The tuned model stays on
    the device.

    Personal layers have no proximal term and stay on the device. A device without windows answers
    nothing; neither does one whose weights became non-finite, which restarts at the mixture.
    """
    spec = local.spec

    def apply(state: PersonalState, event: Event) -> tuple[PersonalState, Effects]:
        match event:
            case Task(ask=ask, arrays={"w": w}) if w.shape != (spec.shared_size,):
                return state, ()
            case Task(ask=ask, arrays={"w": w}) if ask == TRAIN:
                return _answered(local, settings, state, event, w)
            case Task(ask=ask, arrays={"w": w}) if ask == END and not state.answered:
                return replace(state, p=spec.place(state.p, w)), ()
            case Task(ask=ask) if ask == END and state.answered:
                return _tuned(local, settings, fleet_choice(state, event.values), event), ()
        return state, ()

    return Half(PersonalState, apply, model=lambda state: {"p": state.chosen})


def _answered(
    local: TrainingContext, settings: LocalSgd, state: PersonalState, task: Task, w: Vector
) -> tuple[PersonalState, Effects]:
    values, spec = task.values, local.spec
    state = _with_choice(state, values)
    is_received = not state.answered or values.get("received", 0.0) == 1.0
    start = replace(state, p=spec.place(state.p, w)) if is_received else state
    if values.get("fresh", 0.0) == 1.0:
        start = replace(start, moments=None)
    trained = _trained(local, settings, start, task, w)
    if not trained.report:
        return (state if state.answered else start), ()
    if not trained.is_finite:
        return replace(state, p=spec.place(state.p, w), moments=None), ()
    moved = replace(start, p=trained.p, moments=trained.moments)
    moved, loss = _chosen(local, moved, values.get("choice", LAST))
    tune = settings.steps_of(values) if values.get("tune", 0.0) == 1.0 else 0
    moved = replace(moved, answered=task.round, tune=tune, rate=settings.rate_of(values))
    report = dict(trained.report)
    if loss is not None and math.isfinite(loss):
        report["validation"] = loss
    return moved, (answer(local, task, spec.shared(moved.p), report),)


def _with_choice(state: PersonalState, values: Scalars) -> PersonalState:
    choice = values.get("choice", LAST)
    if choice == FLEET:
        return fleet_choice(state, values)
    return replace(state, kept=None) if choice == LAST and state.kept is not None else state


def _chosen(
    local: TrainingContext, moved: PersonalState, choice: float
) -> tuple[PersonalState, float | None]:
    """Choose between the kept model and the new one; return the loss too if the fleet chooses.

    Both are evaluated on the windows held back now: an earlier result may be out of date.
    """
    if choice == LAST:
        return moved, None
    loss = local.judged(moved.p)
    if choice != OWN:
        return moved, loss
    before = None if moved.kept is None else local.judged(moved.kept)
    if loss is None:
        return replace(moved, kept=None), None
    return (moved if before is not None and before < loss else replace(moved, kept=moved.p)), None


def _trained(
    local: TrainingContext, settings: LocalSgd, state: PersonalState, task: Task, w: Vector
) -> TrainingResult:
    values = task.values
    pull = add_proximal(local.spec, values.get("prox", settings.prox), w)
    return train(
        local,
        chain(pull, settings.optimiser_of(values)),
        state.p,
        state.moments,
        steps=settings.steps_of(values),
        of_round=task.round,
    )


def _tuned(
    local: TrainingContext, settings: LocalSgd, state: PersonalState, task: Task
) -> PersonalState:
    """Take a round of steps from the chosen model without proximal term; keep a better result."""
    base = replace(state, p=state.chosen, kept=None, tune=0, moments=None)
    if not state.tune:
        return base if state.kept is not None else state
    final = replace(task, values={"steps": float(state.tune), "rate": state.rate, "prox": 0.0})
    tuned = _trained(local, settings, base, final, local.spec.shared(base.p))
    if not tuned.report or not np.isfinite(tuned.p).all():
        return base
    before, after = local.judged(base.p), local.judged(tuned.p)
    if before is not None and after is not None and not after <= before:
        return base
    return replace(base, p=tuned.p)
