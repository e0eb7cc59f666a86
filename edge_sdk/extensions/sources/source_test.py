"""Test one source: print the values of the interface, and the readings that result from them.

Needs no broker and no key, and stores nothing. Exits with 75 if no data arrives. --record keeps the
received frames for a [[source]] of type replay.

  gridfed-edge source test meter.toml
  gridfed-edge source test meter.toml p1 --count 5 --record frames.bin
"""

from __future__ import annotations

import math
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from edge_sdk.agent import open_sources
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import open_private
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import OK, TEMPORARY, ConfigError
from edge_sdk.extensions.sources.base import RawFrame
from edge_sdk.extensions.sources.recording import record, title
from edge_sdk.extensions.sources.threaded_source import ThreadedSource
from edge_sdk.forecasting.series import STREAMS, Flag, Reading
from edge_sdk.sources import LiveSource, Source, open_source
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore

_TURN = 0.05
_SHOWN = 100  # values that are printed


@runtime_checkable
class ExaminedSource(Protocol):
    """A source that lists the input that it reads and the input that it leaves out."""

    def survey(self) -> Iterable[str]:
        """Return the unused parts of its input."""

    def report(self) -> Mapping[str, Any]:
        """Return further results of a test, after the readings.

        Raises:
            ConfigError: The source cannot be tested alone.
        """


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
    source, where = chosen(Config.load(args.config), args.name)
    is_live = isinstance(source, ThreadedSource) and not source.is_finite
    if is_live:
        sys.stderr.write(waiting(where, args.count, args.seconds, time.time()) + "\n")
        sys.stderr.flush()
    found = listen(source, args.count, args.seconds, args.record)
    if not found["values"] and not found["readings"]:
        found["waited"] = args.seconds if is_live else 0.0
    text = "\n".join(lines(found))
    return CommandResult(found, text, TEMPORARY if "waited" in found else OK)


def chosen(config: Config, name: str) -> tuple[Source, str]:
    """Create the selected source: by number, by type, or the only one; return it, type and address.

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
    where = next((section[key] for key in ("url", "folder", "spool") if key in section), "")
    return open_source(section, f"source[{number}]"), f"{section.get('type')} {where}"


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
        kept = _LastOfSlots(count)
        kept.add(source)  # to its end: every rejected line is counted
        found = {
            "values": [],
            "readings": [*map(_shown, kept.readings)],
            "more": kept.more,
            "rejected": dict(source.rejected),
        }
        return found | dict(source.report() if isinstance(source, ExaminedSource) else {})
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
        return {"values": values, "readings": readings, **source.report()}


def _gathered(source: ThreadedSource, count: int, patience: float) -> tuple[list[Any], list[Any]]:
    values: list[Any] = []
    kept = _LastOfSlots(count)
    end = time.monotonic() + patience
    while len(kept.readings) < count and time.monotonic() < end:
        for samples, taken in source.turn():
            values = [_told(source, sample) for sample in samples] or values
            kept.add(taken)
        time.sleep(_TURN)
    return values, [*map(_shown, kept.readings)]


class _LastOfSlots:
    """The first ``count`` readings; of several readings of a stream in one slot, the last one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: dict[tuple[str, float, float | None], Reading] = {}
        self.more = 0  # readings beyond

    @property
    def readings(self) -> list[Reading]:
        return [*self._kept.values()]

    def add(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            slot = (reading.stream, reading.time, reading.seconds)
            if slot in self._kept or len(self._kept) < self._count:
                self._kept[slot] = reading
            else:
                self.more += 1


def waiting(source: str, count: int, patience: float, now: float) -> str:
    """Return the sentence about the awaited readings of a source test, and the deadline.

    Args:
        source: Type and address of the source.
        patience: Time limit in seconds.
        now: Unix seconds.

    >>> waiting("p1 tcp://meter:23", 1, 30.0, 0.0)
    'p1 tcp://meter:23: waits for a reading until 00:00:30 UTC (30 s; --seconds sets it)'
    """
    until = datetime.fromtimestamp(now + patience, UTC).strftime("%H:%M:%S UTC")
    what = "a reading" if count == 1 else f"{count} readings"
    return f"{source}: waits for {what} until {until} ({patience:g} s; --seconds sets it)"


def _told(source: ThreadedSource, sample: Any) -> dict[str, Any]:  # noqa: ANN401 - a Sample
    name = source.normaliser.names.get(sample.name)
    row = asdict(sample)
    row["stream"] = None if name is None else name.stream
    return {key: None if isinstance(x, float) and math.isnan(x) else x for key, x in row.items()}


def _shown(reading: Reading) -> dict[str, Any]:
    unit = STREAMS[reading.stream].unit if reading.stream in STREAMS else ""
    return {**asdict(reading), "unit": unit}


def _value_lines(values: list[dict[str, Any]]) -> Iterator[str]:
    if (more := len(values) - _SHOWN) > 0:
        yield f"the newest {_SHOWN} values; {more} before"
    for value in values[-_SHOWN:]:
        means = value["stream"] or "not mapped"
        means += f", not used: {value['fault']}" if value["fault"] and value["stream"] else ""
        number = "-" if value["value"] is None else f"{value['value']:.6g}"
        yield f"{value['name']:16} {number:>14} {value['unit']:6} {means}"


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Format the result as text lines."""
    yield from _value_lines(found["values"])
    for reading in found["readings"]:
        at = datetime.fromtimestamp(reading["time"], UTC).isoformat()
        span = f" over {reading['seconds']:g} s" if reading["seconds"] else ""
        doubt = ", suspect" if reading["flags"] & Flag.SUSPECT else ""
        yield f"{at}  {reading['stream']} = {reading['value']:.6g} {reading['unit']}{span}{doubt}"
    if found.get("more"):
        yield f"and {found['more']} more readings"
    if "detected" in found:
        yield "read as: " + ", ".join(f"{what} {how!r}" for what, how in found["detected"].items())
    for reason, line in found.get("offending", {}).items():
        yield f"first {reason}: {line}"
    for reason, times in {**found["rejected"], **found.get("noticed", {})}.items():
        yield f"{reason}: {times}"
    for name, times in found.get("unused", {}).items():
        yield f"not used: {name} ({times} {'time' if times == 1 else 'times'})"
    if found.get("waited"):
        link = "open" if found["linked"] else f"not open, tried {found['lost']} times"
        why = f" ({found['why']})" if found["why"] else ""
        yield f"no data received within {found['waited']:g} s; its link is {link}{why}"
    elif "waited" in found:
        yield "no reading in the file"


def checked(config: Config) -> dict[str, str]:
    """Return the unused input of each source: of its files, and as the agent last noted it."""
    found = {}
    for number, source in enumerate(open_sources(config)):
        names = dict.fromkeys(source.survey() if isinstance(source, ExaminedSource) else ())
        if isinstance(source, LiveSource) and (config.state / FILE).exists():
            with DeviceStore.open(config.state, read_only=True) as store:
                note = store.paper(f"source {number} {source.kind}")
            names |= dict.fromkeys(source.saved_unused(note))
        if names:
            found[f"source[{number}] not used"] = "; ".join(names)
    return found
