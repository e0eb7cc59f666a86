"""Forecast from a device's own vector, with a fallback when its window is incomplete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.series import STREAMS, Series
from edge_sdk.forecasting.windows import ChannelFrame, filled
from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.contract.manifest import Manifest, Window
from edge_sdk.protocol.contract.parameter_layout import Vector

NUMBERS = 65_536
"""Most numbers of the windows that a graph reads in one call."""

POINT = (0.5,)
"""The levels of a point model."""

FLEET: Final = "fleet"
"""Name of the model of the run's method, as the device adopted it last."""
COMMON: Final = "common"
"""Name of the fleet's solution without this device's own: of a method in closed form only."""
TUNED: Final = "tuned"
"""Name of a copy of the fleet's model that is tuned on this device's windows; never sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """One forecast over the horizon."""

    # start of each forecast interval, Unix seconds, shape ``(horizon,)``; before the first reading
    # there is none, and ``times`` and ``values`` are empty
    times: Ints
    # the medians, in ``unit``, shape ``(horizon,)``; NaN when the source is ``none``
    values: Floats
    unit: str
    # ``model``; ``without graph``, the model of a split method without the server's graph; ``last
    # day``, the same slots of that day; ``none``; or the name of what is served instead of the
    # model (``ServedForecast``)
    source: str
    # lower and upper ends, shape ``(horizon, 2)``, where the model predicts quantiles
    interval: Floats | None = None
    # intended share of readings inside the interval; None without an interval
    coverage: float | None = None
    # the model's quantiles in order, shape ``(horizon, levels)``; not calibrated
    quantiles: Floats | None = None
    levels: tuple[float, ...] = POINT  # levels of the quantiles, rising
    # number of earlier readings that calibrated the interval; 0 means uncalibrated
    calibrated: int = 0
    missing: str = ""  # missing readings of the model, for people; empty where the model forecast
    # weight of each candidate in a ``weighted mean``; empty for any other source
    weights: Mapping[str, float] = field(default_factory=dict)
    # expected values, shape ``(horizon,)``, and equally likely paths, shape ``(paths, horizon)``, of
    # a bundle that has them: medians do not add up, and paths give the spread of a sum
    expected: Floats | None = None
    paths: Floats | None = None

    @property
    def median(self) -> Floats:
        return self.values


class Interval(NamedTuple):
    """The interval of one forecast."""

    ends: Floats  # lower and upper ends, ``(horizon, 2)``
    coverage: float  # intended share of readings inside
    calibrated: int = 0  # number of earlier readings that calibrated it


EndsOf = Callable[[Floats], Interval]
"""Function from the quantiles of one forecast, ``(horizon, levels)``, to its interval."""


def predict(
    graph: Graph,
    p: Vector,
    frame: ChannelFrame,
    levels: Sequence[float] = POINT,
    ends: EndsOf | None = None,
) -> Forecast:
    """Forecast the rows after the newest one, with the model or the fallback.

    The model needs a complete window and must answer with finite numbers; otherwise the same slots
    of the last known day are returned, and if these were not measured either, NaN. Without any
    reading there is nothing that a forecast could follow, and the forecast has no times.
    """
    if not len(frame):
        return Forecast(np.zeros(0, np.int64), np.zeros(0), frame.target.unit, "none")
    if frame.is_ready:
        newest = np.array([len(frame) - 1], np.int64)
        predicted = fan(graph, p, frame, newest, levels)[0]
        if np.isfinite(predicted).all():
            return forecast_of(predicted, frame, tuple(levels), ends)
    values, source = _last_day(frame)
    return Forecast(_times(frame), values, frame.target.unit, source)


def forecast_of(
    predicted: Floats,
    frame: ChannelFrame,
    levels: tuple[float, ...],
    ends: EndsOf | None,
    source: str = "model",
) -> Forecast:
    """Return the forecast of predicted quantiles after the newest row."""
    times, unit = _times(frame), frame.target.unit
    values = predicted[:, levels.index(0.5)]
    if len(levels) == 1:
        return Forecast(times, values, unit, source)
    own = Interval(predicted[:, [0, -1]], levels[-1] - levels[0])
    interval, coverage, tried = own if ends is None else ends(predicted)
    return Forecast(times, values, unit, source, interval, coverage, predicted, levels, tried)


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


def _last_day(frame: ChannelFrame) -> tuple[Floats, str]:
    """Repeat the same slots of the last day that lies wholly before the forecast."""
    rows, newest = rows_of(DAY, frame.window.step_seconds), np.array([len(frame) - 1])
    values = seasonal_naive(frame.last, newest, frame.window.horizon, rows)[0]
    if np.isfinite(values).all():
        return values, "last day"
    return np.full(len(values), np.nan), "none"


SCHEMA = 1
"""Version of the document of ``IssuedForecast.document``; raised when a key changes its meaning."""


@dataclass(frozen=True, slots=True)
class ForecastQuality:
    """The candidate that is served, and its error on values that no candidate had learned."""

    candidate: str = FLEET  # name of the served candidate: ``fleet``, ``tuned``, ``own`` and so on
    # its held-back error in the unit of the forecast; None before the first comparison
    error: float | None = None
    # held-back error of the fleet's model; None before the first comparison
    fleet_error: float | None = None
    days: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IssuedForecast:
    """One forecast of one device, as outputs receive it."""

    device: str
    fleet: str
    stream: str
    issued: float | None  # Unix seconds of the issue; None while the device's clock is not set
    newest: int | None  # start of the newest reading, Unix seconds; None before the first
    step: int
    forecast: Forecast  # the values, with their prediction interval
    bundle: str
    bundle_version: int
    run: int  # training run of the model; 0 before the first
    version: int  # version of the common model; -1 before the first
    quality: ForecastQuality  # served candidate and its held-back error

    @property
    def is_available(self) -> bool:
        return self.forecast.source != "none" and bool(len(self.forecast.times))

    def rows(self) -> list[tuple[int, float | None, float | None, float | None]]:
        """Return start, value and both ends of the interval of each forecast interval.

        A value that is not known is None, as is an interval that the model does not forecast.
        """
        found, ends = self.forecast, self.forecast.interval
        return [
            (
                int(start),
                _known(found.values[i]),
                None if ends is None else _known(ends[i][0]),
                None if ends is None else _known(ends[i][1]),
            )
            for i, start in enumerate(found.times)
        ]

    def document(self) -> dict[str, Any]:
        found, quality = self.forecast, self.quality
        return {
            "schema": SCHEMA,
            "device": self.device,
            "fleet": self.fleet,
            "stream": self.stream,
            "unit": found.unit,
            "issued_at": moment(self.issued),
            "newest_reading": moment(self.newest),
            "step_seconds": self.step,
            "source": found.source,
            "missing": found.missing,
            "coverage": found.coverage,
            "calibrated_on": found.calibrated,
            "model": {
                "bundle": self.bundle,
                "bundle_version": self.bundle_version,
                "run": self.run,
                "version": self.version,
            },
            "quality": {
                "candidate": quality.candidate,
                "error": quality.error,
                "fleet_error": quality.fleet_error,
                "days": quality.days,
            },
            "values": [
                {"start": moment(start), "value": value, "lower": lower, "upper": upper}
                | ({} if found.expected is None else {"expected": _known(found.expected[i])})
                for i, (start, value, lower, upper) in enumerate(self.rows())
            ],
        }


def moment(at: float | None) -> str | None:
    """Format Unix seconds as ISO 8601 in UTC.

    >>> moment(1_700_000_000), moment(None)
    ('2023-11-14T22:13:20+00:00', None)
    """
    return None if at is None else datetime.fromtimestamp(int(at), UTC).isoformat()


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


Known = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MissingReadings:
    """The readings that the newest window lacks."""

    streams: tuple[str, ...]  # needed streams without any reading
    # number of further consecutive readings of the needed streams until the newest window is
    # complete; 0 if it is
    rows: int
    step: int  # seconds of a row

    @property
    def text(self) -> str:
        """Return the missing readings as text; empty if the window is complete.

        >>> MissingReadings((), 30, 3600).text
        '30 more readings without a gap (30 hours)'
        >>> MissingReadings(("weather.wind_speed",), 12, 900).text
        'no reading of weather.wind_speed yet; then 12 readings without a gap (3 hours)'
        """
        if not self.rows:
            return ""
        count = "reading" if self.rows == 1 else "readings"
        span = f"{_span(self.rows * self.step)}"
        if self.streams:
            names = ", ".join(self.streams)
            return f"no reading of {names} yet; then {self.rows} {count} without a gap ({span})"
        return f"{self.rows} more {count} without a gap ({span})"


def missing_readings(series: Series, manifest: Manifest) -> MissingReadings:
    """Return the number of readings that complete the newest window, and the streams without any.

    The count assumes that every later slot has a reading of each needed stream. It is the smallest
    number of rows after which all channels of the last ``lookback`` rows are known, or of as many as
    ``least_known``.
    """
    window, step = manifest.window, manifest.window.step_seconds
    optional = manifest.optional
    needed = [f for f in manifest.features if f.name not in optional]
    shifts = {
        manifest.target.stream: sorted(
            {(f.lag_steps or 1) - 1 for f in needed if f.kind in ("target", "lag")}
        )
    }
    shifts |= {f.stream: [0] for f in needed if f.stream is not None}
    most = window.lookback + max(max(of) for of in shifts.values())
    rows = max(_rows_missing(series, name, of, window, most) for name, of in shifts.items())
    absent = [x for x in shifts if not len(series) or not np.isfinite(series.values(x)).any()]
    return MissingReadings(tuple(absent), rows, step)


def _rows_missing(
    series: Series, stream: str, shifts: Sequence[int], window: Window, most: int
) -> int:
    """Return the first number of added rows after which every shifted window is known."""
    seen = np.isfinite(filled(series.values(stream))) if len(series) else np.zeros(0, np.bool_)
    past = np.concatenate([np.zeros(most, np.bool_), seen])[-most:]
    known = np.concatenate([past, np.ones(most, np.bool_)])
    holes = np.concatenate([[0], np.cumsum(~known)])
    ends = most + np.arange(most + 1)  # one past the newest row, with so many added
    complete = np.ones(most + 1, np.bool_)
    for shift in shifts:
        lacking = holes[ends - shift] - holes[ends - shift - window.lookback]
        complete &= lacking <= window.lookback - window.least
    return int(np.flatnonzero(complete)[0])


def _span(seconds: float) -> str:
    """Return a length of time in hours, or in days from two days on.

    >>> _span(5400), _span(176_400)
    ('1.5 hours', '2.0 days')
    """
    if seconds < 2 * 86_400:
        hours = seconds / 3600
        return f"{hours:.3g} hour{'' if hours == 1 else 's'}"
    return f"{seconds / 86_400:.1f} days"


WEEK = 7 * DAY


def seasonal_naive(values: Floats, origins: Ints, horizon: int, period: int) -> Floats:
    """Return for each origin the values of the newest season that lies wholly before it.

    Args:
        values: The series, ``(T,)``; NaN where unknown.
        origins: Rows after which the forecasts begin, ``(n,)``.

    Returns:
        Forecasts, ``(n, horizon)``; NaN where the season is not known.

    >>> seasonal_naive(np.arange(4.0), np.array([1, 3]), 3, 2)
    array([[0., 1., 0.],
           [2., 3., 2.]])
    >>> seasonal_naive(np.arange(2.0), np.array([0]), 1, 2)
    array([[nan]])
    """
    ahead = np.arange(horizon)
    rows = np.asarray(origins, np.int64)[:, None] + 1 + ahead - period * (ahead // period + 1)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], np.nan)


def rows_of(period: int, step: int) -> int:
    """Return the number of rows of a period in seconds; at least one.

    >>> rows_of(DAY, 900), rows_of(DAY, 604_800)
    (96, 1)
    """
    return max(1, period // step)
