"""Read a CSV file, plain or gzip: a history for training, or a meter's nightly export."""

from __future__ import annotations

import csv
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import NOT_MAPPED, tally
from edge_sdk.extensions.sources.counter_intervals import CounterSum
from edge_sdk.extensions.sources.csv_clock import interval_begin, with_offset
from edge_sdk.extensions.sources.csv_dialect import (
    ABSENT,
    EPOCH,
    ISO,
    ROWS,
    CsvDialect,
    at_midnight,
    detected,
    joined_times,
)
from edge_sdk.extensions.sources.csv_head import PREAMBLE, fields_of, is_header_again
from edge_sdk.extensions.sources.file_bounds import open_text, refused
from edge_sdk.extensions.sources.register_column import RegisterDifferences, register_differences
from edge_sdk.forecasting.series import STREAMS, Reading

_SHOWN = 120  # letters of an offending line that are shown
_LATEST = 1e11  # Unix seconds of a time; a larger number has a finer unit
_EXAMINED = 4 << 20  # characters of the first rows, from which the dialect is detected
_MOST = 250.0 / 3600  # largest rise of a register per second, as of live sources
KINDS = ("auto", "register", "interval", "instant")
EDGES = ("auto", "begin", "end")


@dataclass(slots=True)
class CsvFile:
    """A file with a header line, a time in one column or two, and one column per stream.

    The header may follow other lines. Columns of registers become differences.
    """

    path: Path  # file, plain or gzip
    columns: Mapping[str, str]  # canonical stream by column
    # name of the time column; a list of two for the columns of date and time of day
    time_column: str | Sequence[str] = "time"
    # ``auto``, ``iso`` (with or without an offset), ``epoch`` (Unix seconds), or a pattern such as
    # ``%d.%m.%Y %H:%M``
    time_format: str = "auto"
    time_zone: tzinfo = UTC  # time zone of times without an offset
    start: float = -math.inf  # first moment to read, Unix seconds
    until: float = math.inf  # end of the span to read, exclusive
    # length of the interval of each row, where it is shorter than the bundle's step; a register that
    # was read at other moments is brought onto a grid of this length
    interval_seconds: float | None = None
    # ``register``, ``interval`` or ``instant``; ``auto`` recognises registers in the first rows
    kind: Literal["auto", "register", "interval", "instant"] = "auto"
    # edge of its interval that a time is: ``begin``, ``end``; ``auto``: the end if 24:00 occurs
    times: Literal["auto", "begin", "end"] = "auto"
    # required text by column, or a list of texts, for a file with several devices
    filter: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    delimiter: str = ""  # separator of fields; empty detects it
    decimal: Literal["auto", ".", ","] = "auto"  # decimal mark: ``auto``, ``.`` or ``,``
    rejected: Counter[str] = field(default_factory=Counter)  # rows and fields dropped, by reason
    # first line that was rejected for each reason, with its number
    offending: dict[str, str] = field(default_factory=dict)
    # columns that are not read, and rows left out, as ``tally`` counts them
    unused: Counter[str] = field(default_factory=Counter)
    dialect: CsvDialect = field(default_factory=CsvDialect)  # how the file is written, as last read
    # columns that were read as registers, and what was done with them
    registers: dict[str, list[str]] = field(default_factory=dict)

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""
        return frozenset(self.columns.values())

    def __iter__(self) -> Iterator[Reading]:
        """Yield the file's readings in file order, those of registers last.

        Unreadable ones are counted and skipped. A file beyond the limits of ``file_bounds`` gives none.
        """
        if reason := refused(self.path):
            self.rejected[reason] += 1
            self.offending.setdefault(reason, self.path.name)
            return
        try:
            with open_text(self.path) as lines:
                first = _first(lines)
            self.dialect = self._dialect(first)
            self.registers = {}
            step = self._learn(first)
            self.unused.clear()
            with open_text(self.path) as lines:
                for _ in range(self.dialect.header):
                    next(lines, None)
                yield from self._readings(lines, step)
        except (OSError, EOFError, zlib.error, csv.Error):
            self.rejected["unreadable file"] += 1

    def lacks(self) -> tuple[set[str], list[str]]:
        """Return the wanted columns that the file lacks, and the columns that it has.

        A file that is empty or cannot be read now lacks none: it may arrive later.

        Raises:
            ConfigError: The file is beyond the limits of ``file_bounds``.
        """
        if reason := refused(self.path):
            raise ConfigError(
                f"source: {self.path}: {reason}",
                hint="give a table of text lines; split one that is larger",
            )
        try:
            with open_text(self.path) as lines:
                first = _first(lines)
            found = self._dialect(first)
            header = fields_of("".join(first[found.header : found.header + 1]), found.delimiter)
        except (OSError, EOFError, zlib.error, csv.Error):
            return set(), []
        return (self._wanted - set(header) if header else set()), header

    def survey(self) -> list[str]:
        """Return the unused columns.

        Raises:
            ConfigError: A configured column is missing, so no line would be read; or as ``lacks``.
        """
        missing, header = self.lacks()
        if missing:
            raise ConfigError(
                f"source: {self.path}: no column {', '.join(sorted(missing))}; "
                f"its first line has {', '.join(header)[:200]}",
                hint='columns = { COLUMN = "stream" }; time_column = "COLUMN"',
            )
        return [f"column {name!r}" for name in header if name and name not in self._wanted]

    @property
    def _times(self) -> tuple[str, ...]:
        """The column of times, or those of dates and of times of day."""
        return (self.time_column,) if isinstance(self.time_column, str) else (*self.time_column,)

    @property
    def _wanted(self) -> set[str]:
        return {*self._times, *self.columns, *self.filter}

    def report(self) -> dict[str, Any]:
        """Return the detected form of the file, the first line of each rejection, and the unused input."""
        return {
            "detected": self.detect(),
            "offending": dict(self.offending),
            "unused": dict(self.unused),
        }

    def detect(self) -> dict[str, str]:
        """Return the dialect that was detected in the file, as text."""
        found = self.dialect
        times = found.time_format or "ambiguous"
        shown = {"separator": found.delimiter, "decimal mark": found.decimal, "times": times}
        if found.header:
            shown["header"] = f"line {found.header + 1}"
        if found.is_end:
            shown["a time is"] = "the end of its interval"
        if found.is_span:
            shown["a time is"] = "a span, of which the beginning is read"
        for column, clauses in self.registers.items():
            shown[f"column {column}"] = "; ".join(["a register, read as differences", *clauses])
        return shown

    def _dialect(self, lines: list[str]) -> CsvDialect:
        """Return the dialect of the first lines; configured values are not detected."""
        numbers = [name for name in self.columns if name not in self._times]
        found = detected(lines, self._times, numbers, self.filter, self.delimiter)
        is_given = self.decimal != "auto"
        return replace(
            found,
            decimal=self.decimal if is_given else found.decimal,
            is_decimal_certain=is_given or found.is_decimal_certain,
            time_format=found.time_format if self.time_format == "auto" else self.time_format,
            is_end=found.is_end if self.times == "auto" else self.times == "end",
        )

    def _learn(self, first: list[str]) -> float:
        """Note which columns of the first lines are registers; return the usual step in seconds."""
        lines = first[self.dialect.header :]
        rows = [*self._rows(lines, lambda *_: None)]
        for place, column in enumerate(self.columns):
            known = [(at, value) for at, values in rows if (value := values[place]) is not None]
            is_asked = self.kind == "auto" and self._adds(column)
            if self.kind == "register" or (is_asked and self._is_register(place, known)):
                self.registers[column] = []
        times = np.unique([at for at, _ in rows])
        return float(np.median(np.diff(times))) if len(times) > 1 else 0.0

    def _is_register(self, place: int, known: list[tuple[float, float]]) -> bool:
        """Return whether a column is a register; a column with constant first rows is read to its end."""
        if self._differences(known) is not None:
            return True
        values = [value for _, value in known]
        if len(values) < ROWS // 2 or values[0] <= 0 or values != sorted(values):
            return False
        with open_text(self.path) as lines:
            rows = self._rows(islice(lines, self.dialect.header, None), lambda *_: None)
            whole = [(at, value) for at, found in rows if (value := found[place]) is not None]
        return self._differences(whole) is not None

    def _adds(self, column: str) -> bool:
        stream = STREAMS.get(self.columns[column])
        return stream is not None and stream.adds

    def _differences(
        self, known: Iterable[tuple[float, float]], *, is_known: bool = False
    ) -> RegisterDifferences | None:
        """Return the differences of a column's readings, or None if it is no register."""
        latest = dict(sorted(known, key=itemgetter(0)))

        def seconds_of_day(moment: float) -> float:
            local = datetime.fromtimestamp(moment, self.time_zone)
            return local.hour * 3600.0 + local.minute * 60 + local.second

        return register_differences(
            np.array([*latest.keys()], np.float64),
            np.array([*latest.values()], np.float64),
            seconds_of_day,
            is_known=is_known,
        )

    def _reject(self, reason: str, number: int, row: list[str]) -> None:
        self.rejected[reason] += 1
        text = self.dialect.delimiter.join(row)
        number += self.dialect.header
        self.offending.setdefault(reason, f"line {number}: {text[:_SHOWN]}")

    def _readings(self, lines: Iterable[str], step: float) -> Iterator[Reading]:
        shift = (self.interval_seconds or step) if self.dialect.is_end else 0.0
        columns = [*self.columns.items()]
        kept: dict[str, list[tuple[float, float]]] = {column: [] for column in self.registers}
        for moment, values in self._rows(lines, self._reject):
            begin = moment - shift
            for (column, stream), value in zip(columns, values, strict=True):
                if value is None:
                    continue
                if column in kept:
                    kept[column].append((moment, value))
                elif self.start <= begin < self.until:
                    yield Reading(stream, begin, value, 0, self.interval_seconds)
        for column, readings in kept.items():
            yield from self._register(column, readings, step)

    def _register(
        self, column: str, readings: Sequence[tuple[float, float]], step: float
    ) -> Iterator[Reading]:
        grid = self.interval_seconds
        if grid and any(at % grid for at, _ in readings):
            yield from self._on_grid(column, grid, readings)
            return
        found = self._differences(readings, is_known=True)
        if found is None:
            return
        hint = ["interval_seconds brings it onto a grid"] * (10 * found.gaps > len(found.times))
        self.registers[column] = [*found.sentences(), *hint]
        seconds = grid or step or None
        for at, value in zip(found.times.tolist(), found.values.tolist(), strict=True):
            if self.start <= at < self.until and math.isfinite(value):
                yield Reading(self.columns[column], at, value, 0, seconds)

    def _on_grid(
        self, column: str, grid: float, readings: Iterable[tuple[float, float]]
    ) -> Iterator[Reading]:
        """Yield the differences of a register that was read at any moments, on a regular grid."""
        meter = CounterSum(grid, grid, _MOST)
        for moment, value in sorted(readings, key=itemgetter(0)):
            for interval in meter.add(moment, {column: value}):
                if self.start <= interval.time < self.until:
                    yield Reading(self.columns[column], interval.time, interval.value, 0, grid)
        counted = (f"{reason} ({count})" for reason, count in meter.counts.items())
        self.registers[column] = [f"brought onto a grid of {grid:g} s", *counted]

    def _rows(
        self, lines: Iterable[str], reject: Callable[[str, int, list[str]], None]
    ) -> Iterator[tuple[float, list[float | None]]]:
        rows = csv.reader(lines, delimiter=self.dialect.delimiter)
        header = next(rows, [])
        first = _places(header)
        if missing := self._wanted - set(first):
            reject(f"no column {min(missing)}", 1, header)
            return
        if not self.dialect.time_format:
            reject("ambiguous dates", 2, next(rows, []))
            return
        for name in first:
            if name and name not in self._wanted:
                tally(self.unused, f"column {name!r}", NOT_MAPPED)
        before = -math.inf
        for row, at in self._chosen(rows, header, reject):
            moment = self._moment(self._time(row, at), before)
            if moment is None:
                reject("bad time", rows.line_num, row)
                continue
            before = moment
            if not self.start <= moment <= self.until:
                self.unused["rows outside 'from' and 'until'"] += 1
                continue
            texts = [row[at[column]] for column in self.columns]
            values = [*map(self._value, texts)]
            yield moment, values
            for text, value in zip(texts, values, strict=True):
                if value is None and moment < self.until:
                    is_absent = text.strip().lower() in ABSENT
                    reject("no value" if is_absent else "bad value", rows.line_num, row)

    def _chosen(
        self,
        rows: Any,  # noqa: ANN401 - a csv reader
        header: list[str],
        reject: Callable[[str, int, list[str]], None],
    ) -> Iterator[tuple[list[str], Mapping[str, int]]]:
        """Yield the filtered rows, each with the positions of the columns by the nearest header above it."""
        at, width, lacks = _places(header), len(header), ""
        time, names = header[at[self._times[0]]], {*at}
        where = [
            (c, {texts} if isinstance(texts, str) else {*texts}) for c, texts in self.filter.items()
        ]
        for row in rows:
            if time in row and is_header_again(row, names, time):
                at, width = _places(row), len(row)
                names |= at.keys()
                lacks = min(self._wanted - set(at), default="")
                self.unused["header lines after the first"] += 1
            elif lacks:
                reject(f"no column {lacks}", rows.line_num, row)
            elif len(row) > width and any(map(str.strip, row[width:])):
                reject("more fields than the header", rows.line_num, row)
            elif row:
                row.extend([""] * (width - len(row)))
                if all(row[at[column]] in texts for column, texts in where):
                    yield row, at
                else:
                    self.unused["rows outside 'filter'"] += 1

    def _time(self, row: Sequence[str], at: Mapping[str, int]) -> str:
        date, *clock = (row[at[name]] for name in self._times)
        return joined_times([date], clock)[0][0] if clock else date

    def _value(self, text: str) -> float | None:
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
                return _unix_seconds(float(text))
            bare = interval_begin(text) if self.dialect.is_span else text.strip()
            bare, is_next_day = at_midnight(with_offset(bare) if self.dialect.is_zoned else bare)
            if bare.isdigit() and form == ISO and len(bare) > 8:
                return None  # Python would take any digit between date and time
            read = (
                datetime.fromisoformat(bare) if form == ISO else datetime.strptime(bare, form)  # noqa: DTZ007 - the zone follows
            )
            if is_next_day:
                read += timedelta(days=1)
            if read.tzinfo is not None:
                return read.timestamp()
            first, second = (read.replace(tzinfo=self.time_zone, fold=fold) for fold in (0, 1))
            early, late = first.timestamp(), second.timestamp()
        except (ValueError, OverflowError, OSError):
            return None
        return late if early <= before < late else early


def _unix_seconds(number: float) -> float | None:
    """Return a Unix time in seconds: one in milli-, micro- or nanoseconds shows it by its size."""
    if not math.isfinite(number):
        return None
    while number > _LATEST:
        number /= 1000
    return number


def _places(header: Sequence[str]) -> dict[str, int]:
    return {name.strip(): place for place, name in enumerate(header)}


def _first(lines: io.TextIOWrapper) -> list[str]:
    found: list[str] = []
    size = 0
    for line in islice(lines, PREAMBLE + ROWS + 1):
        found.append(line)
        size += len(line)
        if size > _EXAMINED:
            break
    return found
