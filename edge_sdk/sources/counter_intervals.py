"""Registers that only rise, differenced on measurement time into intervals of a regular grid.

What makes this more than a subtraction is what meters do: they roll over, are swapped, fall silent,
say things twice, in the wrong order or with a wrong clock. The rule throughout: energy that cannot
be placed is left out and counted, never invented, never negative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_PERSISTENT = 8
"""So many readings in a row before the newest known one: the meter's clock was set back."""

_COARSE = 15.0
"""Seconds of the largest rise that a register may move at once: some count whole units only."""

_FAR = 14 * 86_400
"""A register that did not move proves zeros, but not for longer than this."""


class RegisterReading(NamedTuple):
    """What a meter's registers said at one moment.

    Attributes:
        time: Unix seconds.
        values: By the interface's name, in the stream's unit.
    """

    time: float
    values: Mapping[str, float]


class EnergyInterval(NamedTuple):
    """What went through between two boundaries of the grid: ``time`` is the first."""

    time: float
    value: float


@dataclass(slots=True)
class CounterSum:
    """One meter's registers of one stream, added up: the tariffs of a meter are such a set.

    The value at a boundary of the grid is read where a reading falls on it, and interpolated
    between two readings at most ``gap`` seconds apart otherwise; what is interpolated moves between
    neighbouring intervals, the sum stays what the register says.

    Attributes:
        step: Seconds of the grid.
        gap: Readings further apart leave the intervals between them open, unless nothing flowed.
        most: Largest rise per second that is believed.
        modulus: Where a register starts again from zero; 0 is never.
        counts: What was noticed: ``duplicate``, ``reordered``, ``gap``, ``rollover``, ``reset``,
            ``implausible``, ``clock set back``.

    Example:
        Readings every 20 minutes make hours; the late repeat of the first changes nothing.

        >>> meter = CounterSum(step=3600, gap=1800, most=1.0)
        >>> for minute, kwh in [(0, 5.0), (20, 5.5), (40, 6.0), (0, 5.0), (60, 6.2)]:
        ...     for interval in meter.add(minute * 60.0, {"1.8.0": kwh}):
        ...         print(interval.time, round(interval.value, 6))
        0.0 1.2
        >>> dict(meter.counts)
        {'reordered': 1}
    """

    step: float
    gap: float
    most: float
    modulus: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _last: RegisterReading | None = None
    _doubted: RegisterReading | None = None
    _total: float = 0.0  # rise since the first reading of this segment
    _mark: tuple[float, float] | None = None  # the latest boundary passed, and the rise there
    _backwards: int = 0

    def add(self, time: float, values: Mapping[str, float]) -> Iterator[EnergyInterval]:
        """Take one reading; yield the intervals that it completes, oldest first."""
        new, last = RegisterReading(time, values), self._last
        if last is None:
            self._start(new)
        elif time <= last.time:
            yield from self._behind(new, last)
        else:
            self._backwards = 0
            yield from self._ahead(new, last)

    def _behind(self, new: RegisterReading, last: RegisterReading) -> Iterator[EnergyInterval]:
        """Drop what is old: registers lose nothing by it. Follow a clock that was set back."""
        if new == last:
            self.counts["duplicate"] += 1
            return
        self.counts["reordered"] += 1
        self._backwards += 1
        if self._backwards >= _PERSISTENT:
            self.counts["clock set back"] += 1
            self._start(new)
        yield from ()

    def _ahead(self, new: RegisterReading, last: RegisterReading) -> Iterator[EnergyInterval]:
        rise = self._rise(last, new)
        if rise is not None:
            self._doubted = None
            yield from self._pass(last.time, new, rise)
            self._last = new
            return
        doubted = self._doubted
        if doubted is not None and doubted.time < new.time and self._rise(doubted, new) is not None:
            self.counts["reset"] += 1
            self._start(doubted)
            yield from self._ahead(new, doubted)
            return
        if doubted is not None:
            self.counts["implausible"] += 1
        self._doubted = new

    def _rise(self, old: RegisterReading, new: RegisterReading) -> float | None:
        """Return how much went through from one reading to another; None is not believed."""
        if old.values.keys() != new.values.keys():
            return None
        bound = self.most * (new.time - old.time + _COARSE)
        rise, has_rolled = 0.0, False
        for name, before in old.values.items():
            step = new.values[name] - before
            if step < 0 and self.modulus:
                step, has_rolled = step + self.modulus, True
            if not 0 <= step <= bound:
                return None
            rise += step
        if has_rolled:
            self.counts["rollover"] += 1
        return rise if rise <= bound * max(1, len(old.values)) else None

    def _pass(self, before: float, new: RegisterReading, rise: float) -> Iterator[EnergyInterval]:
        """Close the intervals whose boundaries lie in ``(before, new.time]``."""
        start, self._total = self._total, self._total + rise
        span = new.time - before
        first = (math.floor(before / self.step) + 1) * self.step
        if first > new.time:
            return
        if span > self.gap and (rise > 0 or span > _FAR):
            self.counts["gap"] += 1
            self._mark = (new.time, self._total) if new.time % self.step == 0 else None
            return
        for number in range(int((new.time - first) // self.step) + 1):
            boundary = first + number * self.step
            here = start + rise * ((boundary - before) / span)
            if self._mark is not None:
                yield EnergyInterval(self._mark[0], max(0.0, here - self._mark[1]))
            self._mark = (boundary, here)

    def _start(self, knot: RegisterReading) -> None:
        """Begin a segment: nothing is known of what came before."""
        self._last, self._doubted, self._total, self._backwards = knot, None, 0.0, 0
        self._mark = (knot.time, 0.0) if knot.time % self.step == 0 else None

    def saved(self) -> dict[str, Any]:
        """Return what a restart must know, as JSON has it."""
        last = None if self._last is None else [self._last.time, dict(self._last.values)]
        return {"last": last, "total": self._total, "mark": self._mark}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on where ``saved`` was taken.

        Raises:
            ValueError: Or ``KeyError``, ``TypeError``: these are not its words.
        """
        last, mark = saved["last"], saved["mark"]
        if last is not None:
            values = {str(name): float(value) for name, value in last[1].items()}
            self._last = RegisterReading(float(last[0]), values)
        self._total = float(saved["total"])
        self._mark = None if mark is None else (float(mark[0]), float(mark[1]))
