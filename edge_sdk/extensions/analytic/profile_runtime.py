"""Run a bundle of profiles on a device: its own part follows the readings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from edge_sdk.extensions.analytic.bundle_form import reserve
from edge_sdk.extensions.analytic.online_vector import NumberedRecord
from edge_sdk.extensions.analytic.profile_half import IssuedWindows, with_own_part
from edge_sdk.extensions.analytic.profile_holidays import days_of, with_holidays
from edge_sdk.extensions.analytic.residual_paths import fitted_paths
from edge_sdk.forecasting.calendar_features import DAY, Ints, time_zone
from edge_sdk.forecasting.forecast import Forecast, least
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import BundleForm

GROWTH = 0.1
"""Share of a record's length after which the own part is solved again; a day at least."""


class ProfileForm(BundleForm):
    """A bundle of profiles on one device."""

    def __init__(self, learner: ModelRuntime) -> None:
        """Reserve the memory of the linear algebra.

        Raises:
            EdgeError: The limit of memory leaves too little, or a holiday is no date.
        """
        name = learner.manifest.name
        reserve(name)
        self.why_not_tuned = f"bundle {name} is solved for this device in closed form"
        self._learner = learner
        self._zone = time_zone(learner.config.forecast.time_zone)
        self._holidays = days_of(learner.config.tables["forecast.holidays"])
        self._before: Vector | None = None  # the vector that ``_after`` goes on from
        self._after, self._upto = np.zeros(0, np.float32), -1
        self._alone = -1  # newest window of the solution of a device alone

    def framed(self, frame: ChannelFrame) -> ChannelFrame:
        if not len(self._holidays):
            return frame
        return with_holidays(frame, self._learner.manifest, self._holidays, self._zone)

    def forget(self) -> None:
        self._before, self._alone = None, -1

    def renewal(self, model: Mapping[str, Array]) -> Callable[[Drawable], Vector] | None:
        learner = self._learner
        is_hidden = learner.mechanism.plan.point.is_on_readings
        if is_hidden or not learner.config.forecast.online or "upto" not in model:
            return None
        p = np.asarray(model["p"], np.float32)
        return partial(self._renewed, p, int(model["upto"]))

    def latest(self, trained: Vector) -> Vector:
        return self._after if self._before is trained else trained

    def completed(self, found: Forecast, p: Vector, frame: ChannelFrame) -> Forecast:
        """Return a forecast with equally likely paths that have its medians and intervals.

        Expected values are the paths' means. What is served instead of the model, or forecasts
        otherwise, has the model's spread.
        """
        if found.source in ("last day", "none") or not frame.is_ready:
            return found
        newest = np.array([len(frame) - 1], np.int64)
        _, made = self._learner.bundle.graphs["day"](p=p, x=frame.inputs(newest))
        paths = np.stack([frame.restore(one[None], newest)[0] for one in made[0]])
        if found.interval is None or found.coverage is None:
            paths += found.median - np.median(paths, axis=0)
        else:
            paths = fitted_paths(paths, found.median, found.interval, found.coverage)
        paths = np.maximum(paths, least(frame))
        return replace(found, expected=paths.mean(axis=0), paths=paths)

    def solved_alone(self, local: TrainingContext, p: Vector) -> Vector:
        span = local.span()
        if span is not None and self._is_due(span, self._alone):
            p, self._alone = self._solved(local, p), span[1]
        return p

    def solved(
        self,
        frame: ChannelFrame,
        p: Vector,
        common: Vector | None,  # noqa: ARG002 - the prior is in ``p``
        origins: Ints,
        *,
        is_alone: bool,  # noqa: ARG002 - as above
    ) -> Vector:
        return self._solved(Drawable(frame, origins), p)

    def _renewed(self, p: Vector, upto: int, windows: Drawable) -> Vector:
        """Return the vector with an own part of all windows, if many are new since it was solved."""
        span = windows.span()
        if span is None:
            return p
        if self._before is not p:
            self._before, self._after, self._upto = p, p, upto
        if self._is_due(span, self._upto):
            self._after, self._upto = self._solved(windows, p), span[1]
        return self._after

    def _is_due(self, span: tuple[int, int], upto: int) -> bool:
        day = DAY // self._learner.manifest.window.step_seconds
        return span[1] - upto >= max(day, GROWTH * (span[1] - span[0]))

    def _solved(self, record: NumberedRecord, p: Vector) -> Vector:
        bundle, spec = self._learner.bundle, self._learner.spec

        def run(name: str, **feeds: Array) -> tuple[Array, ...]:
            return bundle.graphs[name](**feeds)

        windows = IssuedWindows.of(run, record)
        if not len(windows):
            return p
        start = np.array(p, np.float32)
        for layer in spec.layers:  # not the residuals and the share of an earlier solution
            if layer.name in ("residuals", "share"):
                part = slice(layer.offset, layer.offset + layer.size)
                start[part] = bundle.initial[part]
        return with_own_part(run, windows, start, spec)
