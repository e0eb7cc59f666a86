"""Charging sessions at a socket: arrivals, energy and stays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from typing import Literal

import numpy as np

from firmware_sim.profiles.premises import is_free, regional_factor
from firmware_sim.profiles.recorded import Recorded
from firmware_sim.profiles.weather import DAY, draw

Site = Literal["home", "workplace", "public", "depot"]

_ARRIVALS: dict[Site, tuple[float, float, float]] = {  # a day, mean hour of arrival, its spread
    "home": (0.9, 18.5, 1.5),
    "workplace": (1.3, 8.0, 0.8),
    "public": (3.0, 14.0, 4.5),
    "depot": (1.0, 17.0, 0.7),
}
_STAY = {"home": 10.0, "workplace": 8.0, "public": 2.0, "depot": 13.0}  # hours, median
_AC = (3.7, 7.4, 11.0, 22.0)
_KNEE = 0.85  # fraction of the requested energy after which the current tapers off


@dataclass(frozen=True, slots=True)
class ChargingSession:
    """One car at one socket."""

    arrival: int  # Unix seconds: plugged in, charging
    departure: int  # Unix seconds: unplugged
    wh: float  # requested energy, delivered if the stay is long enough
    watts: float  # power until the knee
    number: int

    def delivered(self, time: float) -> float:
        """Return Wh delivered so far: constant power to the knee, then exponential decay.

        >>> car = ChargingSession(0, 36_000, 10_000, 10_000, 0)
        >>> round(car.delivered(1800)), 8500 < car.delivered(5400) < 10_000
        (5000, True)
        """
        seconds = min(max(time - self.arrival, 0.0), self.departure - self.arrival)
        knee = _KNEE * self.wh
        until = knee / self.watts * 3600
        if seconds <= until:
            return self.watts * seconds / 3600
        rest = self.wh - knee
        return knee + rest * (1 - math.exp(-self.watts * (seconds - until) / 3600 / rest))

    def power(self, time: float) -> float:
        """Return W at a moment."""
        if not self.arrival <= time < self.departure:
            return 0.0
        return 60 * (self.delivered(time + 60) - self.delivered(time))


@dataclass(frozen=True, slots=True)
class RecordedSession(ChargingSession):
    """A session with recorded energy."""

    given: tuple[float, ...] = (0.0,)  # wh after each minute, from zero

    def delivered(self, time: float) -> float:
        span = self.departure - self.arrival
        minutes = np.minimum(60.0 * np.arange(len(self.given)), span)
        return float(np.interp(time - self.arrival, minutes, self.given))


def recorded(name: str, share: float, day: int) -> list[ChargingSession]:
    """Return the sessions of a shipped site on a UTC day: one for each stretch of energy.

    Args:
        name: ``SET/DEVICE`` of shipped readings in kWh.
        share: Fraction of the site's energy at one of its sockets.
        day: Days since 1970.

    >>> cars = [car for day in range(17_000, 17_010) for car in recorded("chargers", 1.0, day)]
    >>> all(a.departure < b.arrival for a, b in zip(cars, cars[1:]))
    True
    """
    kw = share * _record(name).load(day)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], kw > 0, [0]])))
    cars: list[ChargingSession] = []
    for number, (first, last) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
        given = np.concatenate([[0.0], np.cumsum(kw[first:last]) * 1000 / 60])
        begin, end = (int(day * DAY + 60 * minute) for minute in (first, last))
        watts = 1000 * float(kw[first:last].max())
        cars.append(
            RecordedSession(begin, end - 1, float(given[-1]), watts, number, tuple(given.tolist()))
        )
    return cars


@cache
def _record(name: str) -> Recorded:
    return Recorded(name)


def sessions(
    seed: int, socket: int, site: Site, day: int, *, region: str = "north", zone: tzinfo = UTC
) -> list[ChargingSession]:
    """Return the cars of a local day, in order, one at a time.

    Args:
        socket: Number of the socket, from 1.
        site: Kind of site, for arrivals and stays.
        day: Days since 1970; a car may stay into the next one, and the next arrives after it left.
        region: Sites of one region have their busy days together.

    >>> cars = [car for day in range(19_700, 19_730) for car in sessions(1, 1, "home", day)]
    >>> 10 < len(cars) < 45
    True
    >>> all(a.departure < b.arrival for a, b in zip(cars, cars[1:]))
    True
    """
    chance = draw("cars", seed, socket, day)
    often, hour, spread = _ARRIVALS[site]
    free = is_free(date(1970, 1, 1) + timedelta(day))
    often *= regional_factor(region, day)
    count = int(chance.poisson(often * (0.3 if free and site != "public" else 1.0)))
    begin, next_day = _midnight(day, zone), _midnight(day + 1, zone)
    hours = sorted(float(h) for h in chance.normal(hour, spread, count))
    cars: list[ChargingSession] = []
    last = begin + 7 * 3600 if _STAY[site] > 9 else begin
    for number, at in enumerate(hours):
        arrival = max(round(begin + min(max(at, 0.0), 22.9) * 3600), last + 300)
        stay = float(chance.lognormal(math.log(_STAY[site]), 0.35))
        wh = float(chance.lognormal(math.log(11_000), 0.6))
        watts = 1000 * float(chance.choice(_AC))
        fails = chance.random() < 0.04
        departure = arrival + round(120 if fails else max(900, stay * 3600))
        latest = next_day + (6 * 3600 if _STAY[site] > 9 else -300)
        departure = min(departure, latest)
        if departure - arrival < 60:
            continue
        cars.append(ChargingSession(arrival, departure, wh, watts, number))
        last = departure
    return cars


def _midnight(day: int, zone: tzinfo) -> int:
    """Return the start of a local day, in Unix seconds."""
    local = datetime.combine(date(1970, 1, 1) + timedelta(day), time(), zone)
    return int(local.timestamp())
