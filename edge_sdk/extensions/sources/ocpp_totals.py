"""Add up the phases of a socket's values, and order its series of one energy."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from edge_sdk.extensions.sources.base import SourceSample, tally
from edge_sdk.extensions.sources.ocpp_values import (
    BEGIN,
    CLOCK,
    END,
    LOCATIONS,
    PHASES,
    MeterValue,
)

OF_TRANSACTION = frozenset({BEGIN, END})
"""Contexts of the registers at the ends of a transaction."""

_KEPT = 256  # transactions, series and sockets whose state is kept

Series = tuple[str, str, str, bool]
"""Key of one series of values: measurand, place, phases, clock or session."""

K = TypeVar("K")
V = TypeVar("V")


class Total(NamedTuple):
    """A total, or the sum of the phases of one moment."""

    last: MeterValue  # the last of the values; its time, place and context are those of all
    phases: str  # names of the phases, joined by ``+``; empty for a total
    value: float

    @property
    def series(self) -> Series:
        return self.last.measurand, self.last.location, self.phases, self.last.context == CLOCK

    @property
    def rank(self) -> int:
        """Order by place; then registers, intervals of the clock, those of a session; then phases."""
        is_interval = self.last.measurand.endswith(".Interval")
        kind = 0 if not is_interval else 1 if self.last.context == CLOCK else 2
        return 16 * LOCATIONS.index(self.last.location) + 4 * kind + _phases_of(self.phases)

    @property
    def text(self) -> str:
        """Return place and phases as text; empty for a total at the outlet."""
        place = self.last.location if self.last.location != LOCATIONS[0] else ""
        return f"{place} {self.phases}".strip()


def identity(socket: str, one: MeterValue) -> tuple[object, ...]:
    """Return the key under which a moment of a socket has at most one value.

    The registers of a transaction's ends and the intervals of the clock are series of their own.
    """
    of = one.context in OF_TRANSACTION and one.measurand.endswith(".Register")
    of_clock = one.context == CLOCK and one.measurand.endswith(".Interval")
    return socket, one.measurand, one.location, one.phase, of, of_clock, one.time


def totals(values: Iterable[MeterValue]) -> list[Total]:
    """Return the totals among some values, and the sums of the phases of each moment.

    >>> def at(phase, wh):
    ...     return MeterValue(0.0, "Energy.Active.Import.Register", CLOCK, "Outlet", phase, wh, "Wh")
    >>> [one[1:] for one in totals([at("L1", 5.0), at("", 9.0), at("L2", 4.0)])]
    [('L1+L2', 9.0), ('', 9.0)]
    """
    return [_total(group) for group in _groups(values)]


def _groups(values: Iterable[MeterValue]) -> list[list[MeterValue]]:
    groups: dict[tuple[object, ...], list[MeterValue]] = {}
    for one in values:
        key = (_phases_of(one.phase), *identity("", one._replace(phase="")))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _total(group: Sequence[MeterValue]) -> Total:
    """Add up one group; values of different units give NaN."""
    is_one_unit = len({one.unit for one in group}) == 1
    value = math.fsum(one.value for one in group) if is_one_unit else math.nan
    return Total(group[-1], "+".join(sorted(one.phase for one in group)), value)


def _phases_of(phases: str) -> int:
    first = phases.partition("+")[0]
    return next((number for number, some in enumerate(PHASES) if first in some), 0)


@dataclass(slots=True)
class _Moment:
    """The phases of the newest moment of a series."""

    known: set[str] = field(default_factory=set)
    time: float = math.nan
    values: dict[str, MeterValue] = field(default_factory=dict)

    def left(self, time: float) -> list[MeterValue]:
        """Advance to a time; return the phases of the previous one if it remained incomplete."""
        if time == self.time:
            return []
        values, self.values, self.time = self.values, {}, time
        return [*values.values()] if values.keys() != self.known else []

    def add(self, group: Iterable[MeterValue]) -> list[MeterValue]:
        """Add phases; return all of the moment if no known one is missing."""
        self.values |= {one.phase: one for one in group}
        self.known |= self.values.keys()
        return [*self.values.values()] if self.values.keys() == self.known else []


@dataclass(slots=True)
class PhaseSums:
    """The phases of every socket, which may arrive in several messages."""

    _moments: OrderedDict[tuple[object, ...], _Moment] = field(default_factory=OrderedDict)

    def complete(
        self, socket: str, values: Iterable[MeterValue], unused: Counter[str]
    ) -> Iterator[Total]:
        """Yield totals, and sums of phases once every known phase of the socket has a value.

        Phases that never arrive cost their moment: the sum of the others is another series.
        """
        for group in _groups(values):
            last = group[-1]
            if not last.phase:
                yield _total(group)
                continue
            same = identity(socket, last._replace(phase="", time=0.0))
            moment = self._moments.setdefault((_phases_of(last.phase), *same), _Moment())
            trim(self._moments)
            if some := moment.left(last.time):
                tally(unused, last.measurand, "phase missing")
                yield _total(some)
            if every := moment.add(group):
                yield _total(every)


def sample_of(
    socket: str, total: Total, rank: int, variant: str, seconds: float | None = None
) -> SourceSample:
    """Return a total as a sample of its socket, or of the main meter.

    Args:
        socket: Name of the socket, or of the charger for its main meter.
        rank: Preference among the series of the socket.
        variant: Text that distinguishes the series.
        seconds: Length of an interval.
    """
    one, is_main = total.last, "/" not in socket
    if is_main:
        variant = f"main meter {variant}".strip()
    covers = f"{socket}/" if is_main else ""
    return SourceSample(
        one.measurand,
        one.time,
        total.value,
        one.unit,
        socket,
        seconds=seconds,
        rank=rank,
        variant=variant,
        covers=covers,
    )


def keep(kept: OrderedDict[K, V], key: K, value: V, most: int = _KEPT) -> None:
    """Store a value as the newest; drop the oldest beyond ``most``."""
    kept[key] = value
    kept.move_to_end(key)
    trim(kept, most)


def trim(kept: OrderedDict[K, V], most: int = _KEPT) -> None:
    """Drop the oldest value beyond ``most``."""
    if len(kept) > most:
        kept.popitem(last=False)
