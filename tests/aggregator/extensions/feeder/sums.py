"""Opened sums of a feeder with a daily and a weekly course, and what its devices expected of them."""

from dataclasses import dataclass

import numpy as np

DAY = 86_400_000
MONDAY = 1_767_571_200_000  # 2026-01-05
HOURS = np.arange(24)


@dataclass(frozen=True)
class Sum:
    """One opened sum."""

    contract: str
    source: str
    value: str
    period: int
    members: int
    values: np.ndarray
    expected: int = 20
    step: int = 3_600_000
    unit: str = "kWh"
    opened: int = 0
    part: float | None = None


def load_of(day, rng=None):
    """Return the load of 20 devices on a day, with some noise."""
    week = 0.6 if day % 7 >= 5 else 1.0
    shape = 20.0 + 10.0 * week * np.sin(2 * np.pi * (HOURS - 8) / 24)
    return shape if rng is None else shape + rng.normal(0.0, 1.0, 24)


def sums_of(days, *, feeder="F12", error=0.5, members=20, is_ahead=True, seed=0):
    """Return the sums of some days, and what the devices expect of these and of the next one.

    Args:
        error: Standard deviation of what the devices expect, in kWh; None: they send nothing.
    """
    rng, found = np.random.default_rng(seed), []
    for day in range(days + is_ahead):
        drawn, begin = load_of(day, rng), MONDAY + day * DAY
        part = members / 20
        if day < days:
            history = Sum(
                "feeder-history",
                "history",
                feeder,
                begin,
                members,
                part * drawn,
                opened=begin + DAY,
            )
            found.append(history)
        if error is not None:
            guess = part * (drawn + rng.normal(0.0, error, 24))
            found.append(
                Sum("feeder-tomorrow", "tomorrow", feeder, begin, members, guess, opened=begin)
            )
    return found
