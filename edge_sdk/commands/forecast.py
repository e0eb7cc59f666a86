"""Forecast the values after the newest reading, or forecast a span of the past for evaluation.

Reads the store, also beside a running agent. --rolling writes a CSV file with the columns origin,
step, forecast and truth, and with lower and upper where the model forecasts quantiles.

  gridfed-edge forecast meter.toml
  gridfed-edge forecast meter.toml --plot
  gridfed-edge forecast meter.toml --rolling 2014-10-01 2014-10-08 --out week.csv
"""

from __future__ import annotations

import shutil
import time
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.arguments import add_config, add_participation, participant
from edge_sdk.commands.device_inspection import DeviceInspection
from edge_sdk.commands.terminal_plot import drawn
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.forecast_choice import ForecastChoice, by_steps
from edge_sdk.forecasting.issued_forecast import IssuedForecast


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
    inspection = DeviceInspection.of(
        participant(Config.load(args.config), args.participation), beyond=args.beyond
    )
    if args.rolling is None:
        issued = inspection.issue(time.time())
        result = result_of(issued.forecast, inspection.candidates.selection.choice)
        data = issued.document() | dict(result.data)
        text = f"{result.text}\n\n{_plot(inspection, issued)}" if args.plot else result.text
        return CommandResult(data, text, result.code)
    if args.out is None:
        raise ConfigError("--rolling needs --out CSV", hint="name the file to write")
    begin, end = map(_moment, args.rolling)
    count = inspection.write_rolling(begin, end, args.out)
    return CommandResult({"windows": count, "out": str(args.out)}, f"{count} windows in {args.out}")


def _plot(inspection: DeviceInspection, issued: IssuedForecast) -> str:
    """Return the plot of the newest readings and the forecast, as wide as the terminal."""
    series = inspection.learner.series
    if not len(series):
        return drawn([], issued)
    values = series.values(issued.stream).tolist()
    measured = list(zip(series.times().tolist(), values, strict=True))
    return drawn(measured, issued, shutil.get_terminal_size().columns)


def result_of(forecast: Forecast, choice: ForecastChoice | None = None) -> CommandResult:
    """Return a forecast as a table, and the held-back errors of the candidates that were compared.

    Without the model, what it lacks comes first.

    Args:
        forecast: The forecast.
        choice: The choice that led to it; None if candidates are not compared.
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
    head = f"{forecast.unit}, by {forecast.source}"
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
    data |= {"weights": dict(forecast.weights)} if forecast.weights else {}
    if choice is not None and choice.errors:
        data["candidates"] = dict(choice.errors)
        data["days compared"] = choice.days
        data |= {"steps": steps} if (steps := by_steps(choice, len(times))) else {}
        lines += ["", *_compared(choice, forecast.unit, len(times))]
    return CommandResult(data, "\n".join((f"{head}:", *lines)))


def _compared(choice: ForecastChoice, unit: str, horizon: int) -> list[str]:
    """Return the held-back error of each candidate, the least first; the served one is marked."""
    lines = [f"held-back error of {choice.days} days, {unit}:"]
    for name, error in sorted(choice.errors.items(), key=lambda item: item[1]):
        mark = "  served" if name == choice.name else ""
        share = choice.weights.get(name, 0.0) if len(choice.weights) > 1 else 0.0
        weight = f"  weight {share:.2f}" if share else ""
        lines.append(f"  {name:<16}{error:.6g}{weight}{mark}")
    lines += [f"  steps {steps}: {name}" for steps, name in by_steps(choice, horizon).items()]
    return lines


def _calibration(rows: int) -> str:
    """Return how far an interval is calibrated, in words.

    >>> _calibration(0), _calibration(672)
    ('not calibrated', 'calibrated on 672 readings')
    """
    return f"calibrated on {rows} readings" if rows else "not calibrated"


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
