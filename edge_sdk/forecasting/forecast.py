"""Forecast from a device's own vector, with a fallback when its window is incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.conformal import ConformalCalibration, CoverageTarget
from edge_sdk.forecasting.series import STREAMS
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import Graph
from edge_sdk.wire.contract.parameter_layout import Vector

SourceOf = Literal[
    "model",
    "without graph",
    "common model",
    "tuned model",
    "last good model",
    "own model",
    "trees",
    "fleet and trees",
    "blend",
    "last day",
    "last week",
    "weighted mean",
    "by step",
    "none",
]

NUMBERS = 65_536
"""Most numbers of the windows that a graph reads in one call."""

POINT = (0.5,)
"""The levels of a point model."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """One forecast over the horizon.

    Attributes:
        times: Start of each forecast interval, Unix seconds, shape ``(horizon,)``; before the first
            reading there is none, and ``times`` and ``values`` are empty.
        values: The medians, in ``unit``, shape ``(horizon,)``; NaN when the source is ``none``.
        unit: Unit of the values.
        source: ``model``; ``without graph``, the model of a split method without the server's
            graph; ``common model``, the fleet's solution in closed form; ``tuned model``, a copy
            tuned on this device; ``last good model``, that of an earlier day, after an alarm; ``own
            model``, one of this device alone; ``trees``, a wider one
            with trees; ``fleet and trees``, the model with trees of this device; ``blend`` of
            models, trees and seasons; ``last day`` and ``last week``, the same slots that much
            earlier; ``weighted mean`` of several of them; ``by step``, a choice for each block of
            steps; or ``none``.
        interval: Lower and upper ends, shape ``(horizon, 2)``, where the model predicts quantiles.
        coverage: Intended share of readings inside the interval; None without an interval.
        quantiles: The model's quantiles in order, shape ``(horizon, levels)``; not calibrated.
        levels: Levels of the quantiles, rising.
        calibrated: Number of earlier readings that calibrated the interval; 0 means uncalibrated.
        missing: What the model lacked, for people; empty where the model forecast.
        weights: Weight of each candidate in a ``weighted mean``; empty for any other source.
    """

    times: Ints
    values: Floats
    unit: str
    source: SourceOf
    interval: Floats | None = None
    coverage: float | None = None
    quantiles: Floats | None = None
    levels: tuple[float, ...] = POINT
    calibrated: int = 0
    missing: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def median(self) -> Floats:
        """Return the values, which are the medians."""
        return self.values


def predict(
    graph: Graph,
    p: Vector,
    frame: ChannelFrame,
    levels: Sequence[float] = POINT,
    held: tuple[ConformalCalibration, CoverageTarget] | None = None,
) -> Forecast:
    """Forecast the rows after the newest one, with the model or the fallback.

    The model needs a complete window and must answer with finite numbers; otherwise the same slots
    of the last known day are returned, and if these were not measured either, NaN. Without any
    reading there is nothing that a forecast could follow, and the forecast has no times.

    Args:
        graph: The bundle's forecast graph.
        p: The whole vector.
        frame: Channels and scale.
        levels: Levels of the quantiles that the graph predicts.
        held: Calibration of the interval and its intended shares; None leaves the interval
            unchanged.
    """
    if not len(frame):
        return Forecast(np.zeros(0, np.int64), np.zeros(0), frame.target.unit, "none")
    if frame.is_ready:
        newest = np.array([len(frame) - 1], np.int64)
        predicted = fan(graph, p, frame, newest, levels)[0]
        if np.isfinite(predicted).all():
            return forecast_of(predicted, frame, tuple(levels), held)
    values, source = _last_day(frame)
    return Forecast(_times(frame), values, frame.target.unit, source)


def forecast_of(
    predicted: Floats,
    frame: ChannelFrame,
    levels: tuple[float, ...],
    held: tuple[ConformalCalibration, CoverageTarget] | None,
    source: SourceOf = "model",
) -> Forecast:
    """Return the forecast of predicted quantiles after the newest row.

    Args:
        predicted: Quantiles in order, ``(horizon, levels)``.
        frame: Channels and scale.
        levels: Their levels.
        held: As for ``predict``.
        source: Name of what predicted them.
    """
    times, unit = _times(frame), frame.target.unit
    values = predicted[:, levels.index(0.5)]
    if len(levels) == 1:
        return Forecast(times, values, unit, source)
    if held is None:
        ends, coverage = predicted[:, [0, -1]], levels[-1] - levels[0]
        return Forecast(times, values, unit, source, ends, coverage, predicted, levels)
    calibration, aim = held
    ends, tried = calibration.served(predicted, aim), calibration.tried
    return Forecast(times, values, unit, source, ends, aim.coverage, predicted, levels, tried)


def fan(
    graph: Graph,
    p: Vector,
    frame: ChannelFrame,
    origins: Ints,
    levels: Sequence[float] = POINT,
    *,
    size: int | None = None,
) -> Floats:
    """Forecast every level from every origin, in the series' unit, ``(origins, horizon, levels)``.

    Levels that the model predicted in the wrong order are sorted: sorting never raises the sum of
    their pinball losses (Chernozhukov et al. 2010, doi:10.3982/ECTA7880, proposition 4). Values
    that cannot be negative are bounded by zero.

    Args:
        graph: The bundle's forecast graph: p, x to yhat.
        p: The whole vector.
        frame: Channels and scale.
        origins: Rows with complete windows before them.
        levels: Levels of the quantiles, as many as the graph predicts.
        size: Windows in one call of the graph; as many as ``NUMBERS`` allows if left out.
    """
    horizon, wide = frame.window.horizon, len(levels)
    numbers = frame.window.lookback * frame.channels.shape[1]
    size = size or max(1, min(512, NUMBERS // numbers))
    predicted = np.empty((len(origins), horizon, wide))
    for start in range(0, len(origins), size):
        some = origins[start : start + size]
        yhat = np.asarray(graph(p=p, x=frame.inputs(some))[0]).reshape(len(some), horizon, wide)
        for i in range(wide):
            predicted[start : start + size, :, i] = frame.restore(yhat[:, :, i], some)
    predicted.sort(axis=2)
    return np.maximum(predicted, least(frame))


def rolling(
    graph: Graph,
    p: Vector,
    frame: ChannelFrame,
    origins: Ints,
    levels: Sequence[float] = POINT,
    *,
    size: int | None = None,
) -> Floats:
    """Forecast the median from every origin, in the series' unit, ``(len(origins), horizon)``."""
    predicted = fan(graph, p, frame, origins, levels, size=size)
    return np.asarray(predicted[:, :, list(levels).index(0.5)])


def least(frame: ChannelFrame) -> float:
    """Return the lower bound of the target: zero where values add up (energy, volume)."""
    stream = STREAMS.get(frame.target.stream)
    return 0.0 if stream is not None and stream.adds else -np.inf


def _times(frame: ChannelFrame) -> Ints:
    step, horizon = frame.window.step_seconds, frame.window.horizon
    return np.asarray(frame.times[-1] + step + np.arange(horizon, dtype=np.int64) * step)


def _last_day(frame: ChannelFrame) -> tuple[Floats, SourceOf]:
    """Repeat the same slots of the last day that lies wholly before the forecast."""
    horizon, rows = frame.window.horizon, len(frame)
    day = max(1, DAY // frame.window.step_seconds)
    ahead = np.arange(horizon)
    at = rows + ahead - day * (ahead // day + 1)
    if at[0] >= 0:
        values = frame.last[at]
        if np.isfinite(values).all():
            return values, "last day"
    return np.full(horizon, np.nan), "none"
