"""Forecast with the model of a bundle, or with the forecast that an extension serves in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from edge_sdk.config import ForecastSection
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import POINT, EndsOf, Forecast, fan, forecast_of, predict
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.run_role import RunnableBundle


class ServedForecast(Protocol):
    """Forecasts of an extension that are served instead of the bundle's model, over the same horizon."""

    @property
    def source(self) -> str:
        """Name of the forecast's source."""

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each part of a mean, by name; empty for any other."""

    def quantiles(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats:
        """Forecast from origins at the model's levels, ``(n, horizon, levels)``, in the series' unit."""


class Forecaster:
    """The forecasts of one bundle, with the model's own interval.

    A row of the index may name another class by ``forecaster``, which moves the interval's ends. It
    overrides the hooks below.

    Attributes:
        kept: State of such a class, to be saved; None where there is none.
        served: What is served instead of the bundle's model; None if nothing is.
    """

    def __init__(self, settings: ForecastSection, bundle: RunnableBundle) -> None:
        self.settings, self.bundle = settings, bundle
        self.levels = bundle.manifest.loss.levels or POINT
        self.kept: Any = None
        self.served: ServedForecast | None = None

    # --- hooks ------------------------------------------------------------------------------------

    def recall(self, store: DeviceStore) -> None:
        """Restore the saved state, if it is of this bundle."""

    def save(self, store: DeviceStore) -> None:
        """Save the state; raise ``StoreFull`` where there is no space, and keep the old one."""

    def forget(self) -> None:
        """Discard the state."""

    def calibrate(self, p: Vector, frame: ChannelFrame, trained: Vector) -> None:
        """Calibrate on new readings, by the vector of the last forecast and that of the last training."""

    def follow(self, p: Vector, frame: ChannelFrame, trained: Vector | None) -> None:
        """Follow the readings up to the newest, before a forecast."""

    def ends(self, p: Vector, frame: ChannelFrame, graph: Graph) -> EndsOf | None:  # noqa: ARG002
        """Return the calibration of the ends of the next interval; None for the ends of the model."""
        return None

    def intervals(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats | None:
        """Return the intervals of forecasts from some origins, ``(n, horizon, 2)``; None if none."""
        if len(self.levels) == 1:
            return None
        return np.asarray(self.fan(p, frame)(origins)[:, :, [0, -1]])

    # --- forecasts --------------------------------------------------------------------------------

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
        """Forecast the values after the newest reading."""
        if len(frame):
            self.follow(p, frame, trained)
        if self.served is not None and frame.is_ready:
            newest = np.array([len(frame) - 1], np.int64)
            predicted = self.served.quantiles(p, frame, newest)[0]
            if np.isfinite(predicted[:, self.levels.index(0.5)]).all():
                ends = self.ends(p, frame, self.bundle.graphs["forecast"])
                found = forecast_of(predicted, frame, self.levels, ends, self.served.source)
                return replace(found, weights=self.served.weights)
        found = predict(graph, p, frame, self.levels, self.ends(p, frame, graph))
        return replace(found, source=source) if found.source == "model" else found

    def fan(self, p: Vector, frame: ChannelFrame) -> Callable[[Ints], Floats]:
        """Return the function from origins to the model's quantiles, ``(n, horizon, levels)``."""
        graph, levels = self.bundle.graphs["forecast"], self.levels
        return lambda origins: fan(graph, p, frame, origins, levels)
