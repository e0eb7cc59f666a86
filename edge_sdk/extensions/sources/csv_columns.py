"""Propose the section of a configuration that reads a CSV file, from the file's first rows."""

from __future__ import annotations

import csv
import json
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from edge_sdk.extensions.sources.csv_clock import is_clock
from edge_sdk.extensions.sources.csv_dialect import ABSENT, ROWS, CsvDialect, date_of, decimal_mark
from edge_sdk.extensions.sources.csv_head import PREAMBLE, day_columns, is_header_again, table_head
from edge_sdk.extensions.sources.file_bounds import open_text, refused
from edge_sdk.extensions.sources.flow_names import END, IDENTIFIER, READING, flow, has_tariff

_EXPORTED = {"elec.import.energy": "elec.export.energy"}
_NUMBERS = 0.9  # share of a column's entries, at least, that are numbers
_TWICE = 0.2  # share of rows, at least, whose time occurred before in a file of several devices
_AGAIN = 0.01  # share of a device's times, at most, that occur twice: the hour that autumn repeats
_MOST_LINES = 200_000  # lines in which further devices are looked for
_LONGEST = 1 << 16  # characters of a line that is looked at


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The columns of a file, as its first rows show them."""

    times: tuple[str, ...]  # the column of times, or those of date and time of day
    numbers: tuple[str, ...]  # columns of numbers, the likeliest reading first
    columns: Mapping[str, str]  # proposed stream by column
    # proposed texts by column, where the file has several devices or flows
    filter: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problem: str = ""  # reason why the agent cannot read the file; empty if it can

    def reading(self, column: str, stream: str) -> CsvColumns:
        return replace(self, columns={column: stream})

    def section(self) -> dict[str, object]:
        """Return the keys of the section."""
        return tomllib.loads("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the keys of the section as lines of TOML."""
        time = self.times[0] if len(self.times) == 1 else list(self.times)
        found = [f"columns = {_table(self.columns)} # column of the file and its stream"]
        if time != "time":
            found.append(f"time_column = {_text(time)}")
        if any(END.search(name) for name in self.times):
            found.append('times = "end" # a time is the end of its interval')
        if self.filter:
            found.append(f"filter = {_table(self.filter)} # rows that are read")
        if left := [name for name in self.numbers if name not in self.columns]:
            found.append(f"# other columns of numbers: {', '.join(map(_text, left))}")
        return found


def _table(entries: Mapping[str, object]) -> str:
    return f"{{ {', '.join(f'{_text(k)} = {_text(v)}' for k, v in entries.items())} }}"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def proposed_columns(path: Path, stream: str) -> CsvColumns | None:
    """Return the columns proposed by a file's first rows; None if it is unreadable or has no table.

    Args:
        path: The file, plain or gzip.
    """
    try:
        if refused(path):
            return None
        with open_text(path) as text:
            lines = [line[:_LONGEST] for line in islice(text, _MOST_LINES)]
        return columns_of(lines, stream)
    except (OSError, EOFError, zlib.error, csv.Error):
        return None


def columns_of(lines: Sequence[str], stream: str) -> CsvColumns | None:
    """Return the columns proposed by the lines of a file; None if they have no table.

    >>> rows = [f"01.02.2026;{h:02d}:00;{h},5;ok" for h in range(9)]
    >>> found = columns_of(["Account;1", "Datum;Uhrzeit;Bezug", *rows], "elec.import.energy")
    >>> found.times, found.columns
    (('Datum', 'Uhrzeit'), {'Bezug': 'elec.import.energy'})
    """
    head = table_head(lines[: PREAMBLE + ROWS])
    if head is None or head.header < 0:
        return None
    width = len(head.names)
    rows = []
    for row in csv.reader(lines[head.first :], delimiter=head.delimiter):
        fields = [text.strip() for text in row]
        if is_header_again(fields, head.names, head.time_name):
            if tuple(fields[:width]) != head.names:
                break  # the columns change; a source follows them by their names
        elif len(row) >= width:
            rows.append(fields[:width])
    if not rows or head.time >= width:
        return None
    whole = dict(zip(head.names, zip(*rows, strict=True), strict=False))
    columns = {name: texts[:ROWS] for name, texts in whole.items()}
    times: tuple[str, ...] = (head.names[head.time],)
    if not any(":" in date_of(text) for text in columns[times[0]]):
        clock = (x for x in head.names if x not in times and is_clock(x, columns[x]))
        times += (*islice(clock, 1),)
    mark, is_certain = decimal_mark(
        (texts for name, texts in columns.items() if name not in times), head.delimiter
    )
    dialect = CsvDialect(decimal=mark, is_decimal_certain=is_certain)
    numbers = [
        name
        for name, texts in columns.items()
        if name and name not in times and _are_numbers(texts, dialect)
    ]
    numbers.sort(key=lambda name: (*_rank(name), head.names.index(name)))
    chosen = {numbers[0]: stream} if numbers else {}
    exports = [name for name in numbers[1:] if flow(name) == "export"]
    if len(exports) == 1 and flow(numbers[0]) == "import" and stream in _EXPORTED:
        chosen[exports[0]] = _EXPORTED[stream]
    if len(times) == 1 and day_columns(numbers)[0]:
        return CsvColumns(times, (), {}, problem="it has a row a day, and needs one an interval")
    rest = {name: texts for name, texts in whole.items() if name not in {*times, *chosen}}
    instants = [*zip(*(whole[name] for name in times), strict=True)]
    return CsvColumns(times, tuple(numbers), chosen, _filter(rest, instants))


def _are_numbers(texts: Sequence[str], dialect: CsvDialect) -> bool:
    known, count = [text for text in texts if text.lower() not in ABSENT], 0
    for text in known:
        with suppress(ValueError):
            dialect.number(text)
            count += 1
    return bool(known) and count >= _NUMBERS * len(known)


def _rank(name: str) -> tuple[bool, bool, bool]:
    is_reading = bool(READING.search(name))
    return bool(IDENTIFIER.search(name)) and not is_reading, flow(name) == "export", not is_reading


def _filter(
    columns: Mapping[str, Sequence[str]], instants: Sequence[tuple[str, ...]]
) -> dict[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    rows = [*range(len(instants))]
    if not _are_repeated(instants, rows):
        return found
    for name, texts in columns.items():
        flows = {text: flow(text) for text in {*texts} if text}
        imports = sorted(text for text, way in flows.items() if way == "import")
        if len(flows) > 1 and imports and None not in flows.values():
            totals = [text for text in imports if not has_tariff(text)]
            found[name] = totals[:1] or imports
            rows = [row for row in rows if texts[row] in found[name]]
            break
    if _are_repeated(instants, rows):
        for name, texts in sorted(columns.items(), key=lambda item: not IDENTIFIER.search(item[0])):
            pairs = {(texts[row], instants[row]) for row in rows}
            count = len({texts[row] for row in rows})
            if 1 < count < len(rows) / 2 and len(pairs) > (1 - _AGAIN) * len(rows):
                return found | {name: [texts[rows[0]]]}
    return found


def _are_repeated(instants: Sequence[tuple[str, ...]], rows: Sequence[int]) -> bool:
    return len({instants[row] for row in rows}) <= (1 - _TWICE) * len(rows)
