"""Make one value of a slot from several meters, and from several series of one meter.

A charger reports the same energy by the registers of its sockets and by that of its main meter, at
the inlet and at the outlet, in total and by phase, as a register and as intervals. Of one device the
series with the lowest rank that covers the slot counts; devices are added.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.sources.base import tally
from edge_sdk.extensions.sources.counter_intervals import COARSE, FAR, EnergyInterval

EVENTS = 1024
"""Ranks from here on are of readings at events, such as the ends of a session: a main meter that is
read more often counts before them."""

_SLOTS = 1536
"""Slots whose parts are kept: 14 days of quarters of an hour, over which a silent meter yields zeros."""

_FEW = 64
"""Slots whose parts are kept of a stream with one series."""

_OPEN = 96  # incomplete slots of one series
_CLOSE = 1e-3  # seconds


class ValueSeries(NamedTuple):
    """One series of a device's values for a stream."""

    device: str
    rank: int = 0  # preference among the series of one device: the lowest counts
    variant: str = ""  # text that distinguishes it, such as ``Inlet``
    # prefix of the names of the devices whose sum it repeats, as a main meter does
    covers: str = ""


def combined(
    parts: Mapping[ValueSeries, float], known: Iterable[ValueSeries]
) -> dict[ValueSeries, float]:
    """Return the parts that make the value of a slot; their sum is the value.

    A main meter counts where one of the devices below it has no value for the slot, unless the sum
    of those that have one is larger.

    Args:
        known: Every series of the stream so far.

    >>> main, one, two = ValueSeries("CP", covers="CP/"), ValueSeries("CP/1"), ValueSeries("CP/2")
    >>> inlet = ValueSeries("CP/1", 1, "Inlet")
    >>> combined({main: 6.1, inlet: 4.1, one: 4.0}, [main, one, two])
    {ValueSeries(device='CP', rank=0, variant='', covers='CP/'): 6.1}
    >>> sum(combined({main: 6.1, inlet: 4.1, one: 4.0, two: 2.0}, [main, one, two]).values())
    6.0
    """
    best: dict[str, ValueSeries] = {}
    for series in sorted(parts, key=lambda one: (one.rank, -len(one.variant))):
        best.setdefault(series.device, series)
    for main in [series for series in best.values() if series.covers]:
        below = {one.device for one in known if one.device.startswith(main.covers)}
        found = [best[device] for device in sorted(below) if device in best]
        is_complete = len(found) == len(below) and all(one.rank < EVENTS for one in found)
        if found and (is_complete or math.fsum(parts[one] for one in found) >= parts[main]):
            del best[main.device]
        else:
            for one in found:
                del best[one.device]
    return {series: parts[series] for series in best.values()}


@dataclass(slots=True)
class SlotSums:
    """The values of recent slots, by stream."""

    unused: Counter[str]  # series that are not part of a slot's value, counted by slot
    _known: dict[str, dict[ValueSeries, None]] = field(default_factory=dict)
    _parts: dict[tuple[str, float], dict[ValueSeries, float]] = field(default_factory=dict)
    _given: dict[tuple[str, float], float] = field(default_factory=dict)

    def know(self, stream: str, series: ValueSeries) -> None:
        """Store that a series exists, before its first slot is complete."""
        self._known.setdefault(stream, {})[series] = None

    def add(self, stream: str, series: ValueSeries, interval: EnergyInterval) -> None:
        self._parts.setdefault((stream, interval.time), {})[series] = interval.value

    def changed(self, stream: str, time: float) -> float | None:
        """Return the value of a slot; None if it is the same as returned before."""
        parts = self._parts[stream, time]
        chosen = combined(parts, self._known[stream])
        for series in parts.keys() - chosen.keys():
            if series.rank >= EVENTS:  # the same readings are among the others
                continue
            tally(self.unused, f"{stream} ({series.variant or series.device})", "redundant")
        value = math.fsum(chosen.values())
        if math.isclose(self._given.get((stream, time), math.nan), value, abs_tol=1e-9):
            return None
        self._given[stream, time] = value
        return value

    def trim(self) -> None:
        """Drop the oldest slots; a stream with one series needs few."""
        most = _SLOTS if max(map(len, self._known.values()), default=0) > 1 else _FEW
        newest = next(reversed(self._parts), ("", 0.0))[1]
        for oldest in list(itertools.islice(self._parts, max(1, len(self._parts) - most))):
            if len(self._parts) > most or oldest[1] < newest - FAR:
                del self._parts[oldest]
                self._given.pop(oldest, None)

    def saved(self) -> list[list[Any]]:
        """Return the newest slots for a restart, as JSON-compatible values."""
        newest = list(self._parts.items())[-16:]
        return [
            [*key, {one.device: value for one, value in parts.items()}] for key, parts in newest
        ]

    def restore(self, rows: Iterable[tuple[str, float, Mapping[str, float]]]) -> None:
        """Restore slots from ``saved``."""
        for stream, time, parts in rows:
            for device, value in parts.items():
                self.know(stream, ValueSeries(device))
                self.add(stream, ValueSeries(device), EnergyInterval(float(time), float(value)))

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._parts.clear()
        self._given.clear()


@dataclass(slots=True)
class IntervalSpread:
    """Puts the intervals of one series on the grid, whatever their length and offset.

    An interval that crosses a boundary is divided in proportion; a slot is complete once intervals
    cover the whole of it, in any order.

    >>> spread = IntervalSpread(step=1800, gap=1800, most=1.0, counts=Counter())
    >>> [list(spread.add(at, 900, kwh)) for at, kwh in [(900, 0.5), (0, 1.0)]]
    [[], [EnergyInterval(time=0, value=1.5)]]
    """

    step: float  # seconds per slot of the grid
    gap: float  # longest interval in seconds that is divided, unless nothing flowed in it
    most: float  # largest accepted rise per second
    counts: Counter[str]  # counters of events, as those of ``CounterSum``
    _open: dict[float, dict[float, tuple[float, float]]] = field(default_factory=dict)

    def add(self, start: float, seconds: float, value: float) -> Iterator[EnergyInterval]:
        """Add the energy of ``seconds`` from ``start``; yield the slots that it completes."""
        if not 0 <= value <= self.most * (seconds + COARSE) or not 0 < seconds <= FAR:
            self.counts["implausible"] += 1
            return
        if seconds > max(self.gap, self.step) + COARSE and value > 0:
            self.counts["gap"] += 1
            return
        slot = start // self.step * self.step
        while slot < start + seconds - _CLOSE:
            first = max(slot, start)
            length = min(slot + self.step, start + seconds) - first
            whole = self._cover(slot, first, (length, value * (length / seconds)))
            if whole is not None:
                yield EnergyInterval(slot, whole)
            slot += self.step

    def _cover(self, slot: float, first: float, part: tuple[float, float]) -> float | None:
        """Add a part of a slot; return the slot's value once it is complete."""
        parts = self._open.setdefault(slot, {})
        if parts.get(first) == part:
            self.counts["duplicate"] += 1
            return None
        for begin, (length, _) in parts.items():
            if first < begin + length - _CLOSE and begin < first + part[0] - _CLOSE:
                self.counts["conflict"] += 1
                return None
        parts[first] = part
        if len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]
            self.counts["incomplete"] += 1
        if math.fsum(length for length, _ in parts.values()) < self.step - _CLOSE:
            return None
        return math.fsum(value for _, value in self._open.pop(slot).values())
