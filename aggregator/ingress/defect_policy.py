"""Rules for defects: which errors count as one, when a step is retried, when the run halts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from aggregator.store.errors import DatabaseError, is_about_values, is_from_database
from edge_sdk.wire.errors import SignerUnavailable

FIRST_WAIT = 1.0  # s before a step that met a defect is retried; doubles
LONGEST_WAIT = 60.0  # s
ATTEMPTS = 3  # consecutive defects after which the run is halted


def is_defect(error: BaseException) -> bool:
    """Return whether an error is a defect of this program, not of disk, memory, token or operator.

    Example:
        >>> is_defect(ZeroDivisionError()), is_defect(MemoryError()), is_defect(OSError())
        (True, False, False)
        >>> is_defect(SignerUnavailable("the token is away"))
        False
    """
    cause = error.__cause__ if isinstance(error, DatabaseError) else error
    if cause is None or is_from_database(cause):
        return cause is not None and is_about_values(cause)
    outside = (OSError, MemoryError, SignerUnavailable)
    return isinstance(error, Exception) and not isinstance(error, outside)


@dataclass(slots=True)
class Faults:
    """Consecutive defects of each step of the daemon's loop, and the time of its next attempt.

    Example:
        >>> faults = Faults()
        >>> faults.failed("upkeep", now=10.0), faults.may("upkeep", now=10.5)
        (1, False)
        >>> faults.may("upkeep", now=11.0), faults.failed("upkeep", now=11.0)
        (True, 2)
        >>> faults.may("upkeep", now=12.0), faults.is_waiting(now=12.0)
        (False, True)
        >>> faults.worked("upkeep")
        >>> faults.may("upkeep", now=12.0), faults.is_waiting(now=12.0)
        (True, False)

    Attributes:
        sites: Number of defects by place in the code.
    """

    sites: Counter[str] = field(default_factory=Counter)
    _failures: Counter[str] = field(default_factory=Counter)
    _until: dict[str, float] = field(default_factory=dict)

    def may(self, step: str, now: float) -> bool:
        """Return whether a step may run now."""
        return now >= self._until.get(step, now)

    def failed(self, step: str, now: float) -> int:
        """Record a defect of a step; return the number of consecutive ones."""
        self._failures[step] += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (self._failures[step] - 1))
        self._until[step] = now + wait
        return self._failures[step]

    def worked(self, step: str) -> None:
        """Record that a step succeeded."""
        if step in self._failures:
            del self._failures[step]
            self._until.pop(step, None)

    def is_waiting(self, now: float) -> bool:
        """Return whether any step waits for a retry."""
        return any(until > now for until in self._until.values())

    def is_news(self, site: str) -> bool:
        """Record a defect at a place; return True for the 1st, 2nd, 4th, 8th and so on."""
        self.sites[site] += 1
        count = self.sites[site]
        return count & (count - 1) == 0
