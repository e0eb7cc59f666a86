"""Time as an argument: wall and monotonic clocks, and server time from signed hints."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

BUILT = 1_735_689_600_000
"""No server time lies before this moment (2025-01-01): the first floor of a device without one."""

DAY = 86_400_000
"""Milliseconds. Clocks that are less than this apart agree."""

LEAP = 400 * DAY
"""No message moves what is kept of server time further ahead than this of what was known."""


class Clock(Protocol):
    """What a shell reads time from. A simulator has one of its own."""

    def wall(self) -> int:
        """Unix milliseconds, as this machine believes; may be 1970, may jump."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> int:
        """Unix milliseconds, as this machine believes."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class ServerTime:
    """What a device knows of server time: the best signed hint, and the monotonic clock since.

    Attributes:
        floor: Unix milliseconds; server time is not before this. Raised by every signed hint, and
            lowered only by a welcome.
        hint: Server time of the best hint of this process, or None before the first.
        at: Monotonic seconds when that hint came.
        before: The floor before it was last raised by more than a day at once; 0 if it never was,
            or if a welcome took that back. It may have been a mistake of the aggregator's.
        excess: By how much the hint is ahead of the floor, because its leap was cut short.

    Example:
        A welcome answers our own nonce, so it may correct the clock backwards; a ``time``
        announcement may be an old one replayed, so it only ever raises.

        >>> known = ServerTime(floor=BUILT).hear(BUILT + 5_000, at=1.0, bound=True)
        >>> known.hear(BUILT + 2_000, at=2.0).now(2.0) - BUILT
        6000
        >>> known.hear(BUILT + 2_000, at=2.0, bound=True).now(2.0) - BUILT
        2000

        Of a leap ahead 400 days are kept at most, and the next welcome takes it back.

        >>> wrong = known.hear(BUILT + 9_000 * DAY, at=3.0, wall=BUILT + 8_000, bound=True)
        >>> (wrong.kept(3.0) - BUILT) // DAY, wrong.before - BUILT
        (400, 5000)
        >>> wrong.hear(BUILT + 9_000, at=4.0, wall=BUILT + 9_000, bound=True).floor - BUILT
        9000
    """

    floor: int = BUILT
    hint: int | None = None
    at: float = 0.0
    before: int = 0
    excess: int = 0

    def now(self, monotonic: float) -> int | None:
        """Server time in Unix milliseconds, or None without any hint in this process."""
        if self.hint is None:
            return None
        return self.hint + int(max(0.0, monotonic - self.at) * 1000)

    def hear(self, t: int, at: float, *, wall: int = 0, bound: bool = False) -> ServerTime:
        """Take a verified hint into account.

        Args:
            t: Server time it carries.
            at: Our monotonic clock when it came.
            wall: This machine's clock, Unix milliseconds.
            bound: Whether it answered our own nonce (a ``welcome``), so that it cannot be old.
        """
        known = self.now(at)
        if not bound:
            if t > self.latest(at, wall):
                return self
            after = replace(self, floor=max(self.floor, t))
            return replace(after, hint=t, at=at) if known is None or t > known else after
        floor = max(BUILT, t if self.floor == BUILT else min(t, self._reference(wall) + LEAP))
        before = 0 if floor < self.floor - DAY else self.before
        if floor > max(self.floor, wall, known or 0) + DAY:
            before = self.floor
        excess = max(0, t - floor)
        return replace(self, floor=floor, hint=t, at=at, before=before, excess=excess)

    def kept(self, monotonic: float) -> int:
        """Return the floor as it is by now, to be kept for the next process."""
        now = self.now(monotonic)
        return self.floor if now is None else max(self.floor, now - self.excess)

    def latest(self, at: float, wall: int) -> int:
        """Return the latest server time that a message which may be replayed can tell us.

        With a welcome in this process, or a clock that can be right, that is a day ahead of them.
        """
        known = self.now(at)
        if known is not None:
            return max(known, wall if self._is_plausible(wall) else 0) + DAY
        if self._is_plausible(wall):
            return max(self.floor, wall + DAY)
        return self.floor + LEAP

    def _is_plausible(self, wall: int) -> bool:
        """Whether this machine's clock can be right: it is not a day behind what was signed."""
        return wall >= max(BUILT, self.floor - DAY)

    def _reference(self, wall: int) -> int:
        """What a leap is measured from."""
        return max(self.floor, wall) if self._is_plausible(wall) else self.floor

    def has_passed(self, until: int, at: float, *, since: float, grace: float) -> bool:
        """Whether a deadline is over; without any hint, ``grace`` seconds after ``since`` it is."""
        known = self.now(at)
        return at - since >= grace if known is None else known >= until
