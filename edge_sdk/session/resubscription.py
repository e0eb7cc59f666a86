"""Decide when to subscribe again, so that a broker repeats retained messages that are missing."""

from __future__ import annotations

_FIRST = 30.0  # seconds without a required announcement before it is requested again; doubles
_LONGEST = 900.0


class Resubscription:
    """The retry timer of missing announcements.

    Example:
        >>> timer = Resubscription(0.0)
        >>> [timer.is_due(now, is_missing=True) for now in (29.0, 30.0, 89.0, 90.0)]
        [False, True, False, True]
        >>> timer.is_due(91.0, is_missing=False), timer.is_due(120.0, is_missing=True)
        (False, False)
    """

    def __init__(self, now: float) -> None:
        """Start the timer."""
        self._due, self._wait = now + _FIRST, _FIRST

    def is_due(self, now: float, *, is_missing: bool) -> bool:
        """Return whether to subscribe again now; the timer restarts while nothing is missing."""
        if not is_missing:
            self._due, self._wait = now + _FIRST, _FIRST
        elif now >= self._due:
            self._wait = min(2 * self._wait, _LONGEST)
            self._due = now + self._wait
            return True
        return False
