"""Detect how a CSV file is written: separator, decimal mark, form of its times. Never guess.

Each is detected from the first rows only if one reading of them fits all of these rows. Where two fit,
as for days and months up to 12, the one with the shorter span is taken, because readings are regular;
if that does not decide either, the form is unknown and the configuration must name it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

SEPARATORS: Final = (",", ";", "\t", "|")
ISO, EPOCH = "iso", "epoch"
ROWS: Final = 500
"""Most rows that are examined."""

_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y.%m.%d", "%d.%m.%y")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
PATTERNS: Final = tuple(f"{date}{clock}" for date in _DATES for clock in _CLOCKS)
"""Forms of times that are detected besides ISO 8601 and Unix seconds."""

_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_POINT = re.compile(r"\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*")
_NUMBER = re.compile(r"\d{8,12}(\.\d+)?")


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The separator, decimal mark and form of times of a file.

    Attributes:
        delimiter: Separator of fields.
        decimal: Decimal mark, ``.`` or ``,``.
        time_format: ``iso``, ``epoch``, or a pattern of ``strptime``; empty if it is ambiguous.
    """

    delimiter: str = ","
    decimal: str = "."
    time_format: str = ISO

    def number(self, text: str) -> float:
        """Parse a number.

        Raises:
            ValueError: It has another form, such as a separator of thousands.

        >>> CsvDialect(decimal=",").number("1,5"), CsvDialect().number(" 2.5 ")
        (1.5, 2.5)
        >>> CsvDialect(decimal=",").number("1.234,5")
        Traceback (most recent call last):
        ValueError: '1.234,5' is no number with a decimal comma
        """
        if self.decimal == ".":
            return float(text)
        if "." in text:
            raise ValueError(f"{text!r} is no number with a decimal comma")
        return float(text.replace(",", "."))


def separator(header: str, wanted: Iterable[str]) -> str:
    """Return the separator with which a header line has all wanted columns; a comma if none has.

    >>> separator("Zeit;kWh", {"Zeit", "kWh"})
    ';'
    """
    names = set(wanted)
    for mark in SEPARATORS:
        if names <= set(next(csv.reader([header], delimiter=mark), [])):
            return mark
    return ","


def decimal_mark(texts: Sequence[str], delimiter: str) -> str:
    """Return the decimal mark of numbers; a point unless all of them that have a mark have a comma.

    >>> decimal_mark(["1,5", "2"], ";"), decimal_mark(["1.5", "2,5"], ";"), decimal_mark(["2"], ";")
    (',', '.', '.')
    """
    has_comma = any(_COMMA.fullmatch(text) for text in texts)
    has_point = any(_POINT.fullmatch(text) for text in texts)
    return "," if has_comma and not has_point and delimiter != "," else "."


def time_format(texts: Sequence[str]) -> str:
    """Return the form of times; empty if two forms fit equally well, ``iso`` if none fits.

    >>> time_format(["13.01.2026 00:00", "13.01.2026 01:00"]), time_format(["1767225600"])
    ('%d.%m.%Y %H:%M', 'epoch')
    >>> time_format(["01/02/2026", "02/02/2026", "03/02/2026"]), time_format(["01/02/2026"])
    ('%d/%m/%Y', '')
    """
    some = [text.strip() for text in texts if text.strip()]
    if not some:
        return ISO
    if all(_NUMBER.fullmatch(text) for text in some):
        return EPOCH
    if _is_iso(some[0]):
        return ISO
    spans = {pattern: span for pattern in PATTERNS if (span := _span(some, pattern)) is not None}
    if not spans:
        return ISO
    least = min(spans.values())
    best = [pattern for pattern, span in spans.items() if span == least]
    return best[0] if len(best) == 1 else ""


def _is_iso(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _span(texts: Sequence[str], pattern: str) -> float | None:
    """Return the sum of the steps between times in seconds, or None if one has another form."""
    try:
        times = [datetime.strptime(text, pattern).timestamp() for text in texts]  # noqa: DTZ007 - differences only
    except (ValueError, OverflowError, OSError):
        return None
    return sum(abs(after - before) for before, after in pairwise(times))


def detected(
    lines: Sequence[str], time_column: str, columns: Iterable[str], delimiter: str = ""
) -> CsvDialect:
    """Return the dialect of a file from its first lines.

    Args:
        lines: Header and first rows.
        time_column: Name of the column of times.
        columns: Names of the columns of numbers.
        delimiter: Separator; empty detects it.
    """
    if not lines:
        return CsvDialect(delimiter or ",")
    wanted = list(columns)
    mark = delimiter or separator(lines[0], {time_column, *wanted})
    header, *rows = list(csv.reader(lines[: ROWS + 1], delimiter=mark))
    at = {name: place for place, name in enumerate(header)}

    def column(name: str) -> list[str]:
        place = at.get(name, len(header))
        return [row[place] for row in rows if len(row) > place]

    numbers = [text for name in wanted for text in column(name)]
    return CsvDialect(mark, decimal_mark(numbers, mark), time_format(column(time_column)))
