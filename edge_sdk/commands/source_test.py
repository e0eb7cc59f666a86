"""Test a configured source: show the raw values of the interface and the resulting readings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from edge_sdk.app.permissions import open_private
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import STREAMS, Reading
from edge_sdk.sources import Source, ThreadedSource, open_source
from edge_sdk.sources.base import RawFrame
from edge_sdk.sources.recording import record, title

_TURN = 0.05


def chosen(config: Config, name: str) -> Source:
    """Create the selected source: by number, by type, or the only one configured.

    Raises:
        ConfigError: No source, or several, match.
    """
    rows = list(enumerate(config.source))
    meant = [row for row in rows if name in ("", str(row[0]), str(row[1].get("type")))]
    if len(meant) != 1:
        has = ", ".join(f"{number} ({row.get('type')})" for number, row in rows) or "none"
        raise ConfigError(f"which source? configured: {has}", hint="name one by its number")
    number, section = meant[0]
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
        readings = [_shown(reading) for reading in islice(source, count)]
        return {"values": [], "readings": readings, "rejected": dict(source.rejected)}
    with ExitStack() as opened:
        if out is not None:
            file = opened.enter_context(open_private(out, "wb"))
            file.write(title(source.kind))
            guard = threading.Lock()

            def keep(frame: RawFrame) -> None:
                with guard:
                    file.write(record(frame))

            source.record = keep
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
    for reason, times in {**found["rejected"], **found.get("noticed", {})}.items():
        yield f"{reason}: {times}"
    if not found["readings"] and not found["values"]:
        yield "nothing was heard"
