"""Answer with a moving average of the device's differences: momentum on the device, before a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.methods.local_sgd import LocalSgd, LocalState, fedavg
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector


@dataclass(frozen=True, slots=True, eq=False)
class MomentumState:
    """State of a device."""

    p: Vector
    average: Vector | None = None  # of its differences, on the shared layers; None before the first

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"p": self.p, **({} if self.average is None else {"average": self.average})}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> MomentumState:
        """Rebuild a state from the result of ``arrays``."""
        return cls(arrays["p"], arrays.get("average"))


def worker_momentum(local: TrainingContext, settings: LocalSgd) -> Half[MomentumState]:
    """Answer ``train`` with ``m <- beta m + (1 - beta) d``, where ``d`` is FedAvg's difference.

    The first answer is the difference itself. Honest answers then differ less from one another, and a
    small lie in each round has to differ from a long average.

    Reference:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021,
        algorithm 2, with differences of local steps in the gradients' place.
    """
    half = fedavg(local, settings)

    def apply(state: MomentumState, event: Event) -> tuple[MomentumState, Effects]:
        before = LocalState(state.p)
        after, effects = half.apply(before, event)
        if after is before or not isinstance(event, Task):
            return state, effects
        if event.ask == END or not effects:
            return replace(state, p=after.p), effects
        beta = np.float32(event.values.get("beta", 0.0))
        (update,) = (one for one in effects if isinstance(one, Update))
        average = np.asarray(update.vector, np.float32)
        if state.average is not None and state.average.shape == average.shape:
            average = beta * state.average + (np.float32(1.0) - beta) * average
        return MomentumState(after.p, average), (replace(update, vector=average),)

    return Half(MomentumState, apply, model=lambda state: {"p": state.p})
