"""Defects that the daemon survives: which errors are ours, how often, and when to try again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from aggregator.store import DatabaseError, is_about_values, is_from_database

FIRST_WAIT = 1.0  # s before a step that met a defect is tried again; doubles
LONGEST_WAIT = 60.0  # s
ATTEMPTS = 3  # in a row; then the run is halted


def is_defect(error: BaseException) -> bool:
    """Whether an error is a defect of this program, and not the disk, the memory or the operator.

    Example:
        >>> is_defect(ZeroDivisionError()), is_defect(MemoryError()), is_defect(OSError())
        (True, False, False)
    """
    told = error.__cause__ if isinstance(error, DatabaseError) else error
    if told is None or is_from_database(told):
        return told is not None and is_about_values(told)
    return isinstance(error, Exception) and not isinstance(error, (OSError, MemoryError))


@dataclass(slots=True)
class Faults:
    """How often each step of the daemon's loop met a defect in a row, and when it is due again.

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
        sites: How often each place in the code was met.
    """

    sites: Counter[str] = field(default_factory=Counter)
    _failures: Counter[str] = field(default_factory=Counter)
    _until: dict[str, float] = field(default_factory=dict)

    def may(self, step: str, now: float) -> bool:
        """Whether a step may be tried now."""
        return now >= self._until.get(step, now)

    def failed(self, step: str, now: float) -> int:
        """Note a defect; return how many times in a row it was met."""
        self._failures[step] += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (self._failures[step] - 1))
        self._until[step] = now + wait
        return self._failures[step]

    def worked(self, step: str) -> None:
        """Note that a step met no defect."""
        if step in self._failures:
            del self._failures[step]
            self._until.pop(step, None)

    def is_waiting(self, now: float) -> bool:
        """Whether any step waits to be tried again."""
        return any(until > now for until in self._until.values())

    def is_news(self, site: str) -> bool:
        """Note that a place in the code was met; whether it is the 1st, 2nd, 4th, 8th time."""
        self.sites[site] += 1
        count = self.sites[site]
        return count & (count - 1) == 0
