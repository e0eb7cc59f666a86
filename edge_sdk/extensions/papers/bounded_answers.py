"""Answer local training with another vector than FedAvg: whole weights, or vectors of bounded length (NbAFL, UDP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, LocalState, fedavg
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import Effects, Event, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector


def bounded_weights(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer with the trained shared weights, no longer than the task's ``bound`` (NbAFL).

    Only the answer is scaled; this device continues to forecast with its own model. The privacy
    mechanism adds noise to the answer of this half.
    """
    return answering(
        local, settings, lambda trained, _, task: norm_clipped(trained, _bound(task)), "bound"
    )


def bounded_difference(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer with the difference, no longer than the task's ``bound`` (UDP)."""
    return answering(
        local, settings, lambda _, difference, task: norm_clipped(difference, _bound(task)), "bound"
    )


def norm_clipped(vector: Vector, limit: float) -> Vector:
    """Return the vector, scaled to the Euclidean norm ``limit`` where it is longer.

    Computed in float64, so that the length is right in every dtype.

    >>> norm_clipped(np.array([3.0, 4.0], np.float32), 2.0).tolist()
    [1.2000000476837158, 1.600000023841858]
    >>> norm_clipped(np.array([3.0, 4.0], np.float32), 5.0).tolist()
    [3.0, 4.0]
    """
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.sum(wide**2)))
    if length <= limit:
        return vector
    return (wide * (limit / length)).astype(vector.dtype)


def _bound(task: Task) -> float:
    return float(task.values["bound"])


def whole_weights(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` with the trained shared weights instead of the difference (FedAsync)."""
    return answering(local, settings, lambda trained, _difference, _task: trained)


def answering(
    local: TrainingContext,
    settings: LocalSgd,
    vector_of: Callable[[Vector, Vector, Task], Vector],
    *needs: str,
) -> Half[LocalState]:
    """Return a half that trains as ``fedavg`` does and answers with another vector.

    Args:
        local: The device's windows and graphs.
        vector_of: Returns the answer from the trained shared weights, the difference and the task.
        needs: Numbers of a task; one without them changes nothing.
    """
    inner = fedavg(local, settings)

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        if not isinstance(event, Task) or event.ask != TRAIN:
            return inner.apply(state, event)
        if any(name not in event.values for name in needs):
            return state, ()
        after, effects = inner.apply(state, event)
        trained = local.spec.shared(after.p)
        return after, tuple(
            replace(e, vector=vector_of(trained, e.vector, event)) if isinstance(e, Update) else e
            for e in effects
        )

    return Half(inner.init, apply, inner.model)
