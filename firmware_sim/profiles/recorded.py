"""Recorded readings of a site behind a simulated meter: a device of a shipped or own set."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from firmware_sim.profiles.weather import DAY
from firmware_sim.samples import SampleError, sample_set

_WEEK = 7


@dataclass(slots=True)
class Recorded:
    """Energy of a recorded site, day by day; another year's days are taken from the same weekday.

    >>> home = Recorded("homes")
    >>> day = home.load(19_700)
    >>> day.shape, bool((day >= 0).all())
    ((1440,), True)
    """

    name: str  # ``SET/DEVICE`` of the shipped sets; a set alone is its first device
    seed: int = 0
    unit: str = "kWh"  # unit of the set: kWh, or ``activity``
    after: int = 0  # offset from the named device in the set's order, for its neighbours
    _first: int = field(init=False)
    _days: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        """Read the record; raise SampleError if the set, the device or a column of energy does not exist."""
        label, _, device = self.name.partition("/")
        samples = sample_set(label)
        places = [i for i, s in enumerate(samples.samples) if not device or s.device == device]
        if not places or samples.unit != self.unit:
            raise SampleError(f"{self.name}: no device that is recorded in {self.unit}")
        one = samples.samples[(places[0] + self.after) % len(samples.samples)]
        times, kwh = one.column(samples.target)
        step = samples.step_seconds
        self._first = -(-int(times[0]) // DAY)
        slots = np.full((int(times[-1]) // DAY - self._first + 1) * (DAY // step), np.nan)
        at = (times - self._first * DAY) // step
        inside = (at >= 0) & (at < slots.size)
        slots[at[inside]] = kwh[inside]
        whole = slots.size // (_WEEK * DAY // step) * (_WEEK * DAY // step)
        if not whole:
            raise SampleError(f"{self.name}: not a week of readings")
        kw = np.nan_to_num(slots[:whole]) * 3600 / step
        self._days = np.repeat(kw, step // 60).reshape(-1, DAY // 60)

    @property
    def peak(self) -> float:
        """Return the 99.9 % quantile of all minutes, per hour."""
        return float(np.quantile(self._days, 0.999))

    def load(self, day: int) -> NDArray[np.float64]:
        """Return kW (or the unit, per hour) in each minute of a UTC day; 0 if unobserved."""
        return np.asarray(self._days[(day - self._first) % len(self._days)], np.float64)

    def generation(self, day: int) -> NDArray[np.float64]:  # noqa: ARG002 - in the record already
        return np.zeros(DAY // 60)
