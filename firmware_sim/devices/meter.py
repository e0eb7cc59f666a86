"""Simulated electricity meter: registers that rise with a site's energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from firmware_sim.ports.p1 import MeterDisplay
from firmware_sim.profiles.premises import MINUTES, is_free
from firmware_sim.profiles.weather import DAY, draw

_LOW_UNTIL, _LOW_FROM = 7, 23  # local hours of tariff 1


class MeteredSite(Protocol):
    """Site behind a meter: generated, or recorded."""

    @property
    def seed(self) -> int:
        """Return the seed of the site."""

    def load(self, day: int) -> NDArray[np.float64]:
        """Return kW drawn in each minute of a UTC day (days since 1970), shape ``(1440,)``."""

    def generation(self, day: int) -> NDArray[np.float64]:
        """Return kW generated in each minute."""


@dataclass(slots=True)
class Meter:
    """Registers in Wh, by tariff and direction, exact at every second.

    >>> from firmware_sim.profiles.premises import Premises
    >>> from firmware_sim.profiles.weather import Weather
    >>> meter = Meter(Premises(1, "home", Weather("north"), UTC), 1_700_006_400, UTC)
    >>> first, later = meter.wh(1_700_006_400), meter.wh(1_700_092_800)
    >>> bool(2_000 < later - first < 40_000)
    True
    """

    premises: MeteredSite
    start: int  # Unix seconds, on a UTC midnight: start of the registers
    zone: tzinfo  # time zone of the tariffs
    has_gas: bool = False  # true if a gas meter reports through it, once an hour
    _passed: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    _today: int = -1
    _curves: NDArray[np.float64] = field(default_factory=lambda: np.zeros((4, MINUTES + 1)))
    _power: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MINUTES))

    def registers(self, time: float) -> NDArray[np.float64]:
        """Return Wh of low and normal tariff in, then out, at a Unix time in order of days, shape ``(4,)``."""
        day = int(time // DAY)
        while self._today < day:
            self._turn_over(self._today + 1 if self._today >= 0 else self.start // DAY)
        at = (time - day * DAY) / 60
        minute = min(int(at), MINUTES - 1)
        part = at - minute
        curves = self._curves
        here = curves[:, minute] + part * (curves[:, minute + 1] - curves[:, minute])
        first = draw("registers", self.premises.seed).integers(1_000_000, 20_000_000, 4)
        return np.asarray(first + self._passed + here, np.float64)

    def _turn_over(self, day: int) -> None:
        """Add a finished day to the registers, and draw the next."""
        self._passed = self._passed + self._curves[:, -1]
        net = self.premises.load(day) - self.premises.generation(day)
        low = _low_tariff(day, self.zone)
        rows = [
            np.where(low, np.maximum(net, 0), 0),
            np.where(low, 0, np.maximum(net, 0)),
            np.where(low, np.maximum(-net, 0), 0),
            np.where(low, 0, np.maximum(-net, 0)),
        ]
        wh = np.cumsum(np.stack(rows) * (1000 / 60), axis=1)
        self._curves = np.concatenate([np.zeros((4, 1)), wh], axis=1)
        self._power, self._today = net, day

    def wh(self, time: float) -> float:
        """Return the total Wh so far: the true value, before a register is cut to whole ones."""
        return float(self.registers(time)[:2].sum())

    def display(self, time: float, shown: float | None = None) -> MeterDisplay:
        """Return the display of the meter.

        Args:
            time: Unix seconds, the true time.
            shown: Time on its clock; the true time if None.
        """
        low, normal, fed_low, fed_normal = (int(wh) for wh in self.registers(time))
        clock_time = time if shown is None else shown
        minute = int((time % DAY) // 60)
        hour = time - time % 3600
        gas = (int(1_000_000 + 350 * (hour - self.start) / 3600), clock_time - clock_time % 3600)
        return MeterDisplay(
            clock_time,
            (low, normal),
            (fed_low, fed_normal),
            round(self._power[minute] * 1000),
            gas if self.has_gas else None,
            1 if _low_tariff(int(time // DAY), self.zone)[minute] else 2,
        )


@cache
def _low_tariff(day: int, zone: tzinfo) -> NDArray[np.bool_]:
    """Return the mask of the minutes of a UTC day at low tariff: nights and free days."""
    local = [
        datetime.fromtimestamp(day * DAY + hour * 900, UTC).astimezone(zone) for hour in range(96)
    ]
    low = [is_free(t.date()) or not _LOW_UNTIL <= t.hour < _LOW_FROM for t in local]
    return np.repeat(np.array(low), 15)
