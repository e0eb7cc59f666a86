"""Convert cumulative registers into intervals of a regular grid by measurement time.

Meters roll over, are replaced, stop sending, and send readings twice, out of order or with a wrong
clock. The rule throughout: energy that cannot be assigned to an interval is left out and counted,
never invented, never negative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from edge_sdk.app.lean_dataclass import dataclass

_PERSISTENT = 8
"""Consecutive readings older than the newest, after which the meter's clock was set back."""

COARSE = 15.0
"""Seconds of the largest rise that a register may step at once: some count whole units only. A
reading may be so late, too."""

_JUMP = 86_400
"""Seconds; a reading so much later than the last is used once a second one follows it."""

FAR = 14 * 86_400
"""Longest time in seconds over which an unchanged register yields zeros."""


class RegisterReading(NamedTuple):
    """The register values of a meter at one moment."""

    time: float  # Unix seconds
    values: Mapping[str, float]  # values by the interface's name, in the stream's unit


class EnergyInterval(NamedTuple):
    """The energy between two boundaries of the grid; ``time`` is the first."""

    time: float
    value: float


@dataclass(slots=True)
class CounterSum:
    """The sum of one meter's registers for one stream, such as the tariffs of a meter.

    The value at a boundary of the grid is that of a reading at the boundary, otherwise interpolated
    between two readings at most ``gap`` seconds apart; interpolation shifts energy between adjacent
    intervals, and their sum equals the register's rise.

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

    step: float  # seconds per slot of the grid
    # seconds; readings further apart leave the intervals between them open, unless nothing flowed
    gap: float
    most: float  # largest accepted rise per second
    modulus: float = 0.0  # value at which a register wraps to zero; 0 is never
    # counters of events: ``duplicate``, ``conflict``, ``reordered``, ``gap``, ``rollover``,
    # ``reset``, ``implausible``, ``clock set back``
    counts: Counter[str] = field(default_factory=Counter)
    _last: RegisterReading | None = None
    _doubted: RegisterReading | None = None
    _total: float = 0.0  # rise since the first reading of this segment
    _mark: tuple[float, float] | None = None  # latest boundary passed, and the rise there
    _backwards: int = 0

    def add(self, time: float, values: Mapping[str, float]) -> Iterator[EnergyInterval]:
        """Add one reading; yield the intervals that it completes, oldest first."""
        new, last = RegisterReading(time, values), self._last
        if last is None:
            self._start(new)
        elif time <= last.time:
            yield from self._behind(new, last)
        else:
            self._backwards = 0
            yield from self._ahead(new, last)

    def _behind(self, new: RegisterReading, last: RegisterReading) -> Iterator[EnergyInterval]:
        if new == last:
            self.counts["duplicate"] += 1
            return
        self.counts["conflict" if new.time == last.time else "reordered"] += 1
        self._backwards += 1
        if self._backwards >= _PERSISTENT:
            self.counts["clock set back"] += 1
            self._start(new)
        yield from ()

    def _ahead(self, new: RegisterReading, last: RegisterReading) -> Iterator[EnergyInterval]:
        doubted, self._doubted = self._doubted, None
        rise = self._rise(last, new)
        if rise is not None and new.time - last.time <= _JUMP:
            self._dismiss(doubted)
            yield from self._pass(last.time, new, rise)
            self._last = new
        elif doubted and doubted.time < new.time and self._rise(doubted, new) is not None:
            jumped = self._rise(last, doubted)
            if jumped is None:
                self.counts["reset"] += 1
                self._start(doubted)
            else:
                yield from self._pass(last.time, doubted, jumped)
                self._last = doubted
            yield from self._ahead(new, doubted)
        else:
            self._dismiss(doubted)
            self._doubted = new

    def _dismiss(self, doubted: RegisterReading | None) -> None:
        if doubted is not None:
            self.counts["implausible"] += 1

    def _rise(self, old: RegisterReading, new: RegisterReading) -> float | None:
        """Return the rise between two readings; None if it is implausible."""
        if old.values.keys() != new.values.keys():
            return None
        bound = self.most * (new.time - old.time + COARSE)
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
        """Yield the intervals whose boundaries lie in ``(before, new.time]``."""
        start, self._total = self._total, self._total + rise
        span = new.time - before
        first = (math.floor(before / self.step) + 1) * self.step
        if first > new.time:
            return
        if span > self.gap + COARSE and (rise > 0 or span > FAR):
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
        self._last, self._doubted, self._total, self._backwards = knot, None, 0.0, 0
        self._mark = (knot.time, 0.0) if knot.time % self.step == 0 else None

    def saved(self) -> dict[str, Any]:
        last = None if self._last is None else [self._last.time, dict(self._last.values)]
        return {"last": last, "total": self._total, "mark": self._mark}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state from ``saved``.

        Raises:
            ValueError: Or ``KeyError``, ``TypeError``: the state is invalid.
        """
        last, mark = saved["last"], saved["mark"]
        if last is not None:
            values = {str(name): float(value) for name, value in last[1].items()}
            self._last = RegisterReading(float(last[0]), values)
        self._total = float(saved["total"])
        self._mark = None if mark is None else (float(mark[0]), float(mark[1]))
