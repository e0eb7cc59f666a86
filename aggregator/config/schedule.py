"""Schedule of rounds: windows of local time, a number of rounds a day, and the next start.

Every start is a pure function of the schedule and of the time at which the last round closed, which
the store keeps. A restart therefore neither repeats nor forgets a round.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from edge_sdk.app.schema import Between, Length
from edge_sdk.app.settings import Duration, seconds

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ALL_DAY = "00:00-24:00"
_AHEAD = 9  # days that are searched for a start: a window of one weekday, after a change of clocks
_FORM = re.compile(r"(?:([a-z,-]+) +)?(\d\d):(\d\d)-(\d\d):(\d\d)")


class ScheduleError(ValueError):
    """An invalid schedule: ``key`` names the key within ``[run.schedule]``."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


@dataclass(frozen=True, slots=True)
class ScheduleSection:
    """When rounds begin. Without this section, one round a day begins, at midnight UTC."""

    rounds_per_day: Literal["continuous"] | Annotated[int, Between(1, 1440)] = 1  # or back to back
    windows: tuple[Annotated[str, Length(11, 64)], ...] = ()  # such as "mon-fri 01:00-05:00"
    time_zone: Annotated[str, Length(1, 64)] = "UTC"  # of the windows: an IANA name, Europe/Berlin
    jitter: Duration = "0s"  # longest delay of a start; drawn from the fleet's id and the time
    min_new_rows: Annotated[int, Between(0, 1_000_000)] = 1  # that a device must have recorded


@dataclass(frozen=True, slots=True)
class StartWindow:
    """One window of local time."""

    days: frozenset[int]  # weekdays on which it begins, Monday is 0
    start: int  # minutes from midnight to its start
    end: int  # minutes from the same midnight to its end; up to two days

    @classmethod
    def parse(cls, text: str) -> StartWindow:
        """Read a window; one that ends before it starts ends on the next day.

        Raises:
            ScheduleError: It has another form, or a time of day that does not exist.

        >>> window = StartWindow.parse("sat,sun 22:00-06:00")
        >>> sorted(window.days), window.start, window.end
        ([5, 6], 1320, 1800)
        """
        found = _FORM.fullmatch(text.strip().lower())
        if found is None:
            why = f"expected a window such as '01:00-05:00' or 'mon-fri 22:00-06:00', got {text!r}"
            raise ScheduleError("windows", why)
        numbers = [int(part) for part in found.groups()[1:]]
        start, end = (60 * numbers[i] + numbers[i + 1] for i in (0, 2))
        if numbers[1] > 59 or numbers[3] > 59 or start >= 1440 or end > 1440 or start == end:
            why = f"expected times from 00:00 to 24:00 that differ, got {text!r}"
            raise ScheduleError("windows", why)
        return cls(_days(found.group(1), text), start, end if end > start else end + 1440)


def _days(text: str | None, window: str) -> frozenset[int]:
    """Return the weekdays of a list of days and ranges; a range may pass Sunday."""
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            why = f"expected days of {', '.join(DAYS)}, got {part!r} in {window!r}"
            raise ScheduleError("windows", why)
        begin = DAYS.index(first)
        length = (DAYS.index(last or first) - begin) % 7
        days |= {(begin + i) % 7 for i in range(length + 1)}
    return frozenset(days)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of one run. All times are Unix milliseconds.

    >>> nightly = schedule_of(ScheduleSection(2, ("01:00-05:00",), "Europe/Berlin"), "north")
    >>> moment = datetime(2026, 11, 22, 12, tzinfo=nightly.zone)
    >>> first = nightly.next_after(int(1000 * moment.timestamp()))
    >>> nightly.text(first), nightly.text(nightly.next_after(first))
    ('2026-11-23 01:00 CET', '2026-11-23 03:00 CET')
    """

    rounds: int = 0  # rounds a day; 0 opens each round as soon as the last one closed
    windows: tuple[StartWindow, ...] = (StartWindow(frozenset(range(7)), 0, 1440),)
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))  # time zone of the windows
    jitter: float = 0.0  # longest delay of a start, seconds
    min_new: int = 0  # new windows of data that a device must have recorded to count as ready
    name: str = ""  # seed of the delays: the fleet's id

    @property
    def is_continuous(self) -> bool:
        return self.rounds == 0

    @property
    def rounds_per_week(self) -> int:
        """Return the number of starts in seven days: none on a day without a window."""
        days = frozenset[int]().union(*(window.days for window in self.windows))
        return self.rounds * len(days)

    def text(self, moment: int) -> str:
        return datetime.fromtimestamp(moment / 1000, self.zone).strftime("%Y-%m-%d %H:%M %Z")

    def is_in_window(self, moment: int) -> bool:
        """Return whether a round may begin at this moment."""
        at = moment / 1000
        day = datetime.fromtimestamp(at, self.zone).date()
        return any(
            begin <= at < end
            for shift in (-2, -1, 0, 1)
            for begin, end in self._spans(day + timedelta(days=shift))
        )

    def next_after(self, moment: int) -> int:
        """Return the first start after a moment."""
        day = datetime.fromtimestamp(moment / 1000, self.zone).date() - timedelta(days=2)
        for shift in range(_AHEAD + 2):
            # two days at once: a window that passes midnight may overlap one of the next day
            pair = (day + timedelta(days=shift), day + timedelta(days=shift + 1))
            found = [start for one in pair for start in self._starts(one) if start > moment]
            if found:
                return min(found)
        raise AssertionError("a schedule has a start in every week")

    def due(self, last: int | None, now: int) -> int:
        """Return the time at which the next round begins; at most ``now`` if it may begin now.

        A start that was missed, because the daemon was down or data was not new, is made up for
        within the same window; after it, the next start counts.

        Args:
            last: Time at which the last round closed; None before the first. One more than a day
                ahead was taken from a wrong clock, and counts as ``now``.
        """
        if self.is_continuous:
            return now
        if last is not None and last > now + 86_400_000:
            last = now
        start = now if last is None else self.next_after(last)
        if start > now or self.is_in_window(now):
            return start
        return self.next_after(now)

    def _spans(self, day: date) -> Iterator[tuple[float, float]]:
        """Yield the windows that begin on a local day, as Unix seconds.

        Each lasts from its first to its last local time, whatever the clocks do in between; one
        that lies in an hour that is left out keeps its length, and begins after that hour.
        """
        for window in self.windows:
            if day.weekday() in window.days:
                begin, end = self._at(day, window.start), self._at(day, window.end)
                yield begin, end if end > begin else begin + 60.0 * (window.end - window.start)

    def _at(self, day: date, minutes: int) -> float:
        shifted = day + timedelta(days=minutes // 1440)
        local = time(minutes % 1440 // 60, minutes % 60)
        return datetime.combine(shifted, local, self.zone).timestamp()

    def _starts(self, day: date) -> list[int]:
        """Return the starts in the windows of a local day: evenly spaced over their total length."""
        spans = sorted(self._spans(day))
        spacing = sum(end - begin for begin, end in spans) / max(self.rounds, 1)
        starts = []
        for number in range(self.rounds if spans else 0):
            offset = number * spacing + min(self.jitter, 0.999 * spacing) * self._draw(day, number)
            for begin, end in spans:
                if offset < end - begin:
                    starts.append(int(1000 * (begin + offset)))
                    break
                offset -= end - begin
        return starts

    def _draw(self, day: date, number: int) -> float:
        """Return a number from 0 to 1 that is the same after every restart."""
        if not self.jitter:
            return 0.0
        said = f"gridfed/schedule\0{self.name}\0{day.isoformat()}\0{number}".encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:8], "big") / 2**64


def schedule_of(section: ScheduleSection, name: str) -> Schedule:
    """Return the schedule of a section of the configuration.

    Raises:
        ScheduleError: The time zone is unknown, or a window is invalid or overlaps another.
    """
    try:
        zone = ZoneInfo(section.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        why = f"unknown {section.time_zone!r}; expected an IANA name such as 'Europe/Berlin'"
        hint = "; without /usr/share/zoneinfo, install the package tzdata"
        raise ScheduleError("time_zone", why + hint) from None
    windows = tuple(StartWindow.parse(text) for text in section.windows or (ALL_DAY,))
    for i, one in enumerate(windows):
        for other in windows[:i]:
            if one.days & other.days and one.start < other.end and other.start < one.end:
                why = f"{section.windows[i]!r} overlaps another window"
                raise ScheduleError("windows", why)
    rounds = 0 if section.rounds_per_day == "continuous" else section.rounds_per_day
    return Schedule(rounds, windows, zone, seconds(section.jitter), section.min_new_rows, name)
