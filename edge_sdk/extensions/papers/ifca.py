"""Choose the centre with the least loss and train from it: IFCA's device half."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_sdk.extensions.papers.bounded_answers import whole_weights
from edge_sdk.extensions.papers.fesem import ClusterState
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, loss_gradient
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task, Update


def ifca_half(local: TrainingContext, settings: LocalSgd) -> Half[ClusterState]:
    """Answer ``train`` with the weights after local steps from the best of the centres, and its number.

    The best centre has the least loss on one minibatch, the same for all centres, with the device's own
    personal layers. At the end of the run a device that has answered keeps its model.

    Reference:
        Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning,
        NeurIPS 2020, algorithm 1, with averages of models.
    """
    inner = whole_weights(local, replace(settings, minibatch="fresh"))

    def apply(state: ClusterState, event: Event) -> tuple[ClusterState, Effects]:
        if not isinstance(event, Task) or event.ask not in (TRAIN, END):
            return state, ()
        if event.ask == END:
            if state.answered:
                return state, ()
            return replace(state, fitted=inner.apply(state.fitted, event)[0]), ()
        centres = np.atleast_2d(event.arrays.get("centres", np.zeros(0, np.float32)))
        if centres.shape[1] != local.spec.shared_size:
            return state, ()
        number = _best(local, state, centres, event.round)
        own = replace(event, arrays={"w": centres[number]})
        fitted, effects = inner.apply(state.fitted, own)
        numbered = tuple(
            replace(e, values={**e.values, "cluster": float(number)})
            if isinstance(e, Update)
            else e
            for e in effects
        )
        return replace(state, fitted=fitted, answered=state.answered + len(effects)), numbered

    def init(p: Array) -> ClusterState:
        return ClusterState(inner.init(p))

    return Half(init, apply, lambda state: inner.model(state.fitted))


def _best(local: TrainingContext, state: ClusterState, centres: Array, of_round: int) -> int:
    """Return the number of the centre with the least loss, the first of equal ones; 0 without windows."""
    for batch in local.batches(1, of_round, fresh=True):
        losses = [
            loss_gradient(local, local.spec.place(state.p, centre), batch)[0] for centre in centres
        ]
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf)))
    return 0
