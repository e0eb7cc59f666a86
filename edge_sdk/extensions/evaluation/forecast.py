"""Forecast the values after the newest reading, or forecast a span of the past for evaluation.

Reads the store, also beside a running agent. --rolling writes a CSV file with the columns origin,
step, forecast and truth, and with lower and upper where the model forecasts quantiles.

  gridfed-edge forecast meter.toml
  gridfed-edge forecast meter.toml --plot
  gridfed-edge forecast meter.toml --rolling 2014-10-01 2014-10-08 --out week.csv
"""

from __future__ import annotations

import csv
import math
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.agent import open_sources
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import open_private
from edge_sdk.commands import add_config, add_participation, participant
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.calendar_features import Floats
from edge_sdk.forecasting.forecast import Forecast, ForecastQuality, IssuedForecast
from edge_sdk.protocol import messages as m
from edge_sdk.session.announcements import saved_message
from edge_sdk.sources import read_all
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.extension import RecalledChoice, ServedVersion
from edge_sdk.training.model_runtime import ModelRuntime


@dataclass(slots=True)
class DeviceInspection:
    """A device's model runtime and state, read beside a running agent."""

    config: Config
    learner: ModelRuntime
    state: Any  # learned state of the device half
    # the saved choice of the served forecast; None where the fleet's model is always served
    choice: RecalledChoice | None = None
    # the saved state, with run and version; None without one: then ``state`` is the bundle's first
    learned: LearnedState | None = None
    # the version of an extension that forecasts instead; None without one
    served: ServedVersion | None = None

    @classmethod
    def of(cls, config: Config) -> DeviceInspection:
        """Read the learned state and the readings of a device.

        Raises:
            EdgeError: There is no state, or its bundle is missing.
        """
        with DeviceStore.open(config.state, read_only=True) as store:
            announced = saved_message(store, m.BundleMessage, "bundle")
            bundle = bootstrap.open_bundle(config, announced)
            found = bootstrap.of_bundle(announced, bundle)
            learner = bootstrap.set_up(config, store, bundle, found)
            state, learned = bootstrap.recall(learner, store)
            recalled = config.offered("recalled")
            choice = None if recalled is None else recalled(config, store, learner, state)
            name, entries = _quality(choice).candidate, config.index.configured(config.tables)
            find = (one.load("served") for one in entries if "served" in one.row)
            versions = [one(config, store, learner, name) for one in find]
            served = next(filter(None, versions), None)
        return cls(config, learner, state, choice, learned, served)

    def forecast(self) -> Forecast:
        """Forecast the values after the newest reading."""
        return self._served_forecast() or self.learner.forecast(self.state)

    def _served_forecast(self) -> Forecast | None:
        if self.served is None:
            return None
        return self.served.forecast(self.learner.vector(self.state))

    def issue(self, issued: float) -> IssuedForecast:
        """Forecast, with issue time, model version and quality.

        Args:
            issued: Unix seconds now.
        """
        runtime, quality = self.learner, _quality(self.choice)
        run, version = (self.learned.run, self.learned.version) if self.learned else (0, -1)
        found = self._served_forecast()
        if self.served is not None and found is not None:
            runtime, quality, version = self.served.runtime, ForecastQuality(), -1
        else:
            found = self.learner.forecast(self.state)
        return runtime.issued(found, quality, now=issued, run=run, version=version)


def _quality(choice: RecalledChoice | None) -> ForecastQuality:
    return ForecastQuality() if choice is None else choice.quality


MEASURED, EXPECTED, BETWEEN, NEWEST = "•", "o", "░", "│"
_LABEL = 10  # columns of the axis
_LEAST = 4  # rows and columns of the smallest plot


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    add_participation(parser)
    parser.add_argument(
        "--plot", action="store_true", help="draw the newest readings and the forecast"
    )
    parser.add_argument(
        "--rolling",
        nargs=2,
        metavar=("FROM", "TO"),
        help="forecast from every window that begins in this span (ISO times or Unix seconds)",
    )
    parser.add_argument("--out", type=Path, metavar="CSV", help="file that --rolling writes")
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="also read, in memory only, the sources after their 'until': the truth to compare with",
    )


def run(args: Namespace) -> CommandResult:
    """Return the forecast, or write the rolling forecasts."""
    inspection = DeviceInspection.of(participant(Config.load(args.config), args.participation))
    if args.beyond:
        _read_beyond(inspection)
    if args.rolling is None:
        issued, result = issued_now(inspection)
        text = f"{result.text}\n\n{_plot(inspection, issued)}" if args.plot else result.text
        return replace(result, text=text)
    if args.out is None:
        raise ConfigError("--rolling needs --out CSV", hint="name the file to write")
    begin, end = map(_moment, args.rolling)
    count = write_rolling(inspection, begin, end, args.out)
    return CommandResult({"windows": count, "out": str(args.out)}, f"{count} windows in {args.out}")


def issued_now(inspection: DeviceInspection) -> tuple[IssuedForecast, CommandResult]:
    """Issue a forecast; return it, also as the command's result."""
    issued = inspection.issue(time.time())
    choice = inspection.choice
    compared = None if choice is None else choice.compared(issued.forecast)
    result = result_of(issued.forecast, compared)
    return issued, replace(result, data=issued.document() | dict(result.data))


def result_of(forecast: Forecast, compared: CommandResult | None = None) -> CommandResult:
    """Return a forecast as a table; a forecast without the model begins with the missing inputs.

    Args:
        compared: The candidates that were compared; None without a comparison.
    """
    times = [datetime.fromtimestamp(int(t), UTC).isoformat() for t in forecast.times]
    values = [float(v) if v == v else None for v in forecast.median]  # noqa: PLR0124 - NaN
    data: dict[str, object] = {
        "source": forecast.source,
        "unit": forecast.unit,
        "times": times,
        "values": values,
        "missing": forecast.missing,
    }
    if forecast.source == "none":
        return CommandResult(data, f"no forecast yet: {forecast.missing}")
    lines = [
        f"{time}  {'-' if v is None else f'{v:.6g}'}" for time, v in zip(times, values, strict=True)
    ]
    how = forecast.source if forecast.source.startswith("by ") else f"by {forecast.source}"
    head = f"{forecast.unit}, {how}"
    if forecast.missing:
        head += f", not by the model, which needs {forecast.missing}"
    if forecast.interval is not None:
        ends = [[float(low), float(high)] for low, high in forecast.interval]
        data |= {"interval": ends, "coverage": forecast.coverage, "calibrated": forecast.calibrated}
        lines = [
            f"{line:>36}  {low:.6g} to {high:.6g}"
            for line, (low, high) in zip(lines, ends, strict=True)
        ]
        head += f", {forecast.coverage:.0%} between; {_calibration(forecast.calibrated)}"
    if forecast.expected is not None:
        data["expected"] = [float(v) for v in forecast.expected]
        lines = [f"{x}  {v:.6g} expected" for x, v in zip(lines, forecast.expected, strict=True)]
    if forecast.paths is not None:
        data["sum"], text = _sum(forecast)
        lines += ["", text]
    data |= {"weights": dict(forecast.weights)} if forecast.weights else {}
    if compared is not None:
        data |= compared.data
        lines += ["", compared.text]
    return CommandResult(data, "\n".join((f"{head}:", *lines)))


def _sum(forecast: Forecast) -> tuple[dict[str, float], str]:
    """Return the sum over the horizon by its paths, and in words."""
    assert forecast.expected is not None
    assert forecast.paths is not None
    share = forecast.coverage or 0.8
    ends = (0.5 - share / 2, 0.5 + share / 2)
    low, high = (float(x) for x in np.quantile(forecast.paths.sum(axis=1), ends))
    mean = float(forecast.expected.sum())
    text = f"sum: {mean:.6g} {forecast.unit} expected, {share:.0%} between {low:.6g} and {high:.6g}"
    return {"expected": mean, "lower": low, "upper": high}, text


def _calibration(rows: int) -> str:
    """Return the calibration state of an interval, in words.

    >>> _calibration(0), _calibration(672)
    ('not calibrated', 'calibrated on 672 readings')
    """
    return f"calibrated on {rows} readings" if rows else "not calibrated"


def _read_beyond(inspection: DeviceInspection) -> None:
    config, learner = inspection.config, inspection.learner
    whole = tuple({k: v for k, v in s.items() if k != "until"} for s in config.source)
    sources = open_sources(replace(config, source=whole))
    read_all(sources, lambda readings: learner.observe_all(readings, lambda _: np.inf))


def write_rolling(inspection: DeviceInspection, begin: float, end: float, out: Path) -> int:
    """Write forecasts of every complete window whose first target is in a time span as CSV.

    Columns: ``origin`` (Unix seconds of the first target), ``step`` (1 … horizon),
    ``forecast``, ``truth`` (empty where unobserved); and ``lower``, ``upper``, where the model
    forecasts quantiles, as they would have been issued.

    Returns:
        Number of windows.
    """
    times, forecasts, truth = inspection.learner.rolling(inspection.state, begin, end)
    ends = inspection.learner.intervals(inspection.state, begin, end)
    extra = () if ends is None else ("lower", "upper")
    between = np.empty((*forecasts.shape, 0)) if ends is None else ends
    with open_private(out, newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("origin", "step", "forecast", "truth", *extra))
        for origin, *line in zip(times.tolist(), forecasts, truth, between, strict=True):
            rows.writerows(_lines(origin, *line))
    return len(times)


def _lines(
    origin: int, forecasts: Floats, truth: Floats, between: Floats
) -> Iterable[tuple[Any, ...]]:
    for step, (value, seen, ends) in enumerate(zip(forecasts, truth, between, strict=True), 1):
        around = [f"{end:.9g}" for end in ends]
        yield origin, step, f"{value:.9g}", "" if np.isnan(seen) else f"{seen:.9g}", *around


def _moment(text: str) -> float:
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a time", hint="such as 2014-10-01T00:00 (UTC) or Unix seconds"
        ) from error
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _plot(inspection: DeviceInspection, issued: IssuedForecast) -> str:
    series = inspection.learner.series
    if not len(series):
        return drawn([], issued)
    values = series.values(issued.stream).tolist()
    measured = list(zip(series.times().tolist(), values, strict=True))
    return drawn(measured, issued, shutil.get_terminal_size().columns)


def drawn(
    measured: Sequence[tuple[int, float]], issued: IssuedForecast, width: int = 80, height: int = 14
) -> str:
    """Return the plot as lines: measured values, a bar at the newest one, then the forecast.

    One column is one slot; the oldest values that do not fit are left out. Without any finite value
    there is nothing to draw, and the text says so.

    Args:
        measured: Start and value of the newest readings, rising; NaN in gaps.
        height: Rows of the plot, without its axis.
    """
    room = max(width - _LABEL - 2, _LEAST)
    ahead = issued.rows()[: room - 2]
    before = measured[max(0, len(measured) - (room - len(ahead) - 1)) :]
    values = [value for _, value in before] + [x for row in ahead for x in row[1:] if x is not None]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return f"nothing to draw: {issued.forecast.missing or 'no value is known'}"
    low, high = min(finite), max(finite)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    count = max(height, _LEAST)
    columns = [*(_column(count, low, high, value) for _, value in before), NEWEST * count]
    columns += [_column(count, low, high, *row[1:]) for row in ahead]
    lines = []
    for i, marks in enumerate(zip(*columns, strict=True)):
        value = high - (high - low) * i / (count - 1)
        label = f"{value:.4g}" if i % 4 == 0 or i == count - 1 else ""
        lines.append(f"{label:>{_LABEL}} {''.join(marks)}".rstrip())
    return "\n".join((*lines, *_axis([at for at, _ in before], [at for at, *_ in ahead])))


def _column(count: int, low: float, high: float, value: float | None, *ends: float | None) -> str:
    def row(number: float) -> int:
        return round((high - number) / (high - low) * (count - 1))

    marks = [" "] * count
    known = [end for end in ends if end is not None]
    if len(known) == 2:
        top, bottom = row(max(known)), row(min(known))
        marks[top : bottom + 1] = BETWEEN * (bottom + 1 - top)
    if value is not None and math.isfinite(value):
        marks[row(value)] = EXPECTED if ends else MEASURED
    return "".join(marks)


def _axis(before: list[int], ahead: list[int]) -> list[str]:
    known = [("from", before[:1]), ("forecast from", ahead[:1]), ("to", ahead[-1:])]
    times = ", ".join(f"{word} {_minute(at[0])}" for word, at in known if at)
    pad = " " * _LABEL
    return [
        f"{pad} {times} UTC",
        f"{pad} {MEASURED} measured  {EXPECTED} forecast  {BETWEEN} interval",
    ]


def _minute(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
