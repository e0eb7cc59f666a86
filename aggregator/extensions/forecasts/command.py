"""Show the newest forecast of every device that sends one.

A device sends its forecasts with [[output]] type = "fleet"; the aggregator stores them with
forecasts.store = true. Otherwise forecasts stay on the devices.

  gridfed-aggregator forecasts aggregator.toml
  gridfed-aggregator forecasts aggregator.toml --label region=north --csv > forecasts.csv
"""

from __future__ import annotations

import csv
import io
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from aggregator.commands.arguments import add_config, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.forecasts.forecast_book import ForecastBook, steps_of
from aggregator.operations.commands import parse_labels
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage

COLUMNS = ("device", "issued", "stream", "start", "value", "lower", "upper", "model", "version")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, the labels of the devices, and the form."""
    add_config(parser)
    parser.add_argument(
        "--label", metavar="NAME=VALUE,…", default="", help="show only devices with these labels"
    )
    parser.add_argument("--csv", action="store_true", help="one line for each step")


def run(args: Namespace) -> CommandResult:
    """Return the forecasts of the enrolled devices."""
    config, wanted = require_database(AggregatorConfig.load(args.config)), parse_labels(args.label)
    with open_store(config.database, read_only=True) as store:
        devices = {
            client.id
            for client in store.devices.all()
            if client.state != "revoked" and wanted.items() <= dict(client.labels).items()
        }
    found = [
        _row(device, forecast)
        for device, forecast in ForecastBook.of(config).stored()
        if device in devices
    ]
    text = _csv(found) if args.csv else "\n".join(map(_line, found))
    hint = "" if config.section("forecasts").store else ": forecasts.store is false"
    return CommandResult({"forecasts": found}, text or f"no forecast is stored{hint}")


def _row(device: str, forecast: ForecastMessage) -> dict[str, Any]:
    return {
        "device": device,
        "issued": _iso(forecast.t / 1000),
        "stream": forecast.stream,
        "model": forecast.model,
        "bundle_version": forecast.bundle,
        "run": forecast.run,
        "version": forecast.version,
        "source": forecast.source,
        "candidate": forecast.by,
        "error": forecast.error,
        "coverage": forecast.coverage,
        "values": [step | {"start": _iso(step["start"])} for step in steps_of(forecast)],
    }


def _line(row: dict[str, Any]) -> str:
    first = row["values"][0]
    ends = "" if first["lower"] is None else f" ({first['lower']:.4g} to {first['upper']:.4g})"
    value = "-" if first["value"] is None else f"{first['value']:.4g}"
    error = "" if row["error"] is None else f", error {row['error']:.3g}"
    version = "-" if row["version"] is None else row["version"]
    return (
        f"{row['device']:<24} {row['stream']} {first['start']} {value}{ends}, {len(row['values'])} steps, "
        f"issued {row['issued']}, {row['model']} version {version} by {row['candidate']}{error}"
    )


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in rows:
        for step in row["values"]:
            cells = row | step
            table.writerow(["" if cells[name] is None else cells[name] for name in COLUMNS])
    return out.getvalue().rstrip("\n")


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
