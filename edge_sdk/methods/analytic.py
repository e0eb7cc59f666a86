"""Answer with the sums of the device's windows; forecast with a personal solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.wire.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.wire.contract.parameter_layout import Vector

CHUNK = 512
"""Windows whose inputs are in memory at once."""


def _nothing() -> Array:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticState:
    """State of a device.

    Attributes:
        p: The fleet's vector, as received last.
        own: The vector to forecast with: the fleet's constants, and coefficients of this device.
        strengths: λ of every output, as ``own`` was solved; empty if it was not.
        alone: Outputs of ``own`` that are drawn towards zero, not towards the fleet.
        upto: Number of the newest window in ``own``; -1 if there is none.
    """

    p: Vector
    own: Vector
    strengths: Array = field(default_factory=_nothing)
    alone: Array = field(default_factory=_nothing)
    upto: int = -1

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        chosen = {"strengths": self.strengths, "alone": self.alone.astype(np.float32)}
        return {"p": self.p, "own": self.own, **chosen, "upto": np.array(self.upto, np.int64)}

    def model(self) -> dict[str, Array]:
        """Return the vector to forecast with, and what new windows need to be added to it."""
        if not self.strengths.size:
            return {"p": self.own}
        chosen = {"strengths": self.strengths, "alone": self.alone > 0.0}
        return {"p": self.own, "fleet": self.p, **chosen, "upto": np.array(self.upto, np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> AnalyticState:
        """Rebuild a state from what ``arrays`` returned; an older one has no λ.

        Raises:
            KeyError: A vector is missing.
        """
        strengths, alone = (arrays.get(name, _nothing()) for name in ("strengths", "alone"))
        return cls(arrays["p"], arrays["own"], strengths, alone, int(arrays.get("upto", -1)))


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
        after = _solved(local, p, design, y)
        if event.ask == END:
            return after, ()
        weighted = np.asarray(event.values.get("weighted", 0.0) > 0.0)
        vector, loss = local.run("statistic", p=p, design=design, y=y, weighted=weighted)
        report = {"loss": float(loss), "n": float(len(y))}
        return after, (answer(local, event, vector, report),)

    return Half(lambda p: AnalyticState(p, p), apply, model=AnalyticState.model)


def _solved(local: TrainingContext, p: Vector, design: Array, y: Array) -> AnalyticState:
    """Return the state with the device's own vector; the received one while it has no coefficient."""
    received = AnalyticState(p, p)
    layer = next(one for one in local.spec.layers if one.name == "coefficients")
    span = local.span()
    if span is None or not p[layer.offset : layer.offset + layer.size].any():
        return received
    own, strengths, alone = local.run("personal", p=p, design=design, y=y)
    if not np.isfinite(own).all():
        return received
    chosen = {"strengths": strengths.astype(np.float32), "alone": alone.astype(np.float32)}
    return replace(received, own=np.asarray(own, np.float32), upto=span[1], **chosen)


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
