"""Read a CSV file, plain or gzip: a history for training, or a meter's nightly export."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from edge_sdk.app.csv_dialect import EPOCH, ISO, ROWS, CsvDialect, detected
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading

_SHOWN = 120  # letters of an offending line that are shown
ABSENT = frozenset({"", "na", "n/a", "nan", "null", "none", "nil"})


@dataclass(slots=True)
class CsvFile:
    """A file with a header line, one time column, and one column per stream.

    Attributes:
        path: File; one whose name ends in ``.gz`` is decompressed.
        columns: Canonical stream by column.
        time_column: Name of the time column.
        time_format: ``auto``, ``iso`` (with or without an offset), ``epoch`` (Unix seconds), or a
            pattern such as ``%d.%m.%Y %H:%M``.
        time_zone: Time zone of times without an offset.
        start: First moment to read, Unix seconds.
        until: End of the span to read, exclusive.
        interval_seconds: Length of the interval of each row, where it is shorter than the bundle's step.
        filter: Required text by column, for a file with several devices.
        delimiter: Separator of fields; empty detects it.
        decimal: Decimal mark: ``auto``, ``.`` or ``,``.
        rejected: Rows and fields dropped, by reason.
        offending: First line that was rejected for each reason, with its number.
        dialect: How the file is written, as last read.
    """

    path: Path
    columns: Mapping[str, str]
    time_column: str = "time"
    time_format: str = "auto"
    time_zone: tzinfo = UTC
    start: float = -math.inf
    until: float = math.inf
    interval_seconds: float | None = None
    filter: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ""
    decimal: Literal["auto", ".", ","] = "auto"
    rejected: Counter[str] = field(default_factory=Counter)
    offending: dict[str, str] = field(default_factory=dict)
    dialect: CsvDialect = field(default_factory=CsvDialect)

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""
        return frozenset(self.columns.values())

    def __iter__(self) -> Iterator[Reading]:
        """Yield the file's readings in file order; unreadable ones are counted and skipped."""
        try:
            with self._opened() as lines:
                self.dialect = self._dialect([*islice(lines, ROWS + 1)])
            with self._opened() as lines:
                rows = csv.reader(lines, delimiter=self.dialect.delimiter)
                yield from self._readings(rows)
        except (OSError, EOFError, zlib.error, csv.Error):
            self.rejected["unreadable file"] += 1

    def lacks(self) -> tuple[set[str], list[str]]:
        """Return the wanted columns that the file lacks, and the columns that it has.

        A file that is empty or cannot be read now lacks none: it may arrive later.
        """
        try:
            with self._opened() as lines:
                first = [*islice(lines, ROWS + 1)]
            header = next(csv.reader(first[:1], delimiter=self._dialect(first).delimiter), [])
        except (OSError, EOFError, zlib.error, csv.Error):
            return set(), []
        return (self._wanted - set(header) if header else set()), header

    @property
    def _wanted(self) -> set[str]:
        return {self.time_column, *self.columns, *self.filter}

    def detect(self) -> dict[str, str]:
        """Return how the file is written, as it was last read, for people."""
        found = self.dialect
        times = found.time_format or "ambiguous"
        return {"separator": found.delimiter, "decimal mark": found.decimal, "times": times}

    @contextmanager
    def _opened(self) -> Iterator[io.TextIOWrapper]:
        is_packed = self.path.suffix == ".gz"
        with gzip.open(self.path) if is_packed else self.path.open("rb") as packed:
            yield io.TextIOWrapper(packed, "utf-8-sig", errors="replace", newline="")

    def _dialect(self, lines: list[str]) -> CsvDialect:
        """Return the dialect of the first lines; what the configuration names is not detected."""
        numbers = [name for name in self.columns if name != self.time_column]
        found = detected(lines, self.time_column, numbers, self.delimiter)
        return replace(
            found,
            decimal=found.decimal if self.decimal == "auto" else self.decimal,
            time_format=found.time_format if self.time_format == "auto" else self.time_format,
        )

    def _reject(self, reason: str, number: int, row: list[str]) -> None:
        """Count a rejected row or field, and keep the first line of each reason."""
        self.rejected[reason] += 1
        text = self.dialect.delimiter.join(row)
        self.offending.setdefault(reason, f"line {number}: {text[:_SHOWN]}")

    def _readings(self, rows: Any) -> Iterator[Reading]:  # noqa: ANN401 - a csv reader
        header: list[str] = next(rows, [])
        at = {name: place for place, name in enumerate(header)}
        if missing := self._wanted - set(at):
            self._reject(f"no column {min(missing)}", 1, header)
            return
        if not self.dialect.time_format:
            self._reject("ambiguous dates", 2, next(rows, []))
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
                self._reject("bad time", rows.line_num, row)
                continue
            before = moment
            if self.start <= moment < self.until:
                for place, stream in streams:
                    value = self._value(row[place])
                    if value is None:
                        is_absent = row[place].strip().lower() in ABSENT
                        self._reject("no value" if is_absent else "bad value", rows.line_num, row)
                    else:
                        yield Reading(stream, moment, value, 0, self.interval_seconds)

    def _value(self, text: str) -> float | None:
        """Parse a number; None for anything else."""
        try:
            value = self.dialect.number(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def _moment(self, text: str, before: float) -> float | None:
        """Parse a time. In the repeated hour of a clock change, the later follows the earlier."""
        try:
            form = self.dialect.time_format
            if form == EPOCH:
                moment = float(text)
                return moment if math.isfinite(moment) else None
            read = (
                datetime.fromisoformat(text.strip())
                if form == ISO
                else datetime.strptime(text.strip(), form)  # noqa: DTZ007 - the zone follows
            )
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
    ``filter``, ``delimiter``, ``decimal``.

    Raises:
        ConfigError: A missing, unknown or invalid key, or a missing file.
    """
    keys = {key: value for key, value in section.items() if key != "type"}
    if "column" in keys and "stream" in keys:
        keys.setdefault("columns", {keys.pop("column"): keys.pop("stream")})
    keys["start"] = keys.pop("from", -math.inf)
    known = {f.name for f in fields(CsvFile)} - {"rejected", "offending", "dialect"}
    if unknown := set(keys) - known:
        raise ConfigError(f"source csv: unknown key {min(unknown)!r}")
    if not keys.get("columns") or "path" not in keys:
        raise ConfigError("source csv: needs 'path', and 'columns' that map a column to its stream")
    form = str(keys.get("time_format", "auto"))
    if form not in ("auto", ISO, EPOCH) and "%" not in form:
        raise ConfigError(
            f"source csv: time_format must be 'auto', 'iso', 'epoch' or a pattern such as "
            f"'%d.%m.%Y %H:%M', not {form!r}"
        )
    if keys.get("decimal", "auto") not in ("auto", ".", ","):
        raise ConfigError(
            f"source csv: decimal must be 'auto', '.' or ',', not {keys['decimal']!r}"
        )
    if len(str(keys.get("delimiter", ""))) > 1:
        raise ConfigError(f"source csv: delimiter must be one character, not {keys['delimiter']!r}")
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
