"""Read times that a table writes as spans, and times of day in a column of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from edge_sdk.extensions.sources.flow_names import CLOCK_NAME, HOUR

_CLOCK = r"\d{1,2}[:.]\d\d(?:[:.]\d\d)?(?:[.,]\d+)?(?: ?[AaPp]\.?[Mm]\.?)?"
DATE: Final = re.compile(
    r"(?:\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}"
    r"|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}|[A-Za-z]{3,9} \d{1,2},? \d{4}|(?:19|20)\d{6})"
    rf"(?:(?:T| +){_CLOCK}(?: ?(?:Z|UTC|GMT|[A-Z]{{2,4}}|[+-]\d\d:?\d\d)(?:\[.*\])?)?)?"
    r"|(?:19|20)\d{6}[T ]?\d{2,6}Z?"
)
"""A date, or a time with its date."""

_EDGE = rf"(?:{DATE.pattern})|{_CLOCK}|\d{{1,2}}"
_SPAN = re.compile(
    rf"({_EDGE}) ?h?\s*(?:[-\u2013\u2014/~]|to|bis|tot|until)\s*(?:{_EDGE}) ?h?", re.IGNORECASE
)
CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp]\.?[Mm]\.?)?")
"""A time of day."""

_ZONES = {0: "UTC GMT WET", 1: "WEST BST CET MEZ", 2: "CEST MESZ EET", 3: "EEST", 10: "AEST"}
_ZONES |= {11: "AEDT", -4: "EDT", -5: "EST CDT", -6: "CST MDT", -7: "MST PDT", -8: "PST"}
_HOURS: Final = {name: hours for hours, names in _ZONES.items() for name in names.split()}
_ZONED = re.compile(rf"(.*[:.]\d\d) ?(?:\(?({'|'.join(_HOURS)})\)?|([+-]\d\d):?(\d\d))")
_POINTS = re.compile(r"(\d{1,2})\.([0-5]\d)(?:\.([0-5]\d))?")
_DIGITS = re.compile(r"([01]?\d|2[0-4])([0-5]\d)([0-5]\d)?")
_NUMBERED = re.compile(r"\d{1,2}")


def interval_begin(text: str) -> str:
    """Return the beginning of a span of time; any other text as it is, without spaces around it.

    >>> interval_begin("01.02.2026 00:00 - 01.02.2026 01:00"), interval_begin("23:45-24:00")
    ('01.02.2026 00:00', '23:45')
    >>> interval_begin("07-08h"), interval_begin("2026-02-01T00:00-05:00")
    ('07', '2026-02-01T00:00-05:00')
    """
    bare = text.strip()
    if DATE.fullmatch(bare):
        return bare
    found = _SPAN.fullmatch(bare)
    return found[1] if found else bare


def with_offset(text: str) -> str:
    """Return a time with the name of its zone, or with a space before its offset, in one form.

    >>> with_offset("01.02.2026 00:00 CEST"), with_offset("2026-02-01 00:00 -0330")
    ('01.02.2026 00:00+02:00', '2026-02-01 00:00-03:30')
    """
    found = _ZONED.fullmatch(text)
    if found is None:
        return text
    return (
        f"{found[1]}{_HOURS[found[2]]:+03d}:00" if found[2] else f"{found[1]}{found[3]}:{found[4]}"
    )


def clock_text(text: str) -> str:
    """Return a time of day with colons; the number of an hour as it is.

    >>> clock_text("7.30"), clock_text("0730"), clock_text("073000"), clock_text("7"), clock_text("00:00-00:15")
    ('7:30', '07:30', '07:30:00', '7', '00:00')
    """
    bare = interval_begin(text)
    if found := _POINTS.fullmatch(bare) or (len(bare) > 2 and _DIGITS.fullmatch(bare)) or None:
        return ":".join(part for part in found.groups() if part)
    return bare


def is_clock(name: str, texts: Iterable[str], share: float = 0.9) -> bool:
    """Return whether most entries of a column are times of day: with colons, or by its name as numbers.

    >>> is_clock("x", ["7:30", "8:00"]), is_clock("Uhrzeit", ["7.30"]), is_clock("kWh", ["7.30"])
    (True, True, False)
    >>> is_clock("hour", ["1", "24"]), is_clock("time", ["0000", "2345"]), is_clock("time", ["1"])
    (True, True, False)
    """
    begins = [interval_begin(text) for text in texts if text.strip()]

    def is_most(pattern: re.Pattern[str]) -> bool:
        return sum(map(bool, map(pattern.fullmatch, begins))) >= share * len(begins)

    if not begins or is_most(CLOCK):
        return bool(begins)
    is_whole = {4, 6} >= {*map(len, begins)} and is_most(_DIGITS)
    if CLOCK_NAME.search(name) and (is_whole or is_most(_POINTS)):
        return True
    return bool(HOUR.search(name)) and is_most(_NUMBERED)
