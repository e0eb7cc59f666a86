"""Answer local training with whole weights, or with vectors of bounded length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edge_sdk.methods.local_sgd import LocalSgd, LocalState, steps
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.wire.contract.method import Effects, Event, Half, Task, Update
from edge_sdk.wire.contract.parameter_layout import Vector


def weights(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the trained shared weights instead of the difference (FedAsync)."""
    return _answering(local, settings, lambda trained, _difference, _task: trained)


def bounded_weights(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer with the trained shared weights, no longer than the task's ``bound`` (NbAFL).

    Only the answer is scaled; this device continues to forecast with its own model. The privacy
    mechanism adds noise to the answer of this half.
    """
    return _answering(
        local, settings, lambda trained, _, task: within(trained, _bound(task)), "bound"
    )


def bounded_difference(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer with the difference, no longer than the task's ``bound`` (UDP)."""
    return _answering(
        local, settings, lambda _, difference, task: within(difference, _bound(task)), "bound"
    )


def within(vector: Vector, bound: float) -> Vector:
    """Return the vector, scaled to the Euclidean length ``bound`` where it is longer.

    >>> within(np.array([3.0, 4.0], np.float32), 2.0).tolist()
    [1.2000000476837158, 1.600000023841858]
    >>> within(np.array([3.0, 4.0], np.float32), 5.0).tolist()
    [3.0, 4.0]
    """
    length = float(np.sqrt(np.sum(vector.astype(np.float64) ** 2)))
    if length <= bound:
        return vector
    return (vector.astype(np.float64) * (bound / length)).astype(np.float32)


def _answering(
    local: TrainingContext,
    settings: LocalSgd,
    said: Callable[[Vector, Vector, Task], Vector],
    *needs: str,
) -> Half[LocalState]:
    """Train as ``steps`` does and put ``said(trained, difference, task)`` into its answer.

    A task without a number that the answer ``needs`` changes nothing.
    """
    inner = steps(local, settings)

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        if not isinstance(event, Task) or event.ask != "train":
            return inner.apply(state, event)
        if any(name not in event.values for name in needs):
            return state, ()
        after, effects = inner.apply(state, event)
        trained = local.spec.shared(after.p)
        return after, tuple(
            replace(e, vector=said(trained, e.vector, event)) if isinstance(e, Update) else e
            for e in effects
        )

    return Half(inner.init, apply, inner.model)


def _bound(task: Task) -> float:
    return float(task.values["bound"])
