"""Detect the dialect of a CSV file: separator, decimal mark, format of times.

Each is detected from the first rows only if one reading of them fits all of these rows. Where two fit,
as for days and months up to 12, the one with the shorter span is taken, because readings are regular;
if that does not decide either, the form is unknown and the configuration must name it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Final

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.sources.csv_clock import clock_text, interval_begin, with_offset
from edge_sdk.extensions.sources.csv_head import header_of

ISO, EPOCH = "iso", "epoch"
ROWS: Final = 500
"""Most rows that are examined."""

ABSENT: Final = frozenset(
    {"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "---", "\u2013", "\u2014", ".", "?"}
)  # fmt: skip
"""Texts, in lower case, that stand for a missing value."""

_DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y.%m.%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%b-%Y", "%d %b %Y", "%Y-%m-%d"),
)
_CLOCKS = ("", *(" %H:%M", " %H:%M:%S", " %H.%M", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p"))
PATTERNS: Final = tuple(f"{date}{clock}" for date in _DATES for clock in _CLOCKS)
"""Forms of times that are detected besides ISO 8601 and Unix seconds."""

_NUMBER = re.compile(r"\d{8,19}(\.\d+)?")
_SPACES = re.compile(r"(?<=\d)[\s'\u2019_](?=\d{3}(?:\D|$))")
_FORMULA = re.compile(r'="?(.*?)"?')
_MARKED = {mark: re.compile(rf"[+-]?\d*{re.escape(mark)}\d+([eE][+-]?\d+)?") for mark in ".,"}
_GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}({re.escape(mark)}\d{{3}})+") for mark in ".,"}
_DAY_END = re.compile(r"(?<=[ T])24:00(:00)?(?!\d)")
_HOUR = re.compile(r"\d{1,2}")
_ISO = re.compile(r"\d{4}-?\d\d-?\d\d(?:[ T].*)?")
_DIGIT_DATES = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_OFFSET = re.compile(r":\d\d[+-]\d\d:\d\d$")
_MOST = 0.8  # share of times, at least, that have the form; the others are rejected one by one


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The separator, the marks in numbers and the form of times of a file."""

    delimiter: str = ","  # separator of fields
    decimal: str = "."  # decimal mark, ``.`` or ``,``
    # ``iso``, ``epoch``, or a pattern of ``strptime``; empty if it is ambiguous
    time_format: str = ISO
    header: int = 0  # number of lines before the header line
    # whether some number shows which mark is the decimal one; only then is ``1,015`` or ``1.015``
    # with the other mark read as thousands
    is_decimal_certain: bool = False
    is_end: bool = False  # whether a time is the end of its interval: midnight is written 24:00
    is_span: bool = False  # whether a time is written as a span, of which the beginning counts
    is_zoned: bool = False  # whether a time has the name of its zone, or an offset after a space

    def number(self, text: str) -> float:
        """Parse a number, also one with a mark, a space or an apostrophe between its thousands.

        Raises:
            ValueError: It has another form, or could be read in two ways.

        >>> CsvDialect(decimal=",").number("1,5"), CsvDialect().number(" 2.5 ")
        (1.5, 2.5)
        >>> CsvDialect(decimal=",").number("1.234,5"), CsvDialect().number("1,234,567.8")
        (1234.5, 1234567.8)
        >>> CsvDialect(is_decimal_certain=True).number("1,015")
        1015.0
        >>> CsvDialect().number("1,015")
        Traceback (most recent call last):
        ValueError: '1,015' could be read in two ways: the decimal mark is not known
        """
        if self.decimal == ".":
            with suppress(ValueError):
                return float(text)
        bare = _bare(text)
        other = "," if self.decimal == "." else "."
        if other in bare:
            whole, _, rest = bare.partition(self.decimal)
            if not _GROUPED[other].fullmatch(whole) or other in rest:
                named = "comma" if self.decimal == "," else "point"
                raise ValueError(f"{text!r} is no number with a decimal {named}")
            if not rest and whole.count(other) == 1 and not self.is_decimal_certain:
                raise ValueError(
                    f"{text!r} could be read in two ways: the decimal mark is not known"
                )
            bare = bare.replace(other, "")
        return float(bare.replace(",", "."))


def _bare(text: str) -> str:
    """Return a number without a spreadsheet's ``="…"`` and without spaces between its thousands."""
    bare = text.strip()
    if bare[:1] == "=" and (formula := _FORMULA.fullmatch(bare)):
        bare = formula[1].strip()
    return _SPACES.sub("", bare)


def decimal_mark(columns: Iterable[Iterable[str]], delimiter: str = ",") -> tuple[str, bool]:
    """Return the decimal mark of columns of numbers, and whether one of them shows it; else a point.

    A mark is the decimal one where other than three digits follow it, where a zero stands alone before
    it, or after the other mark. Three digits are thousands in a column in which numbers without a
    mark are common and below 1000. In a file that commas do not separate, three digits after each
    comma of a column are decimals.

    >>> decimal_mark([["1,5", "2"]]), decimal_mark([["1.234,5"]]), decimal_mark([["0,327", "1.015"]])
    ((',', True), (',', True), (',', True))
    >>> decimal_mark([["1.5", "2,5"]]), decimal_mark([["2"]]), decimal_mark([["1,015"]])
    (('.', False), ('.', False), ('.', False))
    >>> decimal_mark([["196", "987", "503", "1,015"] * 3]), decimal_mark([["1.015"], ["196"]])
    (('.', True), ('.', False))
    """
    shown: set[str] = set()
    guesses: set[str] = set()
    for column in columns:
        grouped: Counter[str] = Counter()
        plain: list[str] = []
        for text in column:
            bare = _bare(text)
            if bare.isdigit():
                plain.append(bare)
                continue
            mark = _shown_mark(bare)
            if mark:
                shown.add(mark)
            else:
                grouped.update(mark for mark in ".," if _GROUPED[mark].fullmatch(bare))
        guesses.add(_guess(grouped, plain, delimiter))
    found = shown or guesses - {""}
    return (found.pop(), True) if len(found) == 1 else (".", False)


def _shown_mark(bare: str) -> str:
    for mark, other in (".,", ",."):
        whole, _, rest = bare.partition(mark)
        if _GROUPED[other].fullmatch(whole) and (rest.isdigit() or whole.count(other) > 1):
            return mark
        if _MARKED[mark].fullmatch(bare) and not _GROUPED[mark].fullmatch(bare):
            return mark
    return ""


def _guess(grouped: Counter[str], plain: Sequence[str], delimiter: str) -> str:
    if len(grouped) != 1:
        return ""
    (mark, count), most = next(iter(grouped.items())), max(map(len, plain), default=0)
    if most == 3 and len(plain) + count >= 10 and len(plain) > 0.05 * (len(plain) + count):
        return "," if mark == "." else "."
    return "," if mark == "," != delimiter and not plain else ""


def at_midnight(text: str) -> tuple[str, bool]:
    """Return a time that ends a day as 00:00, and whether a day must be added to it.

    >>> at_midnight("01.02.2024 24:00"), at_midnight("2024-02-01T23:00")
    (('01.02.2024 00:00', True), ('2024-02-01T23:00', False))
    """
    if "24:00" not in text:
        return text, False
    moved, count = _DAY_END.subn(lambda found: "00:00" + (found[1] or ""), text)
    return moved, count > 0


def joined_times(dates: Sequence[str], clocks: Sequence[str]) -> tuple[list[str], bool]:
    """Return dates with the times of another column, and whether hours are numbered from 1 to 24.

    Hours from 1 to 24 are the ends of the intervals, as the clocks 01:00 to 24:00 are.

    >>> joined_times(["2024/02/01", "2024/02/01"], ["1", "24"])
    (['2024/02/01 01:00', '2024/02/01 24:00'], True)
    >>> joined_times(["2024/02/01"], ["07:30"])
    (['2024/02/01 07:30'], False)
    """
    bare = [clock_text(clock) for clock in clocks]
    numbered = [clock for clock in bare if _HOUR.fullmatch(clock)]
    dated = [date_of(date) for date in dates]
    if not numbered:
        return [f"{date} {clock}" for date, clock in zip(dated, bare, strict=True)], False
    times = [
        f"{date} {int(clock):02d}:00" if _HOUR.fullmatch(clock) else f"{date} {clock}"
        for date, clock in zip(dated, bare, strict=True)
    ]
    hours = {int(clock) for clock in numbered}
    return times, 24 in hours or 0 not in hours


def date_of(text: str) -> str:
    """Return a date without a time of 00:00 after it."""
    return re.sub(r"[T ]0{1,2}:00(:00)?(\.0+)?$", "", text.strip())


def time_format(texts: Sequence[str]) -> str:
    """Return the form of most times; empty if two forms fit equally well, ``iso`` if none fits.

    >>> time_format(["13.01.2026 00:00", "13.01.2026 24:00"]), time_format(["1767225600"])
    ('%d.%m.%Y %H:%M', 'epoch')
    >>> time_format(["01/02/2026", "02/02/2026", "03/02/2026"]), time_format(["01/02/2026"])
    ('%d/%m/%Y', '')
    >>> time_format(["20260113"]), time_format(["202601130000"]), time_format(["1767225600000"])
    ('%Y%m%d', '%Y%m%d%H%M', 'epoch')
    """
    some = [at_midnight(text.strip())[0] for text in texts if text.strip()]
    most = _MOST * len(some)
    if not some:
        return ISO
    if len(numbers := [text for text in some if _NUMBER.fullmatch(text)]) >= most:
        pattern = _DIGIT_DATES.get(len(numbers[0]), "")
        is_date = pattern and all(_of_this_age(text, pattern) for text in numbers)
        return pattern if is_date else EPOCH
    if sum(map(_is_iso, some)) >= most:
        return ISO
    few = some[:: max(1, len(some) // 10)]
    offset = "%z" if sum(map(bool, map(_OFFSET.search, some))) >= most else ""
    patterns = [pattern + offset for pattern in PATTERNS]
    likely = [pattern for pattern in patterns if 2 * _span(few, pattern)[0] >= len(few)]
    spans = {pattern: _span(some, pattern) for pattern in likely}
    fit, least = min(((-count, span) for count, span in spans.values()), default=(0, 0.0))
    if -fit < most:
        return ISO
    best = [pattern for pattern, found in spans.items() if found == (-fit, least)]
    return best[0] if len(best) == 1 else ""


def _of_this_age(text: str, pattern: str) -> bool:
    with suppress(ValueError):
        return 1990 <= datetime.strptime(text, pattern).year < 2100  # noqa: DTZ007 - its year only
    return False


def _is_iso(text: str) -> bool:
    with suppress(ValueError):  # Python takes any letter between date and time
        return bool(_ISO.fullmatch(text) and datetime.fromisoformat(text))
    return False


def _span(texts: Sequence[str], pattern: str) -> tuple[int, float]:
    """Return the number of times of a form, and the sum of the steps between them in seconds."""
    times = []
    for text in texts:
        with suppress(ValueError, OverflowError, OSError):
            times.append(datetime.strptime(text, pattern).timestamp())  # noqa: DTZ007 - differences only
    return len(times), sum(abs(after - before) for before, after in pairwise(times))


def detected(
    lines: Sequence[str],
    time_columns: Sequence[str],
    columns: Iterable[str],
    others: Iterable[str] = (),
    delimiter: str = "",
) -> CsvDialect:
    """Return the dialect of a file from its first lines.

    Args:
        lines: First lines, the header and rows among them.
        time_columns: Name of the column of times, or names of the columns of dates and of times.
        columns: Names of the columns of numbers.
        others: Names of other columns that the header must have.
        delimiter: Separator; empty detects it.
    """
    if not lines:
        return CsvDialect(delimiter or ",")
    wanted = list(columns)
    start, mark = header_of(lines, {*time_columns, *wanted, *others})
    header, *rows = list(csv.reader(lines[start : start + ROWS + 1], delimiter=delimiter or mark))
    at = {name.strip(): place for place, name in enumerate(header)}

    def column(name: str) -> list[str]:
        place = at.get(name, len(header))
        return [row[place] for row in rows if len(row) > place]

    decimal, is_certain = decimal_mark(map(column, wanted), delimiter or mark)
    times = column(time_columns[0])
    is_end = False
    is_span = any(interval_begin(text) != text.strip() for text in times)
    times = [*map(interval_begin, times)]
    if len(time_columns) > 1:
        clocks = column(time_columns[1])
        is_span = any(interval_begin(text) != text.strip() for text in clocks)
        times, is_end = joined_times(times[: len(clocks)], clocks[: len(times)])
    is_end = is_end or any(at_midnight(text)[1] for text in times)
    zoned = [*map(with_offset, times)]
    form = time_format(zoned)
    flags = is_certain, is_end, is_span, zoned != times
    return CsvDialect(delimiter or mark, decimal, form, start, *flags)
