"""Forecast with intervals that are calibrated on the readings that arrive (conformal prediction)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from edge_sdk.config import ForecastSection
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.conformal import ConformalCalibration, CoverageTarget
from edge_sdk.forecasting.forecast import POINT, Forecast, fan, forecast_of, least, predict
from edge_sdk.forecasting.intervals import IntervalTracker, SavedCalibration
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.training.run_role import RunnableBundle

NARROWEST = 0.01
"""Minimum width of an interval, as a share of the series' scale."""


class ServedForecast(Protocol):
    """Forecasts of an extension that are served instead of the bundle's model, over the same horizon."""

    @property
    def source(self) -> str:
        """Name of the forecast's source."""

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each part of a mean, by name; empty for any other."""

    def quantiles(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats:
        """Forecast from origins at the model's levels, ``(n, horizon, levels)``, in the series' unit.

        Args:
            p: Whole vector of the bundle's model.
            origins: Rows with complete windows.
        """


class CalibratedForecaster:
    """The forecasts of one bundle.

    Args:
        settings: Section ``[forecast]`` of the configuration.

    Attributes:
        kept: State of the interval calibration, to be saved; None before the first forecast.
        served: What is served instead of the bundle's model; None if nothing is.
    """

    def __init__(self, settings: ForecastSection, bundle: RunnableBundle) -> None:
        self._settings, self._bundle = settings, bundle
        self.levels = bundle.manifest.loss.levels or POINT
        self.kept: SavedCalibration | None = None
        self.served: ServedForecast | None = None

    def restore(self, kept: SavedCalibration | None) -> None:
        """Set the saved state of the calibration; None begins again."""
        self.kept = kept

    def serve(self, served: ServedForecast | None) -> None:
        """Serve this instead of the bundle's model from now on; None serves the model."""
        self.served = served

    def forecast(
        self,
        p: Vector,
        frame: ChannelFrame,
        graph: Graph,
        source: str,
        trained: Vector | None = None,
    ) -> Forecast:
        """Forecast the values after the newest reading, with a calibrated interval.

        Args:
            graph: Graph to forecast with; perhaps one that the server helps.
            source: Name of that graph in the forecast.
            trained: Vector of the last training, where ``p`` has taken new windows since.
        """
        if len(frame) and self._is_calibrated:
            model = p if trained is None else trained
            self.kept = self._tracker(frame).follow(self.kept, frame, model, self._served(p, frame))
        if self.served is not None and frame.is_ready:
            found = self._forecast_served(p, frame, self.served)
            if np.isfinite(found.values).all():
                return found
        found = predict(graph, p, frame, self.levels, self._moved(p, frame, graph))
        return replace(found, source=source) if found.source == "model" else found

    def calibrate(self, p: Vector, frame: ChannelFrame, trained: Vector | None = None) -> None:
        """Update the calibration with new readings; nothing happens before the first forecast.

        Args:
            p: Parameter vector that has not seen these readings.
            trained: As for ``forecast``.
        """
        if self.kept is None or not self._is_calibrated:
            return
        if self.kept.calibration.upto < int(frame.times[-1]) // frame.window.step_seconds:
            tracker = self._tracker(frame)
            model = p if trained is None else trained
            self.kept = tracker.follow(self.kept, frame, model, self._served(p, frame))
            if self.kept.aided is not None:
                self.kept = tracker.aid(self.kept, frame, None)

    def intervals(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats | None:
        """Return the intervals of forecasts from some origins, ``(n, horizon, 2)``; None if none.

        Each is calibrated on earlier readings only.
        """
        if len(self.levels) == 1:
            return None
        if self._is_calibrated:
            return self._tracker(frame).served(frame, origins, self._fan(p, frame))
        return np.asarray(self._fan(p, frame)(origins)[:, :, [0, -1]])

    def _forecast_served(self, p: Vector, frame: ChannelFrame, served: ServedForecast) -> Forecast:
        predicted = served.quantiles(p, frame, np.array([len(frame) - 1], np.int64))[0]
        held = None
        if self.kept is not None and self._is_calibrated:
            held = self.kept.calibration, self._tracker(frame).aim
        found = forecast_of(predicted, frame, self.levels, held, served.source)
        return replace(found, weights=served.weights)

    def _moved(
        self, p: Vector, frame: ChannelFrame, graph: Graph
    ) -> tuple[ConformalCalibration, CoverageTarget] | None:
        if self.kept is None or not self._is_calibrated:
            return None
        tracker = self._tracker(frame)
        if graph is self._bundle.graphs["forecast"]:
            return self.kept.calibration, tracker.aim
        newest = np.array([len(frame) - 1], np.int64)
        self.kept = tracker.aid(self.kept, frame, fan(graph, p, frame, newest, self.levels)[0])
        assert self.kept.aided is not None
        return self.kept.aided, tracker.aim

    @property
    def _is_calibrated(self) -> bool:
        return len(self.levels) > 1 and self._settings.calibrate

    def _tracker(self, frame: ChannelFrame) -> IntervalTracker:
        settings = self._settings
        aim = CoverageTarget.of(
            self.levels,
            settings.coverage,
            gain=settings.step_size,
            least=least(frame),
            narrowest=NARROWEST * frame.scale.width,
        )
        return IntervalTracker(aim, settings.calibration_windows, self._bundle.manifest.digest)

    def _served(self, p: Vector, frame: ChannelFrame) -> Callable[[Ints], Floats]:
        if self.served is None:
            return self._fan(p, frame)
        return partial(self.served.quantiles, p, frame)

    def _fan(self, p: Vector, frame: ChannelFrame) -> Callable[[Ints], Floats]:
        return partial(self._quantiles, p, frame)

    def _quantiles(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats:
        return fan(self._bundle.graphs["forecast"], p, frame, origins, self.levels)
