"""Find where the table of a CSV file begins: its header line and separator, also after other lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from edge_sdk.extensions.sources.csv_clock import DATE, interval_begin

SEPARATORS: Final = (",", ";", "\t", "|")
PREAMBLE: Final = 100
"""Most lines before the header."""


_UNIX = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}|\d{16}|\d{19}")

_CLOCK_NAME = re.compile(r"\D{0,12}?(\d{1,2}):(\d\d)(?::00)?(?!\d).*")
_PLACE_NAME = re.compile(r"(?:h|he|hr|hour|hora|v|p|q|t|int|interval|period|value)?[ _]?(\d{1,3})")
OF_DAY: Final = re.compile(rf"(?:{_CLOCK_NAME.pattern})|(?:{_PLACE_NAME.pattern})")
"""Names, in lower case, of columns for an interval of the day."""
_PARTS = (96, 48, 24)  # intervals of a day, one a column


def is_time(text: str) -> bool:
    """Return whether a text looks like a date, a time with its date, a span of these, or a Unix time.

    >>> is_time("31.12.2026 24:00"), is_time("1767225600"), is_time("Account 2026"), is_time("0.5")
    (True, True, False, False)
    """
    bare = text.strip()
    if _UNIX.fullmatch(bare) or DATE.fullmatch(bare):
        return True
    return len(bare) > 15 and bool(DATE.fullmatch(interval_begin(bare)))


class CsvHead(NamedTuple):
    """The place of a table in a file, and its columns."""

    delimiter: str  # separator of fields
    header: int  # number of lines before the header line; -1 if the file has none
    first: int  # number of lines before the first row
    names: tuple[str, ...]  # names of the columns, without an empty one after the last separator
    time: int  # place of the column of times

    @property
    def time_name(self) -> str:
        """Name of the column of times; empty if the header is too short."""
        return self.names[self.time] if self.time < len(self.names) else ""


def table_head(lines: Sequence[str]) -> CsvHead | None:
    """Find the header line of a table, also after lines that do not belong to it; None without one.

    The rows are recognised by a time in the same column of each. The header is the line before the first
    of them that has as many fields and the most that are not empty.

    >>> table_head(["Account,0", "", "DATE,kWh", "2024-02-01,1", "2024-02-02,2"])
    CsvHead(delimiter=',', header=2, first=3, names=('DATE', 'kWh'), time=0)
    >>> table_head(["2024-02-01;1", "2024-02-02;2"]).names
    ('column 1', 'column 2')
    """
    best: tuple[int, int, CsvHead] | None = None
    for mark in SEPARATORS:
        rows = [fields_of(line, mark) for line in lines]
        shapes = Counter(
            (place, len(row))
            for row in rows
            if len(row) > 1
            for place, text in enumerate(row)
            if is_time(text)
        )
        if not shapes:
            continue
        (place, width), count = max(shapes.items(), key=lambda item: (item[1], -item[0][0]))
        if best is None or (count, width) > best[:2]:
            best = count, width, _head(rows, mark, place, width)
    return None if best is None else best[2]


def _head(rows: Sequence[Sequence[str]], mark: str, place: int, width: int) -> CsvHead:
    is_row = [len(row) == width and is_time(row[place]) for row in rows]
    follows = [*is_row[1:], True]  # one alone may be a line of the preamble, such as a period
    later = (at for at, row in enumerate(is_row) if row and follows[at])
    first = next(later, is_row.index(True))
    near = [(at, row) for at, row in enumerate(rows[:first]) if any(map(str.strip, row))][-3:]
    before = [
        (sum(bool(text.strip()) for text in row), at)
        for at, row in near
        if len(row) in (width, width - 1) and len(row) > 1
    ]
    if not before and near and len(near[-1][1]) >= max(2, width / 2):
        before = [(0, near[-1][0])]  # a header that does not fit its rows
    if not before:
        return CsvHead(mark, -1, first, tuple(f"column {n + 1}" for n in range(width)), place)
    header = max(before)[1]
    named = rows[header], rows[header][place] if place < len(rows[header]) else ""
    earlier = (at for at in range(header) if is_header_again(rows[at], *named))
    if (found := next(earlier, header)) != header:  # the columns changed, and most rows are later
        header, first, place = found, found + 1, list(rows[found]).index(named[1])
    names = list(rows[header])
    while len(names) > 1 and not names[-1]:
        names.pop()
    return CsvHead(mark, header, first, tuple(names), place)


def header_of(lines: Sequence[str], wanted: Iterable[str]) -> tuple[int, str]:
    """Return the number of lines before the header that has all wanted columns, and its separator.

    Without such a line, those of the table; a comma if there is none.

    >>> header_of(["Account;0", "Zeit;kWh;"], {"Zeit", "kWh"})
    (1, ';')
    """
    names = set(wanted)
    for number, line in enumerate(lines[:PREAMBLE]):
        for mark in SEPARATORS:
            if names <= set(fields_of(line, mark)):
                return number, mark
    head = table_head(lines[:PREAMBLE])
    return (0, ",") if head is None else (max(head.header, 0), head.delimiter)


def is_header_again(row: Sequence[str], names: Iterable[str], time: str) -> bool:
    """Return whether a row is another header line: it has the names of the times and another column.

    >>> is_header_again(["time", "status", "kWh"], ["time", "kWh"], "time")
    True
    """
    return bool(time) and time in row and len({*row} & {*names}) > 1


def fields_of(line: str, delimiter: str) -> list[str]:
    """Return the fields of a header line, without spaces around them.

    >>> fields_of('time; "kWh" ;', ";")
    ['time', 'kWh', '']
    """
    row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    return [name.strip() for name in row]


def day_columns(names: Sequence[str]) -> tuple[dict[str, int], bool]:
    """Return the minutes from midnight to each column's interval, and whether its name is the end.

    >>> day_columns(["date", *(f"{h:02d}:00" for h in range(24))])[0]["23:00"]
    1380
    >>> offsets, is_end = day_columns(["date", *(f"H{h}" for h in range(1, 25))])
    >>> offsets["H1"], offsets["H24"], is_end
    (0, 1380, True)
    """
    clocks = {n: int(m[1]) * 60 + int(m[2]) for n in names if (m := _CLOCK_NAME.fullmatch(n))}
    places = {
        n: int(m[1]) for n in names if (m := _PLACE_NAME.fullmatch(n.strip().lower())) is not None
    }
    for parts in _PARTS:
        step = 1440 // parts
        if len(clocks) == parts:
            first, *_, last = clocks.values()
            is_end = first == step and last in (0, 1440)
            if is_end or (first == 0 and last == 1440 - step):
                return {n: step * place for place, n in enumerate(clocks)}, is_end
        if parts <= len(places) <= parts + parts // 24:
            low = min(places.values())
            chosen = {n: step * (p - low) for n, p in places.items() if p - low < parts}
            if low in (0, 1) and sorted(chosen.values()) == [*range(0, 1440, step)]:
                return chosen, low == 1
    return {}, False
