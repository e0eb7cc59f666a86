"""Answer with the sums of the device's windows; forecast with a personal solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.standardise import CONSTANT
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector

CHUNK = 128
"""Windows whose inputs are in memory at once."""


def _nothing() -> Array:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticState:
    """State of a device."""

    p: Vector  # the vector received last
    # the vector to forecast with: the fleet's constants, and coefficients of this device
    own: Vector
    # the vector that ``own`` was drawn towards: that of all other devices, if known
    towards: Array = field(default_factory=_nothing)
    base: int = -1  # version of the last task; -1 without any
    # λ of every output, as ``own`` was solved; empty if it was not
    strengths: Array = field(default_factory=_nothing)
    # outputs of ``own`` that are drawn towards zero, not towards the fleet
    alone: Array = field(default_factory=_nothing)
    upto: int = -1  # number of the newest window in ``own``; -1 if there is none
    # the last task's statistic, if it leaves in a sum alone, and the begin of that sum's period,
    # Unix milliseconds; empty, and 0, if it was sent
    summed: Array = field(default_factory=_nothing)
    period: int = 0

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        vectors = {"p": self.p, "own": self.own, "towards": self.towards}
        chosen = {"strengths": self.strengths, "alone": self.alone.astype(np.float32)}
        numbers = {"base": np.array(self.base), "upto": np.array(self.upto)}
        kept = {"summed": self.summed, "period": np.array(self.period)} if self.period else {}
        return {**vectors, **chosen, **numbers, **kept}

    def model(self) -> dict[str, Array]:
        """Return the vector to forecast with, and the statistic to which new windows are added."""
        if not self.strengths.size:
            return {"p": self.own}
        chosen = {"strengths": self.strengths, "alone": self.alone > 0.0}
        return {"p": self.own, "fleet": self.towards, **chosen, "upto": np.array(self.upto)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> AnalyticState:
        """Rebuild a state from the result of ``arrays``; an older one has no λ.

        The state of a device alone has one vector, which is its own.

        Raises:
            KeyError: A vector is missing.
        """
        names = ("towards", "strengths", "alone", "summed")
        chosen = {n: arrays.get(n, _nothing()) for n in names}
        base, upto, period = (
            int(arrays.get(name, other))
            for name, other in (("base", -1), ("upto", -1), ("period", 0))
        )
        own = arrays.get("own", arrays["p"])
        return cls(arrays["p"], own, base=base, upto=upto, period=period, **chosen)


def analytic(local: TrainingContext, _settings: LocalSgd) -> Half[AnalyticState]:
    """Answer ``train`` with the statistic of all windows under the received vector.

    With every received vector, also the final one, the device solves its own coefficients again,
    drawn towards received ones as strongly as its held-back windows recommend. A task brings the
    vector of all other devices (in a large fleet, or under a rule, that of all); the final model
    contains the device's own windows. So after it the device is drawn towards its last task's, if
    that was of the version before: not if a device was unlearned since. While the received
    coefficients are zero there is nothing to be drawn to, and the device forecasts with them. A
    device without windows adopts the vector and answers nothing. A task with a ``period`` is not
    answered either: its statistic is kept for the sum of that period.

    A bundle of profiles has a half of its own.
    """
    if any(layer.name == "own" for layer in local.spec.layers):
        from edge_sdk.extensions.analytic.profile_half import profile  # noqa: PLC0415 - if it is one

        return profile(local, _settings)

    def apply(state: AnalyticState, event: Event) -> tuple[AnalyticState, Effects]:
        if not isinstance(event, Task) or event.ask not in (TRAIN, END):
            return state, ()
        w = event.arrays.get("w")
        if w is None or w.shape != (local.spec.shared_size,):
            return state, ()
        p = local.spec.place(state.p, w)
        is_end = event.ask == END
        towards = others(local, state, p, event) if is_end else p
        base = state.base if is_end else event.base
        found = _windows(local, p)
        if found is None:
            return AnalyticState(p, p, towards=towards, base=base), ()
        design, y = found
        after = replace(_solved(local, p, towards, design, y), base=base)
        if is_end:
            return after, ()
        weighted = np.asarray(event.values.get("weighted", 0.0) > 0.0)
        vector, loss = local.run("statistic", p=p, design=design, y=y, weighted=weighted)
        if period := int(event.values.get("period", 0.0)):  # it leaves in that period's sum alone
            return replace(after, summed=vector, period=period), ()
        report = {"loss": float(loss), "n": float(len(y))}
        return after, (answer(local, event, vector, report),)

    return Half(lambda p: AnalyticState(p, p), apply, model=AnalyticState.model)


def solved_alone(local: TrainingContext, p: Vector) -> Vector:
    """Return a device's own solution of all its windows, used while it has no fleet.

    It is drawn towards the coefficients received last, or towards zero, as its held-back windows
    recommend. A device that has not received the features' constants takes those of its windows.

    Args:
        local: Windows and functions of the bundle.
        p: The vector in use; returned as it is where there is no window.
    """
    count = coefficients_of(local.spec).start // 2
    base = np.array(p, np.float32)
    if not base[count : 2 * count].any():
        base[:count], base[count : 2 * count] = 0.0, 1.0
        found = _windows(local, base)
        if found is None:
            return p
        features = found[0][:, :, :count].reshape(-1, count)
        base[:count] = features.mean(axis=0, dtype=np.float64)
        spread = features.std(axis=0, dtype=np.float64)
        base[count : 2 * count] = np.where(spread > CONSTANT, spread, 0.0)
        del features, found
    found = _windows(local, base)
    if found is None:
        return p
    own = np.asarray(local.run("personal", p=base, design=found[0], y=found[1])[0], np.float32)
    return own if np.isfinite(own).all() else p


def others(local: TrainingContext, state: AnalyticState, p: Vector, event: Task) -> Array:
    """Return the vector to draw towards after the final model ``p``."""
    fixed = coefficients_of(local.spec).start
    before = state.towards
    is_next = event.base == state.base + 1 and before.shape == p.shape
    is_scaled_alike = is_next and bool((before[:fixed] == p[:fixed]).all())
    return before if is_scaled_alike and before[fixed:].any() else p


def coefficients_of(spec: ParamSpec) -> slice:
    layer = next(one for one in spec.layers if one.name == "coefficients")
    return slice(layer.offset, layer.offset + layer.size)


def _solved(
    local: TrainingContext, p: Vector, towards: Array, design: Array, y: Array
) -> AnalyticState:
    """Return the state with the device's own vector; the received one while it has no coefficient."""
    received, span = AnalyticState(p, p, towards=towards), local.span()
    if span is None or not towards[coefficients_of(local.spec)].any():
        return received
    own, strengths, alone = local.run("personal", p=towards, design=design, y=y)
    if not np.isfinite(own).all():
        return received
    return replace(
        received,
        own=np.asarray(own, np.float32),
        strengths=strengths.astype(np.float32),
        alone=alone.astype(np.float32),
        upto=span[1],
    )


def _windows(local: TrainingContext, p: Vector) -> tuple[Array, Array] | None:
    """Return design rows and targets of all windows, oldest first; None without any."""
    ends = local.span()
    if ends is None:
        return None
    design: Array | None = None
    targets, filled = [], 0
    for first in range(ends[0], ends[1] + 1, CHUNK):
        _, batch = local.named(np.arange(first, min(first + CHUNK, ends[1] + 1)))
        if not len(batch):
            continue
        (rows,) = local.run("design", p=p, x=batch.x)
        if design is None:  # one array for all: joining chunks would take their memory twice
            design = np.empty((ends[1] + 1 - ends[0], *rows.shape[1:]), np.float32)
        design[filled : filled + len(rows)] = rows
        filled += len(rows)
        targets.append(batch.y)
    return None if design is None else (design[:filled], np.concatenate(targets))
