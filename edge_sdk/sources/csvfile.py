"""Read a CSV file, plain or gzip: a history for training, or a meter's nightly export."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import Any, Literal

from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading

ABSENT = frozenset({"", "na", "n/a", "nan", "null", "none", "nil"})


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A file with a header line, one time column, and one column per stream.

    Attributes:
        path: File; one whose name ends in ``.gz`` is decompressed.
        columns: Canonical stream by column.
        time_column: Name of the time column.
        time_format: ``iso`` (a date and time, with or without an offset) or ``epoch`` (Unix seconds).
        time_zone: Time zone of times without an offset.
        start: First moment to read, Unix seconds.
        until: End of the span to read, exclusive.
        interval_seconds: Length of the interval of each row, where it is shorter than the bundle's step.
        filter: Required text by column, for a file with several devices.
        delimiter: Separator of fields.
        rejected: Rows and fields dropped, by reason.
    """

    path: Path
    columns: Mapping[str, str]
    time_column: str = "time"
    time_format: Literal["iso", "epoch"] = "iso"
    time_zone: tzinfo = UTC
    start: float = -math.inf
    until: float = math.inf
    interval_seconds: float | None = None
    filter: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ","
    rejected: Counter[str] = field(default_factory=Counter)

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""
        return frozenset(self.columns.values())

    def __iter__(self) -> Iterator[Reading]:
        """Yield the file's readings in file order; unreadable ones are counted and skipped."""
        try:
            with (
                gzip.open(self.path)
                if self.path.suffix == ".gz"
                else self.path.open("rb") as packed
            ):
                lines = io.TextIOWrapper(packed, "utf-8-sig", errors="replace", newline="")
                yield from self._readings(csv.reader(lines, delimiter=self.delimiter))
        except (OSError, EOFError, zlib.error, csv.Error):
            self.rejected["unreadable file"] += 1

    def _readings(self, rows: Iterator[list[str]]) -> Iterator[Reading]:
        header = next(rows, [])
        at = {name: place for place, name in enumerate(header)}
        if missing := {self.time_column, *self.columns, *self.filter} - set(at):
            self.rejected[f"no column {min(missing)}"] += 1
            return
        when, width = at[self.time_column], len(header)
        where = [(at[column], text) for column, text in self.filter.items()]
        streams = [(at[column], stream) for column, stream in self.columns.items()]
        before = -math.inf
        for row in rows:
            if not row:
                continue
            row.extend([""] * (width - len(row)))
            if any(row[place] != text for place, text in where):
                continue
            moment = self._moment(row[when], before)
            if moment is None:
                self.rejected["bad time"] += 1
                continue
            before = moment
            if self.start <= moment < self.until:
                for place, stream in streams:
                    value = self._value(row[place])
                    if value is not None:
                        yield Reading(stream, moment, value, 0, self.interval_seconds)

    def _value(self, text: str) -> float | None:
        """Parse a number; count an invalid one."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        self.rejected["no value" if text.strip().lower() in ABSENT else "bad value"] += 1
        return None

    def _moment(self, text: str, before: float) -> float | None:
        """Parse a time. In the repeated hour of a clock change, the later follows the earlier."""
        try:
            if self.time_format == "epoch":
                moment = float(text)
                return moment if math.isfinite(moment) else None
            read = datetime.fromisoformat(text.strip())
            if read.tzinfo is not None:
                return read.timestamp()
            first, second = (read.replace(tzinfo=self.time_zone, fold=fold) for fold in (0, 1))
            early, late = first.timestamp(), second.timestamp()
        except (ValueError, OverflowError, OSError):
            return None
        return late if early <= before < late else early


def csv_file(section: Mapping[str, Any]) -> CsvFile:
    """Build a CSV source from its section of a configuration.

    Keys: ``path``, ``columns`` (column to stream; or ``column`` and ``stream`` for one),
    ``time_column``, ``time_format``, ``time_zone``, ``from``, ``until``, ``interval_seconds``,
    ``filter``, ``delimiter``.

    Raises:
        ConfigError: A missing, unknown or invalid key, or a missing file.
    """
    keys = {key: value for key, value in section.items() if key != "type"}
    if "column" in keys and "stream" in keys:
        keys.setdefault("columns", {keys.pop("column"): keys.pop("stream")})
    keys["start"] = keys.pop("from", -math.inf)
    known = {f.name for f in fields(CsvFile)} - {"rejected"}
    if unknown := set(keys) - known:
        raise ConfigError(f"source csv: unknown key {min(unknown)!r}")
    if not keys.get("columns") or "path" not in keys:
        raise ConfigError("source csv: needs 'path', and 'columns' that map a column to its stream")
    if keys.get("time_format", "iso") not in ("iso", "epoch"):
        raise ConfigError(
            f"source csv: time_format must be 'iso' or 'epoch', not {keys['time_format']!r}"
        )
    keys["path"] = Path(keys["path"])
    if not keys["path"].is_file():
        raise ConfigError(f"source csv: path: no such file: {str(keys['path'])!r}")
    keys["time_zone"] = zone = _zone(keys.get("time_zone", "UTC"))
    keys["start"] = _bound(keys["start"], zone)
    keys["until"] = _bound(keys.get("until", math.inf), zone)
    return CsvFile(**keys)


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - 0.5 MB; UTC is common

    try:
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"source csv: unknown time zone {name!r}") from error


def _bound(value: object, zone: tzinfo) -> float:
    """Convert Unix seconds, an ISO text, or TOML's dates and times to Unix seconds."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=zone)
        if isinstance(value, datetime):
            return value.replace(tzinfo=value.tzinfo or zone).timestamp()
        if isinstance(value, int | float):
            return float(value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"source csv: {value!r} is not a time") from error
    raise ConfigError(f"source csv: {value!r} is neither a date nor a number of seconds")
