"""Forecast the values after the newest reading.

Reads the store, also beside a running agent.

  gridfed-edge forecast meter.toml
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from datetime import UTC, datetime

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config, add_participation, participant
from edge_sdk.commands.device_inspection import DeviceInspection
from edge_sdk.config import Config
from edge_sdk.forecasting.forecast import Forecast, IssuedForecast
from edge_sdk.forecasting.forecast_choice import ForecastChoice, by_steps


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    add_participation(parser)


def run(args: Namespace) -> CommandResult:
    """Return the forecast."""
    config = participant(Config.load(args.config), args.participation)
    return issued_now(DeviceInspection.of(config))[1]


def issued_now(inspection: DeviceInspection) -> tuple[IssuedForecast, CommandResult]:
    """Issue a forecast; return it, also as the command's result."""
    issued = inspection.issue(time.time())
    result = result_of(issued.forecast, inspection.candidates.selection.choice)
    return issued, replace(result, data=issued.document() | dict(result.data))


def result_of(forecast: Forecast, choice: ForecastChoice | None = None) -> CommandResult:
    """Return a forecast as a table, and the held-back errors of the candidates that were compared.

    Without the model, what it lacks comes first.

    Args:
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
    lines = [f"held-back error of {choice.days} days, {unit}:"]
    for name, error in sorted(choice.errors.items(), key=lambda item: item[1]):
        mark = "  served" if name == choice.name else ""
        share = choice.weights.get(name, 0.0) if len(choice.weights) > 1 else 0.0
        weight = f"  weight {share:.2f}" if share else ""
        lines.append(f"  {name:<16}{error:.6g}{weight}{mark}")
    lines += [f"  steps {steps}: {name}" for steps, name in by_steps(choice, horizon).items()]
    return lines


def _calibration(rows: int) -> str:
    """Return the calibration state of an interval, in words.

    >>> _calibration(0), _calibration(672)
    ('not calibrated', 'calibrated on 672 readings')
    """
    return f"calibrated on {rows} readings" if rows else "not calibrated"
