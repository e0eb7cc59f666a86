"""The load of a base station's cells, from a seed.

The offered load follows the hour, the weekday and the place, with correlated noise, crowds on some
evenings, and a neighbour that fails and hands its users over. Carried volume, used blocks and power
follow from the offered load. The numbers are assumptions and are not fitted to a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from functools import cache
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firmware_sim.profiles.premises import is_free
from firmware_sim.profiles.recorded import Recorded
from firmware_sim.profiles.weather import DAY, draw

Place = Literal["residential", "business", "transport"]
Values = NDArray[np.float64]

# busy hours of a place: centre, width, height
PEAKS: Mapping[str, tuple[tuple[float, float, float], ...]] = MappingProxyType(
    {
        "residential": ((21.0, 2.5, 1.0), (12.5, 3.0, 0.4)),
        "business": ((11.0, 2.5, 1.0), (15.0, 2.0, 0.8)),
        "transport": ((8.0, 1.2, 1.0), (17.5, 1.6, 1.0)),
    }
)

# factor on days that most people have off
WEEKEND: Mapping[str, float] = MappingProxyType(
    {"residential": 1.15, "business": 0.35, "transport": 0.55}
)

_NIGHT = 0.08  # of a peak is offered at any hour
_NOISE, _LASTS = 0.18, 0.85  # of the logarithm; correlation of neighbouring quarters of an hour
_GROWTH = 0.25  # a year
_CROWD_CHANCE, _CROWD_HOURS = 0.03, 3.0  # a day; a stadium, a fair
_FAILS = 0.02  # chance a day that a neighbour is out for some hours
_IDLE, _SLOPE, _ASLEEP = 0.13, 0.25, 0.05  # kW of a cell: idle, at full load on top, asleep
_SLEEPS_BELOW = 2.0  # per cent of its blocks
_FIRST = date(1970, 1, 1).toordinal()
_EPOCH = 1_767_225_600  # 2026-01-01: growth is 1 there


@dataclass(frozen=True, slots=True)
class CellSite:
    """A site with some cells."""

    seed: int
    region: str = "north"  # stations of one region share crowds and moods
    cells: int = 3
    place: Place = "residential"  # kind of surroundings
    capacity: float = 150.0  # largest throughput of a cell, Mbit/s
    # offered load of its busiest hour on an ordinary day, as a fraction of the capacity
    busy: float = 0.7
    zone: tzinfo = UTC  # time zone of the users
    # ``SET/DEVICE`` of shipped readings that shape the offered load; empty generates. The second
    # cell uses the device that follows in the set, and so on.
    like: str = ""


class Load(NamedTuple):
    """Load of the cells in some periods; every array has shape ``(periods, cells)``."""

    dl: Values  # downlink volume, Mbit
    ul: Values  # uplink volume, Mbit
    dl_blocks: Values  # mean share of downlink resource blocks in use, per cent, whole numbers
    ul_blocks: Values  # the same of the uplink
    users: Values  # mean number of connected users
    power: Values  # mean power, W


def load(station: CellSite, begin: int, periods: int, seconds: int = 900) -> Load:
    """Return the load of a station's cells.

    Args:
        begin: Unix seconds; a whole multiple of ``seconds``.
        seconds: Length of a period; divides a day.

    >>> one = CellSite(seed=7)
    >>> whole, late = load(one, 1_767_225_600, 96), load(one, 1_767_225_600 + 90 * 900, 6)
    >>> bool((whole.dl[90:] == late.dl).all())
    True
    """
    times = begin + seconds * np.arange(periods)
    offered = np.stack(
        [_offered(station, cell, times, seconds) for cell in range(station.cells)], axis=1
    )
    filled = 1.0 - np.exp(-offered)
    dl_blocks = np.clip(np.round(100.0 * filled), 0.0, 100.0)
    up = 0.12 + 0.05 * filled  # a busy cell sends relatively more: pictures of the crowd
    carried = station.capacity * seconds * filled
    asleep = dl_blocks < _SLEEPS_BELOW
    power = 1e3 * np.where(asleep, _ASLEEP, _IDLE + _SLOPE * filled)
    return Load(
        dl=np.round(carried, 3),
        ul=np.round(carried * up, 3),
        dl_blocks=dl_blocks,
        ul_blocks=np.round(dl_blocks * 2.5 * up),
        users=np.round(40.0 * offered, 2),
        power=np.round(power, 1),
    )


def _offered(station: CellSite, cell: int, times: NDArray[np.int64], seconds: int) -> Values:
    if station.like:
        return station.busy * _recorded(station.like, cell, times)
    local = times + [_offset(station.zone, int(time)) for time in times]
    days, first = np.unique(local // DAY, return_inverse=True)
    factor = np.stack([_day(station, cell, int(day), seconds) for day in days])
    slot = (local % DAY) // seconds
    hours = (local % DAY) / 3600.0
    shape = _NIGHT + sum(
        height * np.exp(-0.5 * (_apart(hours, centre) / width) ** 2)
        for centre, width, height in PEAKS[station.place]
    )
    growth = 1.0 + _GROWTH * (times - _EPOCH) / (365 * DAY)
    offered: Values = station.busy * shape * np.maximum(growth, 0.1) * factor[first, slot]
    return offered


@cache
def _record(like: str, cell: int) -> Recorded:
    return Recorded(like, unit="activity", after=cell)


def _recorded(like: str, cell: int, times: NDArray[np.int64]) -> Values:
    record = _record(like, cell)
    days, which = np.unique(times // DAY, return_inverse=True)
    whole = np.stack([record.load(int(day)) for day in days])
    return np.asarray(whole[which, times % DAY // 60] / record.peak, np.float64)


def _offset(zone: tzinfo, time: int) -> int:
    there = datetime.fromtimestamp(time, zone).utcoffset()
    return 0 if there is None else int(there.total_seconds())


def _apart(hours: Values, centre: float) -> Values:
    return np.abs((hours - centre + 12.0) % 24.0 - 12.0)


def _day(station: CellSite, cell: int, day: int, seconds: int) -> Values:
    """Return the factors of one local day's periods: weekday, mood, crowd, failing neighbour."""
    rng, region = draw("cell", station.seed, cell, day), draw("crowd", station.region, day)
    count = DAY // seconds
    off = is_free(date.fromordinal(_FIRST + day))
    factor = np.full(count, WEEKEND[station.place] if off else 1.0)
    factor *= math.exp(0.1 * region.standard_normal())
    if region.random() < _CROWD_CHANCE:
        _during(factor, region.uniform(16.0, 20.0), _CROWD_HOURS, region.uniform(3.0, 8.0))
    if rng.random() < _FAILS:
        _during(factor, rng.uniform(0.0, 22.0), rng.uniform(0.5, 4.0), 1.5)
    lasts = _LASTS ** (seconds / 900)
    shocks = rng.standard_normal(count) * _NOISE * math.sqrt(1.0 - lasts**2)
    level = _NOISE * rng.standard_normal()
    for i, shock in enumerate(shocks):
        level = lasts * level + shock
        factor[i] *= math.exp(level)
    return factor


def _during(factor: Values, begin: float, hours: float, times: float) -> None:
    first, last = (int(len(factor) * hour / 24.0) for hour in (begin, begin + hours))
    factor[first : max(last, first + 1)] *= times
