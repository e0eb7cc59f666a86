"""Compare forecasts on records of your own, alone and as a fleet; nothing leaves this machine.

First tomorrow's 24 hours and the first days of a new device; then all ways at each horizon.

gridfed-sim evaluate --data meters
gridfed-sim evaluate --data meters.csv --zone Europe/Berlin --ahead 15min,24h
"""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import SettingsError
from firmware_sim.evaluation.closed_form import COLD
from firmware_sim.evaluation.comparison import HorizonComparison, compare
from firmware_sim.evaluation.page import page
from firmware_sim.evaluation.records import FleetRecords, on_grid, span
from firmware_sim.evaluation.tables import read_tables
from firmware_sim.evaluation.tomorrow import (
    compare_tomorrow,
    tomorrow_json,
    tomorrow_table,
    tomorrow_verdict,
)
from firmware_sim.evaluation.verdict import as_json, cold_start, table, verdict
from firmware_sim.reports.progress_display import display

PAGE = "evaluation.html"
TOO_SHORT = (
    "it needs steps that divide an hour, and two devices with five weeks before the test days"
)
_MARKS = {"point": ".", "comma": ","}
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    words = "CSV or Parquet: a file for each device, one wide file, or one long file"
    add("--data", type=Path, required=True, metavar="FOLDER", help=words)
    add("--zone", metavar="NAME", help="time zone of times without an offset (detected)")
    add("--time-column", metavar="NAME", help="column of the times (detected)")
    add("--value-column", metavar="NAME", help="column of the readings (detected)")
    add("--decimal", choices=tuple(_MARKS), help="decimal mark of text files (detected)")
    words = "kind of the readings (registers are recognised; other readings are levels)"
    add("--kind", choices=("register", "energy", "level"), help=words)
    words = "edge of the interval that a time names (detected)"
    add("--times", choices=("begin", "end"), help=words)
    add("--step", type=seconds, metavar="SPAN", help="step of the grid, such as 15min (detected)")
    words = "how far ahead to forecast, with commas (one step, and 24h)"
    add("--ahead", metavar="SPANS", help=words)
    words = "days at the end that are judged (a quarter of the record, at most 56)"
    add("--test-days", type=int, metavar="N", help=words)
    add("--quick", action="store_true", help="leave out the networks and the centralised mark")
    add("--seed", type=int, default=0, help="seed of random features and minibatches (0)")
    add("--out", type=Path, default=Path("evaluation"), help="folder of the page (evaluation)")


def run(args: Namespace) -> CommandResult:
    """Read the tables, compare, write the page, and return the tables."""
    if args.test_days is not None and args.test_days < 1:
        raise SettingsError(f"--test-days {args.test_days}: at least 1 is needed")
    began = time.monotonic()
    with display(is_quiet=args.json) as shown:
        shown.note(f"reading {args.data}")
        read = read_tables(
            args.data,
            zone=args.zone,
            time_column=args.time_column,
            value_column=args.value_column,
            decimal=_MARKS.get(args.decimal, ""),
            edge=args.times,
            progress=lambda name: shown.note(f"reading {name}"),
        )
        records = on_grid(read, args.step, args.kind)
        horizons = _rows(args.ahead, records)
        shown.note("tomorrow's 24 hours, and the first days of a new device")
        day = compare_tomorrow(
            records,
            test_days=args.test_days,
            on_part=lambda done, parts: shown.advance("tomorrow and first days", done, parts),
        )
        found: list[HorizonComparison] = []
        for ahead in horizons:
            name = span(ahead * records.step)

            def progress(line: str, name: str = name) -> None:
                shown.note(f"{name} ahead: {line}")

            def on_round(way: str, done: int, rounds: int, name: str = name) -> None:
                shown.advance(f"{name} ahead, {way}", done, rounds)

            found.append(
                compare(
                    records,
                    ahead,
                    cold=COLD,
                    test_days=args.test_days,
                    seed=args.seed,
                    is_quick=args.quick,
                    progress=progress,
                    on_round=on_round,
                )
            )
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / PAGE
    path.write_text(page(found, records, f"Forecasts for {args.data.name}", day), encoding="utf-8")
    text = [*records.notes, ""]
    if day is None:
        text += [f"tomorrow was not compared: {TOO_SHORT}", ""]
    else:
        text += [*tomorrow_verdict(day), "", tomorrow_table(day), ""]
    for one in found:
        text += [table(one, records), "", cold_start(one), "", *verdict(one, records), ""]
    text.append(f"{time.monotonic() - began:.0f} seconds; nothing left this machine")
    more = {"tomorrow": None if day is None else tomorrow_json(day), "page": str(path)}
    return CommandResult(as_json(found, records) | more, "\n".join([*text, f"page: {path}"]))


def seconds(text: str) -> int:
    """Return a span such as ``15min``, ``1h`` or ``900`` in seconds.

    >>> seconds("15min"), seconds("24h"), seconds("900")
    (900, 86400, 900)
    """
    match = re.fullmatch(r"(\d+)\s*(s|min|h|d)?", text.strip())
    if not match or not int(match[1]):
        raise ValueError(f"{text!r} is not a span such as 15min, 1h or 7d")
    return int(match[1]) * _UNITS[match[2] or "s"]


def _rows(spans: str | None, records: FleetRecords) -> list[int]:
    if spans is None:
        return [1, records.day]
    rows = []
    for text in spans.split(","):
        try:
            length = seconds(text)
        except ValueError as error:
            raise SettingsError(f"--ahead: {error}") from error
        if length % records.step or length > 7 * 86_400:
            raise SettingsError(
                f"--ahead {text}: not a whole number of steps of {span(records.step)},"
                " or more than 7 days"
            )
        rows.append(length // records.step)
    return rows
