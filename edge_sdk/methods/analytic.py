"""Answer with the sums of the device's windows; forecast with a personal solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.wire.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.wire.contract.parameter_layout import Vector

CHUNK = 512
"""Windows whose inputs are in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticState:
    """State of a device.

    Attributes:
        p: The fleet's vector, as received last.
        own: The vector to forecast with: the fleet's constants, and coefficients of this device.
    """

    p: Vector
    own: Vector

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"p": self.p, "own": self.own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> AnalyticState:
        """Rebuild a state from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        return cls(arrays["p"], arrays["own"])


def analytic(local: TrainingContext, _settings: LocalSgd) -> Half[AnalyticState]:
    """Answer ``train`` with the statistic of all windows under the received vector.

    With every received vector, also the final one, the device solves its own coefficients again,
    drawn towards the received ones as strongly as its newest windows recommend. While the received
    coefficients are zero there is nothing to be drawn to, and the device forecasts with them. A
    device without windows adopts the vector and answers nothing.
    """

    def apply(state: AnalyticState, event: Event) -> tuple[AnalyticState, Effects]:
        if not isinstance(event, Task) or event.ask not in (TRAIN, END):
            return state, ()
        w = event.arrays.get("w")
        if w is None or w.shape != (local.spec.shared_size,):
            return state, ()
        p = local.spec.place(state.p, w)
        found = _windows(local, p)
        if found is None:
            return AnalyticState(p, p), ()
        design, y = found
        after = AnalyticState(p, _solved(local, p, design, y))
        if event.ask == END:
            return after, ()
        weighted = np.asarray(event.values.get("weighted", 0.0) > 0.0)
        vector, loss = local.run("statistic", p=p, design=design, y=y, weighted=weighted)
        report = {"loss": float(loss), "n": float(len(y))}
        return after, (answer(local, event, vector, report),)

    return Half(lambda p: AnalyticState(p, p), apply, model=lambda state: {"p": state.own})


def _solved(local: TrainingContext, p: Vector, design: Array, y: Array) -> Vector:
    """Return the device's own vector; the received one while its coefficients are zero."""
    layer = next(one for one in local.spec.layers if one.name == "coefficients")
    if not p[layer.offset : layer.offset + layer.size].any():
        return p
    (own,) = local.run("personal", p=p, design=design, y=y)
    return np.asarray(own, np.float32) if np.isfinite(own).all() else p


def _windows(local: TrainingContext, p: Vector) -> tuple[Array, Array] | None:
    """Return design rows and targets of all windows, oldest first; None without any."""
    ends = local.span()
    if ends is None:
        return None
    designs, targets = [], []
    for first in range(ends[0], ends[1] + 1, CHUNK):
        _, batch = local.named(np.arange(first, min(first + CHUNK, ends[1] + 1)))
        if len(batch):
            designs.append(local.run("design", p=p, x=batch.x)[0])
            targets.append(batch.y)
    return np.concatenate(designs), np.concatenate(targets)
