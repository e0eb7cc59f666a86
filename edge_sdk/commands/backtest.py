"""Score forecasts of this device's own stored record: its candidates against naive forecasts.

Reads the store, also beside a running agent. The device's own model is fitted on the record before the
scored days. The fleet's model and its tuned copy may have been trained on them, which the table says;
training.holdout_fraction keeps the newest days out of training, and they are then the ones scored.

  gridfed-edge backtest meter.toml
  gridfed-edge backtest meter.toml --days 7 --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime

import numpy as np

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.arguments import add_config, add_participation, participant
from edge_sdk.commands.device_inspection import DeviceInspection
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.backtest import BacktestRow, as_json, scored
from edge_sdk.forecasting.calendar_features import DAY, Ints
from edge_sdk.forecasting.forecast_choice import ForecastChoice
from edge_sdk.forecasting.windows import ChannelFrame

DAYS = 28
"""Newest days that are scored where none are held back from training."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    add_participation(parser)
    parser.add_argument(
        "--days",
        type=float,
        metavar="N",
        help="newest days to score (the held-back share of the record; without one, 28)",
    )


def run(args: Namespace) -> CommandResult:
    """Return the scores."""
    return backtest(participant(Config.load(args.config), args.participation), args.days)


def backtest(config: Config, days: float | None = None) -> CommandResult:
    """Score the newest days of the stored record.

    Args:
        config: Configuration of the device.
        days: Number of days; None is the held-back share of the record, or else ``DAYS``.

    Raises:
        ConfigError: No stored window can be scored; the message says what there is.
    """
    if days is not None and not days > 0.0:
        raise ConfigError(f"--days: {days:g} is not above 0", hint="such as --days 7")
    inspection = DeviceInspection.of(config)
    learner, choice = inspection.learner, inspection.candidates.selection.choice
    if not len(learner.series):
        raise ConfigError(f"{config.id}: no stored window can be scored", hint=learner.missing)
    frame, begin = learner.frame(), 1.0 - config.training.holdout_fraction
    origins, held = _newest(frame, days, begin), frame.origins((begin, 1.0))
    is_held = bool(len(held) and len(origins) and origins[0] >= held[0])
    rows, count = scored(
        inspection.candidates.models(learner, inspection.state),
        choice,
        learner.vector(inspection.state),
        frame,
        origins,
        is_trained=inspection.is_trained and not is_held,
    )
    if not count:
        raise ConfigError(
            f"{config.id}: no stored window can be scored",
            hint=learner.missing or "the newest days have gaps; try more --days",
        )
    ends = [_moment(frame, int(at)) for at in (origins[0] + 1, origins[-1] + 1)]
    unit = frame.target.unit
    data = {
        "device": config.id,
        "unit": unit,
        "first": ends[0],
        "last": ends[1],
        "windows": count,
        "horizon": frame.window.horizon,
        "rows": [dict(as_json(row, choice)) for row in rows],
    }
    head = f"{config.id}: {count} windows of {frame.window.horizon} steps, {ends[0]} to {ends[1]}"
    return CommandResult(data, "\n".join((head, *_table(rows, choice, unit))))


def _newest(frame: ChannelFrame, days: float | None, begin: float) -> Ints:
    """Return the newest origins whose targets were all observed.

    Args:
        frame: Channels and readings.
        days: Number of days; None is the part held back from training, or else ``DAYS``.
        begin: Share of the record at which the part that is held back begins; 1 for none.
    """
    if days is None and begin < 1.0:
        return frame.origins((begin, 1.0))
    rows = int((days or DAYS) * DAY / frame.window.step_seconds)
    origins = frame.origins()
    return np.asarray(origins[origins >= len(frame) - 1 - rows])


def _moment(frame: ChannelFrame, row: int) -> str:
    return datetime.fromtimestamp(int(frame.times[row]), UTC).isoformat()


def _table(rows: list[BacktestRow], choice: ForecastChoice, unit: str) -> list[str]:
    has_loss = any(row.loss is not None for row in rows)
    heads = ("MAE", "RMSE", "MASE", *(("pinball",) if has_loss else ()))
    lines = [f"{unit:<16}" + "".join(f"{head:>10}" for head in heads)]
    for row in rows:
        values = [row.error, row.rmse, row.mase, *((row.loss,) if has_loss else ())]
        cells = "".join(f"{'-' if v is None else f'{v:.4g}':>10}" for v in values)
        notes = ["trained on these windows"] if row.is_trained else []
        notes += ["served"] if row.name == choice.name else []
        lines.append(f"{row.name:<16}{cells}" + (f"  {', '.join(notes)}" if notes else ""))
    return lines
