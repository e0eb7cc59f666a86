"""FedNova's device half: local epochs of plain descent, and the change per step."""

from __future__ import annotations

import math

import numpy as np

from edge_sdk.methods.local_sgd import LocalSgd, LocalState, answer, train
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Effects, Event, Half, Task
from edge_sdk.shared_math.optim import sgd


def fednova(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with received minus trained, divided by the number of steps.

    The number of steps is that of ``epochs`` passes over the device's windows, at least 1 and at
    most the task's ``steps``. A device without windows answers nothing.
    """

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        if not isinstance(event, Task) or event.ask not in ("train", END):
            return state, ()
        w = event.arrays.get("w")
        if w is None or w.shape != (local.spec.shared_size,):
            return state, ()
        placed = local.spec.place(state.p, w)
        steps = _steps(local, settings, event)
        if event.ask == END or not steps:
            return LocalState(placed), ()
        trained = train(
            local,
            sgd(settings.rate_of(event.values)),
            placed,
            None,
            steps=steps,
            of_round=event.round,
        )
        if not (trained.report and trained.is_finite):
            return LocalState(placed), ()
        change = (w - local.spec.shared(trained.p)) / np.float32(steps)
        report = {**trained.report, "taken": float(steps)}
        return LocalState(trained.p), (answer(local, event, change, report),)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def _steps(local: TrainingContext, settings: LocalSgd, task: Task) -> int:
    batch = next(iter(local.batches(1, task.round, fresh=True)), None)
    if batch is None:
        return 0
    passes = float(task.values.get("epochs", 1.0)) * local.count / len(batch)
    return max(1, min(math.ceil(passes), settings.steps_of(task.values)))
