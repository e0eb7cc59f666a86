"""Answer with the sums of a device's profiles; forecast with a part of the device's own.

The functions of the bundle (``profile_model``) sum over windows; here are the passes. A device learns
from the windows that end at 00, 06, 12 and 18 local time, at most those of a year.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.half import AnalyticState, others
from edge_sdk.extensions.analytic.online_vector import NumberedRecord
from edge_sdk.extensions.analytic.profile_section import WIDTH
from edge_sdk.extensions.analytic.residual_paths import joined_residuals
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import Statistic
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, answer
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import END, Array, Effects, Event, Half, Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector

CHUNK = 32
"""Windows whose inputs are in memory at once."""
YEAR = 1464
"""Most windows that a device learns from: the newest ones."""
PASSES = 4
"""Passes of re-weighted least squares of an own part."""
NO_OWN_PART = 1e8
"""Strength from which there is no own part."""
LEARNED = 224
"""Windows of 56 days, for which the strengths are chosen: with more of them the penalty of the sum stays."""
BLENDED = 112
"""Windows of 28 days, from which the model is no longer blended with the device's mean profile."""
LEAST_NOISE = 1e-3
"""Least error of the naive forecast that divides a device's sums, in levels."""

Run = Callable[..., tuple[Array, ...]]
"""Function of the bundle by its name, with its arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class IssuedWindows:
    """The windows of a record that a device learns from."""

    record: NumberedRecord
    numbers: Ints  # ascending

    @classmethod
    def of(cls, run: Run, record: NumberedRecord) -> IssuedWindows:
        """Find the windows of a record; a change of daylight saving moves them by an hour."""
        span, found = record.span(), [np.zeros(0, np.int64)]
        if span is not None:
            first = record.named(np.array(span[:1]))[1].x
            wait, hour = (int(x) for x in run("wait", x=first)[0][0])
            every = np.arange(span[0] + wait % hour, span[1] + 1, hour)[-6 * YEAR :]
            for start in range(0, len(every), CHUNK):
                some = every[start : start + CHUNK]
                here, batch = record.named(some)
                if len(batch):
                    found.append(some[here][run("wait", x=batch.x)[0][:, 0] == 0])
        return cls(record, np.concatenate(found)[-YEAR:])

    def __len__(self) -> int:
        return len(self.numbers)

    def evenly(self, most: int) -> IssuedWindows:
        """Return equally spaced windows of the whole record."""
        count = min(most, len(self))
        return replace(self, numbers=self.numbers[np.arange(count) * len(self) // max(count, 1)])

    def newest(self, most: int) -> IssuedWindows:
        return replace(self, numbers=self.numbers[-most:])

    def blocks(self) -> Iterator[dict[str, Array]]:
        """Yield numbers, inputs and targets of the windows, some at once, oldest first."""
        for start in range(0, len(self.numbers), CHUNK):
            some = self.numbers[start : start + CHUNK]
            here, batch = self.record.named(some)
            yield {"number": some[here], "x": batch.x, "y": batch.y}


def profile(local: TrainingContext, _settings: LocalSgd) -> Half[AnalyticState]:
    """Answer ``train`` with the sums of all windows; solve the own part after the final model.

    As ``analytic`` does, the device forecasts with the coefficients of all other devices where it has
    received them. A device without windows adopts the vector and answers nothing.
    """

    def apply(state: AnalyticState, event: Event) -> tuple[AnalyticState, Effects]:
        if not isinstance(event, Task) or event.ask not in (TRAIN, END):
            return state, ()
        w = event.arrays.get("w")
        if w is None or w.shape != (local.spec.shared_size,):
            return state, ()
        p = local.spec.place(state.p, w)
        if event.ask == END:
            towards = others(local, state, p, event)
            after = AnalyticState(p, towards, towards=towards, base=state.base)
            windows = IssuedWindows.of(local.run, local)
            if len(windows):
                own = with_own_part(local.run, windows, towards, local.spec)
                after = replace(after, own=own, upto=int(windows.numbers[-1]))
            return after, ()
        after = replace(state, p=p, towards=p, base=event.base)
        windows = IssuedWindows.of(local.run, local)
        if not len(windows) or event.values.get("period"):
            return after, ()  # without windows, or asked for a sum, which profiles have none of
        is_weighted = event.values.get("weighted", 0.0) > 0.0
        vector, loss = summed(local.run, windows, p, is_weighted=is_weighted)
        report = {"loss": loss, "n": float(len(windows))}
        return after, (answer(local, event, vector, report),)

    return Half(lambda p: AnalyticState(p, p), apply, model=_model)


def _model(state: AnalyticState) -> dict[str, Array]:
    return {"p": state.own, "upto": np.array(state.upto)}


def naive_error(run: Run, windows: IssuedWindows, p: Vector) -> float:
    """Return the mean error of last week's same slot, in levels, as the sums are divided by it.

    Windows that know less than a week count only where there are no others.
    """
    found = (run("noise", p=p, x=one["x"], y=one["y"]) for one in windows.blocks())
    totals, counts = _added(found)
    place = 0 if counts[0] else 1
    return max(float(totals[place] / max(counts[place], 1.0)), LEAST_NOISE)


def summed(
    run: Run, windows: IssuedWindows, p: Vector, *, is_weighted: bool
) -> tuple[Vector, float]:
    """Return a device's statistic in a pass, as a vector, and its mean error over the naive one."""
    noise, weighted = np.asarray(naive_error(run, windows, p)), np.asarray(is_weighted)
    sums, rows, missed = _added(
        run("statistic", p=p, weighted=weighted, noise=noise, **one) for one in windows.blocks()
    )
    loss = float(missed) / max(float(rows.sum()), 1.0)
    (vector,) = run("normalised", sums=sums, rows=rows, count=np.asarray(len(windows)))
    return vector, loss


def with_own_part(run: Run, windows: IssuedWindows, p: Vector, spec: ParamSpec) -> Vector:
    """Return the vector with the device's own part, residual days and share of the model.

    Args:
        windows: At least one.
        p: Vector with the coefficients to start from; an own part in it is not read.

    Returns:
        ``p`` where no finite one is found.
    """
    places = {one.name: slice(one.offset, one.offset + one.size) for one in spec.layers}
    last = windows.newest(1)
    stage = int(run("stage", p=p, x=next(last.blocks())["x"])[0][0])
    strength = float(p[places["strengths"]][stage])
    if strength < NO_OWN_PART:
        strength *= min(1.0, LEARNED / len(windows))
    own = own_parts(run, windows, p, strength)
    made = np.array(p, np.float32)
    shape = next(one.shape for one in spec.layers if one.name == "residuals")
    prior = made[places["residuals"]].reshape(shape).astype(np.float64)
    # of the whole record: the newest month alone does not show how a season moves its days' sums
    judged = windows.evenly(len(prior))
    found = [run("own_errors", p=p, own=own, **one) for one in judged.blocks()]
    residuals = np.concatenate([one[0] for one in found])
    losses = np.sum([one[1] for one in found], axis=0)
    made[places["residuals"]] = joined_residuals(residuals, prior, len(prior)).ravel()
    # the same for the expected value: one of its own follows single days too far
    made[places["own"]] = np.tile(own[2], 2)
    if len(windows) >= BLENDED:
        made[places["share"]] = 1.0
    elif losses.all():
        made[places["share"]] = run("share", losses=losses)[0]
    return made if np.isfinite(made).all() else p


def own_parts(run: Run, windows: IssuedWindows, p: Vector, strength: float) -> Floats:
    """Return own parts fitted to the even weeks, the odd weeks and all weeks, shape ``(3, W)``.

    Each is what ``profile_form.own_part`` returns for its rows.
    """
    own = np.zeros((3, WIDTH))
    for _ in range(PASSES if strength < NO_OWN_PART else 0):
        sums, rows = _added(run("own_sums", p=p, own=own, **one) for one in windows.blocks())
        for k in range(3):
            count, weight = rows[k]
            if count >= 2.0:
                heavy = sums[k] * (count / weight)
                one = Statistic(heavy[None, :-WIDTH], heavy[None, -WIDTH:], _NONE, _NONE, count)
                own[k] = ridge(one, strength * count)[0]
    return own


_NONE = np.zeros(1)


def _added(parts: Iterator[tuple[Array, ...]]) -> list[Floats]:
    """Add up results as they are computed, with two of them in memory at once."""
    total = [np.array(one, np.float64) for one in next(parts)]
    for part in parts:
        for whole, one in zip(total, part, strict=True):
            np.add(whole, one, out=whole)
        del part, one  # before the next are made
    return total
