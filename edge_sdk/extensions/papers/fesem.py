"""Train from the centre of the device's cluster: FeSEM's device half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.extensions.papers.bounded_answers import whole_weights
from edge_sdk.methods.local_sgd import LocalSgd, LocalState
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """State of a device in one cluster."""

    fitted: LocalState  # its own model after plain local steps
    answered: int = 0

    @property
    def p(self) -> Vector:
        return self.fitted.p

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {**self.fitted.arrays(), "answered": np.array(self.answered)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ClusterState:
        """Rebuild a state from the result of ``arrays``."""
        return cls(LocalState.from_arrays(arrays), int(arrays["answered"]))


def fesem_half(local: TrainingContext, settings: LocalSgd) -> Half[ClusterState]:
    """Answer ``train`` with the weights after local steps from the task's centre.

    The centre enters the proximal term, as FedProx's received model does. Every step draws a
    minibatch of its own, whatever the bundle recommends: clusters are formed by the weights, and
    steps over one minibatch depend more on it than on the device. At the end of the run, a device
    that has answered keeps its model: the final model is the average over clusters to which it does
    not belong. One that never answered adopts it.
    """
    inner = whole_weights(local, replace(settings, minibatch="fresh"))

    def apply(state: ClusterState, event: Event) -> tuple[ClusterState, Effects]:
        if isinstance(event, Task) and event.ask == END and state.answered:
            return state, ()
        fitted, effects = inner.apply(state.fitted, event)
        if fitted is state.fitted:
            return state, ()
        return replace(state, fitted=fitted, answered=state.answered + len(effects)), effects

    def model(state: ClusterState) -> Mapping[str, Array]:
        return inner.model(state.fitted)

    return Half(lambda p: ClusterState(inner.init(p)), apply, model)
