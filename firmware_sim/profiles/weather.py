"""Weather of a region, which makes neighbours alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

DAY = 86_400
HOURS = 24


def draw(*words: object) -> np.random.Generator:
    """Return the generator of one purpose: the same words give the same numbers on any machine.

    >>> draw("rain", 3).integers(1000).item() == draw("rain", 3).integers(1000).item()
    True
    >>> draw("rain", 3).integers(1000).item() == draw("rain", 4).integers(1000).item()
    False
    """
    return np.random.default_rng(list("/".join(map(str, words)).encode()))


@dataclass(frozen=True, slots=True)
class Weather:
    """A temperate climate, north of the tropics.

    Example:
        Winter is colder than summer; two regions differ, one region never does.

        >>> north = Weather("north")
        >>> bool(north.temperature(17_532).mean() < north.temperature(17_714).mean())  # 2018
        True
        >>> bool((north.temperature(17_532) == Weather("north").temperature(17_532)).all())
        True
    """

    region: str  # homes of one region share their weather

    def temperature(self, day: int) -> NDArray[np.float64]:
        """Return °C outdoors for each hour of a UTC day (since 1970), shape ``(24,)``."""
        season = 10.0 - 8.0 * math.cos(2 * math.pi * (day - 15) / 365.25)
        hours = np.arange(HOURS)
        sun = 3.5 * np.cos(2 * np.pi * (hours - 14) / HOURS)
        fronts = np.interp(hours / HOURS, [0.0, 1.0], [self._front(day), self._front(day + 1)])
        return season + sun * (1.4 - self.cloud(day)) + fronts

    def cloud(self, day: int) -> float:
        """Return the cloud cover, 0 to 1."""
        return float(draw("cloud", self.region, day).beta(2.0, 1.5))

    def _front(self, day: int) -> float:
        """Return an anomaly of about 3 °C that lasts some days: a sum of past shocks."""
        weights = 0.75 ** np.arange(12)
        return float(2.0 * weights @ [_shock(self.region, day - ago) for ago in range(12)])

    def sun(self, day: int) -> NDArray[np.float64]:
        """Return irradiance as a fraction of its peak, by minute in UTC, shape ``(1440,)``."""
        season = 0.5 - 0.5 * math.cos(2 * math.pi * (day + 10) / 365.25)
        half = 240 + 240 * season
        minutes = np.arange(1440) - 720.0
        clear = np.cos(np.clip(minutes / half, -1, 1) * np.pi / 2)
        share = (0.35 + 0.65 * season) * (1 - 0.75 * self.cloud(day))
        return np.asarray(clear * share, np.float64)


@cache
def _shock(region: str, day: int) -> float:
    return float(draw("front", region, day).standard_normal())
