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
    choice = inspection.choice
    compared = None if choice is None else choice.compared(issued.forecast)
    result = result_of(issued.forecast, compared)
    return issued, replace(result, data=issued.document() | dict(result.data))


def result_of(forecast: Forecast, compared: CommandResult | None = None) -> CommandResult:
    """Return a forecast as a table; without the model, what it lacks comes first.

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
    if compared is not None:
        data |= compared.data
        lines += ["", compared.text]
    return CommandResult(data, "\n".join((f"{head}:", *lines)))


def _calibration(rows: int) -> str:
    """Return the calibration state of an interval, in words.

    >>> _calibration(0), _calibration(672)
    ('not calibrated', 'calibrated on 672 readings')
    """
    return f"calibrated on {rows} readings" if rows else "not calibrated"
