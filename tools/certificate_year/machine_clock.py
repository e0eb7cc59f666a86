"""Clocks of simulated devices: right, or wrong in one of several ways."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
YEAR: Final = 365 * DAY

KINDS: Final = (
    "minutes to hours ahead",
    "minutes to hours behind",
    "days to months ahead",
    "days to months behind",
    "years ahead",
    "years behind",
    "1970 after each power-up",
    "1970 until the first connection",
    "drift",
    "another offset after each power-up",
)
"""Kinds of wrong clocks; each wrong clock is of one of them."""


@dataclass(slots=True)
class MachineClock:
    """The clocks of a device, as ``edge_sdk.app.clock.Clock``."""

    kind: str = ""  # kind of its error; empty for a right clock
    offset: float = 0.0  # seconds by which it is ahead of the true time
    drift: float = 0.0  # seconds by which it gains in a second
    true: float = 0.0  # true time, Unix seconds; the simulation sets it
    powered: float = 0.0  # true time of the last power-up
    set_at: float = 0.0  # true time since which it drifts

    @property
    def seconds(self) -> float:
        """Unix seconds of this machine's clock, not before 1970."""
        return max(0.0, self.true + self.offset + self.drift * (self.true - self.set_at))

    def wall(self) -> int:
        """Unix milliseconds of this machine's clock."""
        return int(1000 * self.seconds)

    def monotonic(self) -> float:
        """Seconds since power-up."""
        return self.true - self.powered

    def power_up(self, now: float, rng: Random) -> None:
        """Start the machine at a true time; a clock without a battery is at 1970."""
        self.powered = self.true = now
        if self.kind.startswith("1970"):
            self.offset = -now
        elif self.kind.startswith("another"):
            self.offset = rng.uniform(-300 * DAY, 300 * DAY)

    def reach_network(self) -> None:
        """Set the clock at the first connection, where the machine's system does so."""
        if self.kind == "1970 until the first connection":
            self.offset = 0.0


def wrong_clock(number: int, rng: Random) -> MachineClock:
    """Return a wrong clock; successive numbers give every kind.

    >>> wrong_clock(6, Random(1)).kind
    '1970 after each power-up'
    """
    kind = KINDS[number % len(KINDS)]
    clock = MachineClock(kind)
    sign = -1.0 if kind.endswith("behind") else 1.0
    if kind.startswith("minutes"):
        clock.offset = sign * rng.uniform(MINUTE, DAY)
    elif kind.startswith("days"):
        clock.offset = sign * rng.uniform(DAY, 300 * DAY)
    elif kind.startswith("years"):
        clock.offset = sign * rng.uniform(YEAR, 20 * YEAR)
    elif kind == "drift":
        clock.drift = rng.choice((-1.0, 1.0)) * rng.uniform(1e-4, 0.1)
    return clock
