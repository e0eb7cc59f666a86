"""Test one source: print the values of the interface, and the readings that result from them.

Needs no broker and no key, and stores nothing. Exits with 75 if no data arrives. --record keeps the
received frames for a [[source]] of type replay.

  gridfed-edge source test meter.toml
  gridfed-edge source test meter.toml p1 --count 5 --record frames.bin
"""

from __future__ import annotations

import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import OK, TEMPORARY, CommandResult
from edge_sdk.app.permissions import open_private
from edge_sdk.commands.arguments import add_config
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import STREAMS, Reading
from edge_sdk.sources import FleetWeatherSource, Source, ThreadedSource, open_source
from edge_sdk.sources.base import RawFrame
from edge_sdk.sources.csvfile import CsvFile
from edge_sdk.sources.recording import record, title

_TURN = 0.05


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("action", choices=("test",), help="the only action")
    add_config(parser)
    parser.add_argument(
        "name", nargs="?", default="", help="number or type of the source, if there are several"
    )
    parser.add_argument("--count", type=int, default=1, help="readings to wait for (1)")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest wait (30)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the received frames, for replay"
    )


def run(args: Namespace) -> CommandResult:
    """Return the received values and readings."""
    source = chosen(Config.load(args.config), args.name)
    if isinstance(source, FleetWeatherSource):
        raise ConfigError(
            "source fleet-weather: arrives over the fleet's own link, while the agent runs",
            hint="gridfed-edge run; the log event weather received shows each arrival",
        )
    found = listen(source, args.count, args.seconds, args.record)
    if not found["values"] and not found["readings"]:
        found["waited"] = args.seconds
    text = "\n".join(lines(found))
    return CommandResult(found, text, TEMPORARY if "waited" in found else OK)


def chosen(config: Config, name: str) -> Source:
    """Create the selected source: by number, by type, or the only one configured.

    Raises:
        ConfigError: No source, or several, match.
    """
    rows = list(enumerate(config.source))
    selected = [row for row in rows if name in ("", str(row[0]), str(row[1].get("type")))]
    if len(selected) != 1:
        has = ", ".join(f"{number} ({row.get('type')})" for number, row in rows) or "none"
        raise ConfigError(
            f"{len(selected)} sources match {name!r}; configured: {has}",
            hint="select one by its number: gridfed-edge source test CONFIG 0",
        )
    number, section = selected[0]
    return open_source(section, f"source[{number}]")


def listen(source: Source, count: int, patience: float, out: Path | None) -> dict[str, Any]:
    """Read until ``count`` readings have arrived, or the time is over.

    Args:
        source: Source that is not started yet.
        count: Number of readings wanted. Registers need two frames on either side of a boundary.
        patience: Time limit in seconds.
        out: File to record every frame in; None records nothing.

    Returns:
        ``values`` as last received from the interface, ``readings`` after conversion, and health.
    """
    if not isinstance(source, ThreadedSource) or source.is_finite:
        every = iter(source)
        readings = [_shown(reading) for reading in islice(every, count)]
        more = sum(1 for _ in every)  # to its end: every rejected line is counted
        found = {
            "values": [],
            "readings": readings,
            "more": more,
            "rejected": dict(source.rejected),
        }
        if isinstance(source, CsvFile):
            found |= {"detected": source.detect(), "offending": dict(source.offending)}
        return found
    with ExitStack() as opened:
        if out is not None:
            file = opened.enter_context(open_private(out, "wb"))
            file.write(title(source.kind))
            guard = threading.Lock()

            def keep(frame: RawFrame) -> None:
                with guard:
                    file.write(record(frame))

            source.record_frames(keep)
        opened.callback(source.close)
        source.start()
        values, readings = _gathered(source, count, patience)
    return {"values": values, "readings": readings, **source.health()}


def _gathered(source: ThreadedSource, count: int, patience: float) -> tuple[list[Any], list[Any]]:
    values: list[Any] = []
    readings: list[Any] = []
    end = time.monotonic() + patience
    while len(readings) < count and time.monotonic() < end:
        for samples, taken in source.turn():
            values = [_told(source, sample) for sample in samples] or values
            readings += [_shown(reading) for reading in taken]
        time.sleep(_TURN)
    return values, readings[:count]


def _told(source: ThreadedSource, sample: Any) -> dict[str, Any]:  # noqa: ANN401 - a Sample
    name = source.normaliser.names.get(sample.name)
    row = asdict(sample)
    row["stream"] = None if name is None else name.stream
    return row


def _shown(reading: Reading) -> dict[str, Any]:
    unit = STREAMS[reading.stream].unit if reading.stream in STREAMS else ""
    return {**asdict(reading), "unit": unit}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Format the result as text lines."""
    for value in found["values"]:
        means = value["stream"] or "not mapped"
        yield f"{value['name']:16} {value['value']:>14.6g} {value['unit']:6} {means}"
    for reading in found["readings"]:
        from datetime import UTC, datetime  # noqa: PLC0415 - text output only

        at = datetime.fromtimestamp(reading["time"], UTC).isoformat()
        span = f" over {reading['seconds']:g} s" if reading["seconds"] else ""
        yield f"{at}  {reading['stream']} = {reading['value']:.6g} {reading['unit']}{span}"
    if found.get("more"):
        yield f"and {found['more']} more readings"
    if "detected" in found:
        yield "read as: " + ", ".join(f"{what} {how!r}" for what, how in found["detected"].items())
    for reason, line in found.get("offending", {}).items():
        yield f"first {reason}: {line}"
    for reason, times in {**found["rejected"], **found.get("noticed", {})}.items():
        yield f"{reason}: {times}"
    if "waited" in found:
        yield f"no data received within {found['waited']:g} s"
