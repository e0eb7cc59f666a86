"""Order in which the updates of a direct simulation arrive: a seeded draw of virtual times."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

SPREAD = 0.5
"""Standard deviation of the logarithm of a device's speed, and of each of its answers."""


@dataclass(slots=True)
class VirtualClock:
    """Seconds of simulated time since the first round was opened."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the virtual seconds."""
        return self.now

    def advance(self, at: float) -> None:
        """Advance to a time; an earlier one changes nothing."""
        self.now = max(self.now, at)


@dataclass(slots=True)
class ArrivalTimes:
    """Virtual seconds from a task to its update: log-normal, with a median of one second.

    A device is slower or faster than others during the whole run, and every answer varies around
    that. A device's draws depend on the seed and its id only, so that another device in the fleet
    changes none of them.
    """

    seed: int
    _draws: dict[str, random.Random] = field(default_factory=dict)
    _speed: dict[str, float] = field(default_factory=dict)

    def next(self, device: str) -> float:
        """Draw the seconds of a device's next answer.

        >>> one, other = ArrivalTimes(3), ArrivalTimes(3)
        >>> _ = other.next("b")
        >>> [one.next("a") for _ in range(3)] == [other.next("a") for _ in range(3)]
        True
        """
        if device not in self._draws:
            draws = random.Random(f"arrivals {self.seed} {device}")  # noqa: S311 - reproducible
            self._draws[device], self._speed[device] = draws, draws.gauss(0.0, SPREAD)
        return math.exp(self._speed[device] + self._draws[device].gauss(0.0, SPREAD))
