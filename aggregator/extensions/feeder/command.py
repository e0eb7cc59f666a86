"""Forecast the next day of a feeder from the sums of its devices: no device's own numbers are known.

The sums are those of [[sums.contract]], which a witness opens. Devices that are missing in a sum are counted,
and the sum is scaled to all devices by their number. Times are in UTC.

  gridfed-aggregator feeder                     every feeder, a line each
  gridfed-aggregator feeder F12                 yesterday and the next day as a table
  gridfed-aggregator feeder F12 --csv > f12.csv
  gridfed-aggregator feeder F12 --plot f12.svg

With --store the forecasts are kept for the console, HTTP and Prometheus, and published by [feeder.mqtt]; a daemon
with feeder.forecast = true does it after each opened sum.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from aggregator.commands.arguments import add_config_option, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder import (
    FeederBook,
    FeederError,
    FeederForecast,
    feeder_forecast,
    feeders_of,
    opened_sums,
)
from aggregator.extensions.feeder.feeder_chart import day_chart
from aggregator.extensions.feeder.feeder_mqtt import open_link, publish
from edge_sdk.app.cli import CommandResult

COLUMNS = ("feeder", "start", "value", "lower", "upper", "unit", "devices", "missing")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the feeder, the configuration and the form."""
    parser.add_argument(
        "feeder", nargs="?", help="value of the contract's label (default: every feeder)"
    )
    parser.add_argument("--csv", action="store_true", help="one line for each step")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument("--store", action="store_true", help="keep the forecasts for the daemon")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Forecast one feeder or all; raise FeederError for one without a history."""
    config = require_database(AggregatorConfig.load(args.config))
    section = config.section("feeder")
    sums = opened_sums(config, 0, section.weight)
    zone = ZoneInfo(section.zone)
    names = feeders_of(sums) if args.feeder is None else [args.feeder]
    found = [feeder_forecast(sums, name, zone, section.most_days) for name in names]
    if args.store:
        for one in found:
            FeederBook.of(config).save(one)
        if section.mqtt is not None:
            publish(open_link(section.mqtt, config.fleet), section.mqtt.topic, found)
    if args.plot is not None:
        if len(found) != 1:
            raise FeederError("--plot: expected one feeder", hint=f"feeders: {', '.join(names)}")
        args.plot.write_text(day_chart(found[0], zone), encoding="utf-8")
    data = {"feeders": [one.document() for one in found]}
    return CommandResult(data, _text(found, args) or "no sum of a feeder's load is opened")


def _text(found: list[FeederForecast], args: Namespace) -> str:
    if args.csv:
        rows = [_cells(one, row) for one in found for row in one.document()["values"]]
        return "\n".join(",".join(row) for row in (COLUMNS, *rows))
    if args.feeder is None:
        return "\n".join(map(_line, found))
    return "\n".join(_table(found[0]))


def _cells(one: FeederForecast, row: dict[str, Any]) -> tuple[str, ...]:
    cells = row | {
        "feeder": one.feeder,
        "unit": one.unit,
        "devices": one.expected,
        "missing": one.missing,
    }
    return tuple("" if cells[name] is None else str(cells[name]) for name in COLUMNS)


def _line(one: FeederForecast) -> str:
    first = one.document()["values"][0]["start"]
    mean = sum(one.values) / len(one.values)
    return (
        f"{one.feeder or '-':<16} {first} mean {mean:.4g} {one.unit}, highest {max(one.values):.4g}, "
        f"{one.missing} of {one.expected} devices missing, from {_made_of(one)}"
    )


def _table(one: FeederForecast) -> list[str]:
    document = one.document()
    lacks = one.yesterday.expected - one.yesterday.members
    until = f"history: {one.days} days until {document['history_until']}"
    lines = [
        _line(one),
        f"{until}; its newest day lacks {lacks} of {one.yesterday.expected} devices",
        f"{'from':<26}{'forecast':>10}{'lower':>10}{'upper':>10}{'day before':>12}  {one.unit}",
    ]
    for row, before in zip(document["values"], one.yesterday.values, strict=True):
        ends = ["-" if row[key] is None else f"{row[key]:.4g}" for key in ("lower", "upper")]
        lines.append(
            f"{row['start']:<26}{row['value']:>10.4g}{ends[0]:>10}{ends[1]:>10}{before:>12.4g}"
        )
    return lines


def _made_of(one: FeederForecast) -> str:
    if one.how == "combined":
        return f"{one.share:.0%} history and {1 - one.share:.0%} devices"
    return {"history": "the history alone", "devices": "the devices alone"}[one.how]
