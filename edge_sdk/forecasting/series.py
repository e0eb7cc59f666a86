"""Store readings as a regular series: one UTC grid, one column per stream, NaN in gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntFlag, StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass

TWO_YEARS_HOURLY = 2 * 366 * 24
FARTHEST = 2.0**53  # seconds from 1970: a float has no fractions beyond


class Flag(IntFlag):
    """Quality flags of a reading, set by its source."""

    NONE = 0
    SUSPECT = 1  # reported by the meter; not learned from
    ESTIMATED = 2
    CLOCK_UNSYNCED = 4


_SUSPECT = int(Flag.SUSPECT)  # a plain number: checked for every reading


@dataclass(frozen=True, slots=True)
class Reading:
    """One timestamped measurement."""

    stream: str  # a canonical name, see ``STREAMS``
    time: float  # Unix seconds, UTC: the start of the interval for a sum, the moment otherwise
    value: float  # value in the stream's unit
    flags: int = 0  # bits of ``Flag``
    # length of the interval of a sum, where it may be shorter than the grid's step
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """Unit and kind of a canonical stream."""

    unit: str
    adds: bool  # whether a longer interval's value is the sum of its parts (energy, volume)


STREAMS: Mapping[str, Stream] = MappingProxyType(
    {
        "elec.import.energy": Stream("kWh", adds=True),
        "elec.export.energy": Stream("kWh", adds=True),
        "elec.import.power": Stream("kW", adds=False),
        "elec.export.power": Stream("kW", adds=False),
        "gas.import.volume": Stream("m³", adds=True),
        "ev.demand.energy": Stream("kWh", adds=True),
        "ev.session.energy": Stream("kWh", adds=True),
        "cell.internet.activity": Stream("1", adds=True),
        "cell.traffic.dl.volume": Stream("Mbit", adds=True),
        "cell.traffic.ul.volume": Stream("Mbit", adds=True),
        "cell.prb.dl.util": Stream("%", adds=False),
        "cell.prb.ul.util": Stream("%", adds=False),
        "cell.throughput.dl": Stream("Mbit/s", adds=False),
        "cell.throughput.ul": Stream("Mbit/s", adds=False),
        "cell.users.active": Stream("1", adds=False),
        "cell.users.connected": Stream("1", adds=False),
        "site.power": Stream("kW", adds=False),
        "weather.temperature": Stream("°C", adds=False),
        "weather.wind_speed": Stream("m/s", adds=False),
        "weather.irradiance": Stream("W/m²", adds=False),
    }
)
"""Canonical names for the sources' own identifiers. A name not listed here is an instant."""


WEATHER = frozenset(name for name in STREAMS if name.startswith("weather."))
"""Streams that services also forecast."""


class ReadingOutcome(StrEnum):
    """Outcome of adding a reading; each outcome is counted."""

    NEW = "new"
    AGAIN = "again"  # the same value for the same slot: a repeat
    CHANGED = "changed"  # the last value replaces the earlier one
    PART = "part"  # part of a sum whose other parts are still missing
    LATE = "late"  # older than the slots kept
    FUTURE = "future"
    UNUSED = "unused"  # no channel reads this stream
    SUSPECT = "suspect"
    NOT_FINITE = "not finite"
    OFF_GRID = "off grid"  # a sum over another interval than the grid's
    ANNOUNCED = "announced"  # a forecast that a channel with a lead reads


class SeriesRow(NamedTuple):
    """One value on the grid, as a store keeps it: ``slot`` is Unix seconds // step."""

    stream: str
    slot: int
    value: float
    flags: int = 0


class SeriesColumn(NamedTuple):
    """Some values of one stream on the grid."""

    stream: str  # canonical name
    slots: NDArray[np.int64]  # Unix seconds // step, int64, ascending, shape ``(n,)``
    values: NDArray[np.float64]  # float64, shape ``(n,)``


class Series:
    """A bounded, regular series of several streams, on slots of ``step`` seconds since 1970 UTC.

    A slot without a reading is NaN. Readings may arrive late, twice, or in any order.

    Args:
        streams: The streams to keep; all others are counted and dropped.
        capacity: Number of slots kept; the oldest are removed first.

    >>> series = Series(3600, ["elec.import.energy"])
    >>> for hour, kwh in [(10, 1.0), (12, 3.0), (10, 1.0), (12, 2.5)]:
    ...     print(series.add(Reading("elec.import.energy", hour * 3600, kwh)))
    new
    new
    again
    changed
    >>> series.values("elec.import.energy")
    array([1. , nan, 2.5])
    """

    def __init__(
        self, step: int, streams: Iterable[str], *, capacity: int = TWO_YEARS_HOURLY
    ) -> None:
        if step < 1 or capacity < 1:
            raise ValueError(f"step and capacity must be positive, got {step} and {capacity}")
        self.step = step
        self.capacity = capacity
        self.counts: Counter[ReadingOutcome] = Counter()
        self._columns = {name: np.full(0, np.nan) for name in streams}
        self._sums = {name for name in self._columns if name in STREAMS and STREAMS[name].adds}
        self._base = 0  # slot of the columns' first element
        self._first = 0  # first slot that counts
        self._end = 0  # one past the last
        self._pending: dict[tuple[str, int], SeriesRow] = {}
        self._parts: dict[tuple[str, int], dict[float, float]] = {}

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def times(self) -> NDArray[np.int64]:
        """Return the start of every slot in Unix seconds, shape ``(len(self),)``."""
        return np.arange(self._first, self._end, dtype=np.int64) * self.step

    def values(self, stream: str) -> NDArray[np.float64]:
        """Copy a stream's values, NaN where nothing was observed, shape ``(len(self),)``."""
        column = self._columns[stream]
        return column[self._first - self._base : self._end - self._base].copy()

    def add(self, reading: Reading, *, latest: float = math.inf) -> ReadingOutcome:
        """Merge one reading and return its outcome; never raises for the content of a reading."""
        seen = self._judge(reading, latest)
        if seen is None:
            slot = math.floor(reading.time / self.step)
            seen = self._merge(reading, slot)
        self.counts[seen] += 1
        return seen

    def load(self, rows: Iterable[SeriesRow]) -> None:
        """Load saved rows; they are not pending again. Rows of other streams are left out."""
        for row in rows:
            if row.stream in self._columns and self._reach(row.slot):
                self._columns[row.stream][row.slot - self._base] = row.value

    def load_columns(self, columns: Iterable[SeriesColumn]) -> None:
        """Load saved readings as ``load`` does, each column in ascending order of time.

        >>> series = Series(3600, ["elec.import.energy"], capacity=3)
        >>> hours, kwh = np.array([10, 13, 15]), np.array([1.0, 2.0, 3.0])
        >>> series.load_columns([SeriesColumn("elec.import.energy", hours, kwh)])
        >>> series.oldest, series.values("elec.import.energy")
        (13, array([ 2., nan,  3.]))
        """
        for column in columns:
            if column.stream in self._columns and len(column.slots):
                _, slots, values = self._kept(column)
                self._columns[column.stream][slots - self._base] = values

    def merge(self, columns: Iterable[SeriesColumn]) -> Counter[ReadingOutcome]:
        """Merge new readings as ``add`` does, each column in ascending order of time.

        >>> series = Series(3600, ["elec.import.energy"], capacity=3)
        >>> hours, kwh = np.array([10, 13, 15]), np.array([1.0, 2.0, 3.0])
        >>> series.merge([SeriesColumn("elec.import.energy", hours, kwh)])
        Counter({<ReadingOutcome.NEW: 'new'>: 2, <ReadingOutcome.LATE: 'late'>: 1})
        """
        found: Counter[ReadingOutcome] = Counter()
        for column in columns:
            if column.stream not in self._columns:
                found[ReadingOutcome.UNUSED] += len(column.slots)
                continue
            stream, slots, values = self._kept(column)
            before = self._columns[stream][slots - self._base]
            is_other, new = before != values, int(np.isnan(before).sum())
            others, written = slots[is_other], values[is_other]
            self._columns[stream][others - self._base] = written
            for slot, value in zip(others.tolist(), written.tolist(), strict=True):
                self._pending[stream, slot] = SeriesRow(stream, slot, value)
            found[ReadingOutcome.NEW] += new
            found[ReadingOutcome.CHANGED] += len(others) - new
            found[ReadingOutcome.AGAIN] += len(slots) - len(others)
            found[ReadingOutcome.LATE] += len(column.slots) - len(slots)
        self.counts += found
        return +found

    def _kept(self, column: SeriesColumn) -> SeriesColumn:
        self._reach(int(column.slots[-1]))
        kept = column.slots >= self.oldest
        if kept.any():
            self._reach(int(column.slots[kept][0]))
        return SeriesColumn(column.stream, column.slots[kept], column.values[kept])

    @property
    def oldest(self) -> int:
        """Return the first slot that a reading may still have; older ones are late."""
        return self._end - self.capacity

    @property
    def newest(self) -> int:
        """Return the newest slot with a reading; meaningful only if there is one."""
        return self._end - 1

    def newest_of(self, stream: str) -> int:
        """Return the newest slot with a value of a stream; ``oldest - 1`` without any."""
        column = self._columns[stream]
        seen = np.flatnonzero(np.isfinite(column[: max(0, self._end - self._base)]))
        return self._base + int(seen[-1]) if len(seen) else self.oldest - 1

    def observed(self, streams: Iterable[str] | None = None) -> int:
        """Return the number of slots with a reading of each of these streams; None is all."""
        wanted = self._columns if streams is None else streams
        columns = [self.values(stream) for stream in wanted]
        return int(np.isfinite(columns).all(axis=0).sum()) if len(self) else 0

    @property
    def unsaved(self) -> int:
        return len(self._pending)

    def pending(self) -> tuple[SeriesRow, ...]:
        """Return the rows changed since they were ``saved``, to be written in one transaction."""
        return tuple(self._pending.values())

    def saved(self, rows: Iterable[SeriesRow]) -> None:
        """Mark these rows as saved, unless they changed again in the meantime."""
        for row in rows:
            if self._pending.get((row.stream, row.slot)) == row:
                del self._pending[row.stream, row.slot]

    def _judge(self, reading: Reading, latest: float) -> ReadingOutcome | None:
        if reading.stream not in self._columns:
            return ReadingOutcome.UNUSED
        if not (math.isfinite(reading.value) and math.isfinite(reading.time)):
            return ReadingOutcome.NOT_FINITE
        if reading.flags & _SUSPECT:
            return ReadingOutcome.SUSPECT
        if reading.time > latest or abs(reading.time) >= FARTHEST:
            return ReadingOutcome.FUTURE
        return None

    def _merge(self, reading: Reading, slot: int) -> ReadingOutcome:
        value: float | None = reading.value
        if reading.stream in self._sums:
            span = self.step if reading.seconds is None else reading.seconds
            offset = reading.time - slot * self.step
            if span <= 0 or self.step % span or offset % span:
                return ReadingOutcome.OFF_GRID
            value = self._summed(reading, slot, round(self.step / span))
        if value is None:
            return ReadingOutcome.PART
        return self._put(SeriesRow(reading.stream, slot, value, int(reading.flags)))

    def _summed(self, reading: Reading, slot: int, wanted: int) -> float | None:
        if wanted == 1:
            return reading.value
        parts = self._parts.setdefault((reading.stream, slot), {})
        parts[reading.time] = reading.value
        if len(self._parts) > 8 * len(self._columns):
            del self._parts[next(iter(self._parts))]
        return math.fsum(parts.values()) if len(parts) >= wanted else None

    def _put(self, row: SeriesRow) -> ReadingOutcome:
        if not self._reach(row.slot):
            return ReadingOutcome.LATE
        column, at = self._columns[row.stream], row.slot - self._base
        before = column[at]
        if before == row.value:
            return ReadingOutcome.AGAIN
        column[at] = row.value
        self._pending[row.stream, row.slot] = row
        return ReadingOutcome.NEW if math.isnan(before) else ReadingOutcome.CHANGED

    def _reach(self, slot: int) -> bool:
        """Make room for a slot; return False when it is older than the slots kept."""
        if self._first <= slot < self._end:
            return True
        if not len(self):
            self._base = self._first = slot
            self._end = slot + 1
        elif slot < self._first:
            if self._end - slot > self.capacity:
                return False
            self._first = slot
        elif slot >= self._end:
            self._end = slot + 1
            self._first = max(self._first, self._end - self.capacity)
        room = next(iter(self._columns.values())).size
        if self._first < self._base or self._end > self._base + room:
            self._move(room)
        return True

    def _move(self, room: int) -> None:
        used = self._end - self._first
        spare = used // 4
        base = self._first - (spare if self._first < self._base else 0)
        size = max(64, used + spare, min(room, self.capacity))
        for name, old in self._columns.items():
            new = np.full(size, np.nan)
            low = max(self._first, self._base)
            high = min(self._end, self._base + old.size)
            if low < high:
                new[low - base : high - base] = old[low - self._base : high - self._base]
            self._columns[name] = new
        self._base = base
