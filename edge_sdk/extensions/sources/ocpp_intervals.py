"""Find the beginnings of a charger's energy intervals: OCPP has only their ends."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from edge_sdk.extensions.sources.base import SourceSample, tally
from edge_sdk.extensions.sources.ocpp_totals import Series, Total, keep, sample_of
from edge_sdk.extensions.sources.ocpp_values import BEGIN, CLOCK, LOCATIONS, MeterValue

_ENDS = 64  # recent ends kept
_LATE = 1.5  # an interval that much longer than the usual one begins after a gap
_ROUNDING = 2.0  # Wh


class Span(NamedTuple):
    """Energy in Wh over ``seconds`` from ``start`` in Unix seconds."""

    start: float
    seconds: float
    wh: float


@dataclass(slots=True)
class IntervalSeries:
    """The interval values of one socket, of one context.

    An interval begins where the one before ended, or where its transaction began; after a gap it has
    the usual length.

    >>> series = IntervalSeries()
    >>> series.add(900.0, 10.0)
    []
    >>> for span in [*series.add(1800.0, 20.0), *series.add(7200.0, 30.0)]:
    ...     print(*span)
    0.0 900.0 10.0
    900.0 900.0 20.0
    6300.0 900.0 30.0
    """

    _ends: list[float] = field(default_factory=list)
    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    _first: Span | None = None  # its length is not known before the second
    _long: float = 0.0
    _stopped: float | None = None  # register at the end of the last transaction, Wh
    _started: float | None = None  # register at the beginning of the present one, Wh
    _taken: float = 0.0  # sum since then, Wh
    _begun: float = math.nan  # time of its beginning

    def add(self, end: float, wh: float) -> list[Span] | None:
        """Add an interval value; return the intervals whose beginning is known now.

        Returns:
            None if another value or a transaction ends at that time: then it has no length.
        """
        at = bisect_left(self._ends, end)
        if self._ends[at : at + 1] == [end]:
            return None
        usual, first = max(self._lengths, default=math.inf), self._first
        if at == 0 and math.isinf(usual) and first is None:
            self._first = Span(end, 0.0, wh)
            spans = []
        elif at == 0 and math.isinf(usual) and first is not None:  # the older one came later
            length = first.start - end
            spans = [Span(end - length, length, wh), Span(end, length, first.wh)]
            self._first = None
        else:
            length = end - self._ends[at - 1] if at else usual
            if length > _LATE * usual and not math.isclose(length, self._long, rel_tol=0.05):
                self._long, length = length, usual
            else:
                self._lengths.append(length)
            spans = [Span(end - length, length, wh)]
            if first is not None:
                spans.insert(0, Span(first.start - length, length, first.wh))
                self._first = None
        self._taken += wh
        self.bound(end)
        return spans

    def begin(self, time: float, register: float | None) -> list[Span]:
        """Begin a transaction; return the idle time before it, if its register proves it.

        Args:
            time: Unix seconds.
            register: Register in Wh at that time; None if unknown.
        """
        if time == self._begun:  # a repeated message
            return []
        self._begun = time
        before, self._started, self._taken = self._stopped, register, 0.0
        is_idle = (
            before is not None and register is not None and (abs(register - before) <= _ROUNDING)
        )
        return self._rest(time, 0.0) if is_idle else self.bound(time)

    def end(self, time: float, register: float | None) -> list[Span]:
        """End a transaction; return the rise of its register after the last interval."""
        before, self._stopped, self._started = self._started, register, None
        if register is None or before is None:
            return []
        left = register - before - self._taken
        return self._rest(time, max(0.0, left)) if left >= -_ROUNDING else []

    def bound(self, time: float) -> list[Span]:
        """End the present interval at a time, without a value."""
        at = bisect_left(self._ends, time)
        if self._ends[at : at + 1] != [time]:
            self._ends.insert(at, time)
            if len(self._ends) > _ENDS:
                del self._ends[0]
        return []

    def _rest(self, time: float, wh: float) -> list[Span]:
        last = self._ends[-1] if self._ends else time
        self.bound(time)
        return [Span(last, time - last, wh)] if last < time else []


@dataclass(slots=True)
class SocketIntervals:
    """The interval values of all sockets."""

    unused: Counter[str]  # values that are not used, by name and reason, as ``tally`` counts them
    _series: OrderedDict[tuple[str, Series], IntervalSeries] = field(default_factory=OrderedDict)
    _sessions: OrderedDict[str, tuple[float, float | None]] = field(default_factory=OrderedDict)

    def add(self, socket: str, total: Total) -> Iterator[SourceSample]:
        """Yield the intervals whose beginning is known with this value."""
        one = total.last
        if not total.value >= 0 or one.unit != "Wh":
            reason = "foreign unit" if one.unit != "Wh" else "bad value"
            tally(self.unused, one.measurand, reason)
            return
        intervals = self._series.get((socket, total.series))
        if intervals is None:
            intervals = IntervalSeries()
            keep(self._series, (socket, total.series), intervals)
            if socket in self._sessions and one.context != CLOCK:
                intervals.begin(*self._sessions[socket])
        if one.context == BEGIN and total.value == 0:
            intervals.bound(one.time)
            return
        spans = intervals.add(one.time, total.value)
        if spans is None:
            tally(self.unused, one.measurand, "no length")
            return
        yield from _samples(socket, total.series, spans)

    def begin(self, socket: str, time: float, register: float | None) -> list[SourceSample]:
        """Begin a transaction at a register in Wh; return the idle time before it, if it is proved."""
        keep(self._sessions, socket, (time, register))
        return [
            sample
            for series, intervals in self._of_sessions(socket)
            for sample in _samples(socket, series, intervals.begin(time, register))
        ]

    def end(self, socket: str, time: float, register: float | None) -> list[SourceSample]:
        """End a transaction at a register in Wh; return its rise after the last interval."""
        self._sessions.pop(socket, None)
        return [
            sample
            for series, intervals in self._of_sessions(socket)
            for sample in _samples(socket, series, intervals.end(time, register))
        ]

    def _of_sessions(self, socket: str) -> Iterator[tuple[Series, IntervalSeries]]:
        for (device, series), intervals in self._series.items():
            _, location, _, of_clock = series
            if device == socket and location == LOCATIONS[0] and not of_clock:
                yield series, intervals


def _samples(socket: str, series: Series, spans: Iterable[Span]) -> Iterator[SourceSample]:
    name, location, phases, of_clock = series
    context = CLOCK if of_clock else "Sample.Periodic"
    for span in spans:
        one = MeterValue(span.start, name, context, location, "", span.wh, "Wh")
        total = Total(one, phases, span.wh)
        variant = f"{total.text} interval".strip()
        yield sample_of(socket, total, total.rank, variant, span.seconds)
