"""Score forecasts of this device's own stored record: its candidates against naive forecasts.

Reads the store, also beside a running agent. The device's own model is fitted on the record before the
scored days. The fleet's model and its tuned copy may have been trained on them, which the table says;
training.holdout_fraction keeps the newest days out of training, and they are then the ones scored.

  gridfed-edge backtest meter.toml
  gridfed-edge backtest meter.toml --days 7 --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config, add_participation, participant
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.evaluation.forecast import DeviceInspection
from edge_sdk.extensions.evaluation.forecast_metrics import (
    mae,
    mase,
    naive_lag1,
    quantile_score,
    rmse,
)
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.forecast import FLEET
from edge_sdk.forecasting.windows import ChannelFrame

DAYS = 28
"""Newest days that are scored where none are held back from training."""

LAST_VALUE = "last value"
"""The newest value, repeated."""


@dataclass(frozen=True, slots=True)
class BacktestRow:
    """The score of one way to forecast."""

    name: str  # name of the candidate, or ``last value``
    error: float  # mean absolute error, in the unit of the series
    rmse: float  # root of the mean squared error
    # error in units of the record's mean absolute step; None for a constant record
    mase: float | None
    loss: float | None  # twice the mean pinball loss of the quantiles; None for a point forecast
    is_trained: bool  # whether its model may have been trained on the scored windows


def scored(
    forecasts: Mapping[str, Floats],
    levels: tuple[float, ...],
    frame: ChannelFrame,
    origins: Ints,
    *,
    learned: Collection[str],
) -> tuple[list[BacktestRow], int]:
    """Score every way to forecast that the record allows, the least error first.

    All are scored on the same windows: those that each of them can forecast.

    Args:
        forecasts: Quantiles by name, ``(n, horizon, levels)``; NaN for none.
        levels: Levels of the quantiles.
        learned: Names of the ways whose model may have been trained on these windows.

    Returns:
        The rows, and the number of windows.
    """
    fleet = forecasts[FLEET]
    around = fleet - fleet[:, :, [levels.index(0.5)]]
    found = {**forecasts, LAST_VALUE: frame.last[origins, None, None] + around}
    found = {name: one for name, one in found.items() if np.isfinite(one).any()}
    truth = frame.truth(origins)
    known = np.isfinite(truth).all(axis=1)
    for one in found.values():
        known &= np.isfinite(one).all(axis=(1, 2))
    if not known.any():
        return [], 0
    step = naive_lag1(frame.raw)
    rows = [
        _row(name, one[known], truth[known], levels, step, is_trained=name in learned)
        for name, one in found.items()
    ]
    return sorted(rows, key=lambda row: row.error), int(known.sum())


def _row(
    name: str,
    fan: Floats,
    truth: Floats,
    levels: tuple[float, ...],
    step: float,
    *,
    is_trained: bool,
) -> BacktestRow:
    middle, by_level = fan[:, :, levels.index(0.5)], {q: fan[:, :, i] for i, q in enumerate(levels)}
    loss = 2.0 * quantile_score(truth, by_level, "mean") if len(levels) > 1 else None
    return BacktestRow(
        name, mae(truth, middle), rmse(truth, middle), mase(truth, middle, step), loss, is_trained
    )


def as_json(row: BacktestRow, served: str) -> Mapping[str, object]:
    """Return a row as plain values."""
    return {
        "name": row.name,
        "error": row.error,
        "rmse": row.rmse,
        "mase": row.mase,
        "loss": row.loss,
        "trained on these windows": row.is_trained,
        "served": row.name == served,
    }


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
    return backtest(participant(Config.load(args.config), args.participation), args.days)


def backtest(config: Config, days: float | None = None) -> CommandResult:
    """Score the newest days of the stored record.

    Args:
        days: Number of days; None is the held-back share of the record, or else ``DAYS``.

    Raises:
        ConfigError: No stored window can be scored; the message says what there is.
    """
    if days is not None and not days > 0.0:
        raise ConfigError(f"--days: {days:g} is not above 0", hint="such as --days 7")
    inspection = DeviceInspection.of(config)
    learner, entries = inspection.learner, config.index.having("backtested")
    if not len(learner.series):
        raise ConfigError(f"{config.id}: no stored window can be scored", hint=learner.missing)
    frame, begin = learner.frame(), 1.0 - config.training.holdout_fraction
    origins, held = _newest(frame, days, begin), frame.origins((begin, 1.0))
    is_held = bool(len(held) and len(origins) and origins[0] >= held[0])
    rows: list[BacktestRow] = []
    count, served = 0, FLEET
    if len(origins) and entries:
        forecast = entries[0].load("backtested")
        forecasts, of_fleet, served = forecast(
            inspection.choice, learner, inspection.state, origins
        )
        learned = () if inspection.learned is None or is_held else of_fleet
        rows, count = scored(forecasts, learner.levels, frame, origins, learned=learned)
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
        "rows": [dict(as_json(row, served)) for row in rows],
    }
    head = f"{config.id}: {count} windows of {frame.window.horizon} steps, {ends[0]} to {ends[1]}"
    return CommandResult(data, "\n".join((head, *_table(rows, served, unit))))


def _newest(frame: ChannelFrame, days: float | None, begin: float) -> Ints:
    if days is None and begin < 1.0:
        return frame.origins((begin, 1.0))
    rows = int((days or DAYS) * DAY / frame.window.step_seconds)
    origins = frame.origins()
    return np.asarray(origins[origins >= len(frame) - 1 - rows])


def _moment(frame: ChannelFrame, row: int) -> str:
    return datetime.fromtimestamp(int(frame.times[row]), UTC).isoformat()


def _table(rows: list[BacktestRow], served: str, unit: str) -> list[str]:
    has_loss = any(row.loss is not None for row in rows)
    heads = ("MAE", "RMSE", "MASE", *(("pinball",) if has_loss else ()))
    lines = [f"{unit:<16}" + "".join(f"{head:>10}" for head in heads)]
    for row in rows:
        values = [row.error, row.rmse, row.mase, *((row.loss,) if has_loss else ())]
        cells = "".join(f"{'-' if v is None else f'{v:.4g}':>10}" for v in values)
        notes = ["trained on these windows"] if row.is_trained else []
        notes += ["served"] if row.name == served else []
        lines.append(f"{row.name:<16}{cells}" + (f"  {', '.join(notes)}" if notes else ""))
    return lines
