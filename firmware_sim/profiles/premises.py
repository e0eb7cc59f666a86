"""What a home or a business draws from the grid, minute by minute, for any day."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firmware_sim.profiles.weather import Weather, draw

MINUTES = 1440
_EPOCH = date(1970, 1, 1)

_EVENTS = (  # kW, minutes, times a day, hours of day between which it is likely
    (2.0, 3, 4.0, (6, 23)),  # kettle
    (2.0, 40, 0.8, (17, 20)),  # oven
    (1.8, 50, 0.5, (9, 21)),  # washer
    (2.5, 60, 0.3, (10, 22)),  # dryer
    (0.15, 180, 1.2, (18, 23)),  # television and lights
)

_HOLIDAYS = frozenset({(1, 1), (5, 1), (12, 25), (12, 26)})
_AFTER_EASTER = frozenset({-2, 1, 39, 50})  # Good Friday, Easter Monday, Ascension, Whit Monday


def is_free(day: date) -> bool:
    """Whether most people are off: weekends, holidays on one date, and those that go with Easter.

    >>> is_free(date(2024, 12, 25)), is_free(date(2024, 12, 24)), is_free(date(2024, 4, 1))
    (True, False, True)
    """
    if day.weekday() >= 5 or (day.month, day.day) in _HOLIDAYS:
        return True
    return (day - easter(day.year)).days in _AFTER_EASTER


def easter(year: int) -> date:
    """Return Easter Sunday of the Gregorian calendar (the rule of Gauss, as Lichtenberg put it).

    >>> easter(2024), easter(1981), easter(2038)
    (datetime.date(2024, 3, 31), datetime.date(1981, 4, 19), datetime.date(2038, 4, 25))
    """
    century = year // 100
    shift = 15 + (3 * century + 3) // 4 - (8 * century + 13) // 25
    sun = 2 - (3 * century + 3) // 4
    seed = (19 * (year % 19) + shift) % 30
    full = 21 + seed - (seed + year % 19 // 11) // 29
    sunday = 7 - (year + year // 4 + sun) % 7
    return date(year, 3, 1) + timedelta(full + 7 - (full - sunday) % 7 - 1)


def mood(region: str, day: int) -> float:
    """Return how much more than usual everybody of a region does on a day: neighbours are alike.

    The dark season adds a sixth, the light one takes it.
    """
    winter = math.cos(2 * math.pi * (day - 15) / 365.25)
    return math.exp(0.15 * draw("mood", region, day).standard_normal()) * (1 + 0.16 * winter)


@dataclass(frozen=True, slots=True)
class Premises:
    """One site behind a meter.

    Attributes:
        seed: Tells sites apart.
        kind: ``home`` or ``business``.
        weather: Of its region, shared with its neighbours.
        zone: Whose clock people live by.
        solar: kW of panels; 0 is none.
        heat_pump: Whether it heats with electricity.

    Example:
        >>> home = Premises(7, "home", Weather("north"), UTC)
        >>> day = home.load(19_700)
        >>> day.shape, bool(2 < day.sum() / 60 < 40)
        ((1440,), True)
    """

    seed: int
    kind: Literal["home", "business"]
    weather: Weather
    zone: tzinfo
    solar: float = 0.0
    heat_pump: bool = False

    def load(self, day: int) -> NDArray[np.float64]:
        """Return kW drawn in each minute of a UTC day, generation not subtracted.

        Args:
            day: Days since 1970.
        """
        shape: Callable[[int], NDArray[np.float64]]
        shape = self._home if self.kind == "home" else self._business
        return shape(day) + self._heat(day)

    def generation(self, day: int) -> NDArray[np.float64]:
        """Return kW made by the panels in each minute of a UTC day."""
        return self.solar * self.weather.sun(day)

    def _local(self, day: int) -> tuple[date, int]:
        """Return the local date at UTC noon, and how many minutes local time is ahead there."""
        noon = datetime.combine(_EPOCH + timedelta(day), datetime.min.time(), UTC).replace(hour=12)
        local = noon.astimezone(self.zone)
        ahead = local.utcoffset() or timedelta()
        return local.date(), round(ahead.total_seconds() / 60)

    def _home(self, day: int) -> NDArray[np.float64]:
        """Base load, a fridge, and events while somebody is in."""
        home, today = draw("home", self.seed), draw("home", self.seed, day)
        base = float(home.lognormal(np.log(0.11), 0.3))
        local, ahead = self._local(day)
        clock = (np.arange(MINUTES) + ahead) % MINUTES
        fridge = ((clock + int(home.integers(60))) % 60) < 20
        load: NDArray[np.float64] = np.asarray(base + 0.1 * fridge, np.float64)
        busy = (1.25 if is_free(local) else 1.0) * mood(self.weather.region, day)
        for kw, minutes, often, (first, last) in _EVENTS:
            for _ in range(int(today.poisson(often * busy))):
                hour = today.triangular(first, (first + last) / 2, last)
                if not is_free(local) and 9 <= hour < 16 and home.random() < 0.6:
                    continue  # nobody is in
                start = (round(hour * 60) - ahead) % MINUTES
                load[start : start + minutes] += kw
        return load

    def _business(self, day: int) -> NDArray[np.float64]:
        """A trapezoid over opening hours, a base of a third."""
        local, ahead = self._local(day)
        most = float(draw("business", self.seed).uniform(15, 60))
        hours = ((np.arange(MINUTES) + ahead) % MINUTES) / 60
        ramps = np.minimum(np.clip((hours - 6.5) / 1.5, 0, 1), np.clip((19 - hours) / 1.5, 0, 1))
        open_ = 0.15 if is_free(local) else 1.0
        noise = draw("business", self.seed, day).normal(1.0, 0.03, MINUTES)
        load = most * (0.33 + 0.67 * open_ * ramps) * np.clip(noise, 0.8, 1.2)
        return np.asarray(load, np.float64)

    def _heat(self, day: int) -> NDArray[np.float64]:
        """A heat pump: demand by degrees below 16 °C, worse efficiency where it is cold."""
        if not self.heat_pump:
            return np.zeros(MINUTES)
        outside = np.repeat(self.weather.temperature(day), 60)
        demand = 0.25 * np.clip(16 - outside, 0, None)
        return np.asarray(demand / np.clip(3.5 + 0.06 * (outside - 7), 1.8, 5.0), np.float64)
