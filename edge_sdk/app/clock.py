"""Provide wall and monotonic clocks, and server time from signed hints."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from edge_sdk.app.lean_dataclass import dataclass

BUILT = 1_735_689_600_000
"""Lower bound of server time (2025-01-01): the first floor of a device without a stored one."""

DAY = 86_400_000
"""Milliseconds per day. Clocks that differ by less count as equal."""

LEAP = 400 * DAY
"""Largest step by which one message may raise the stored server time, in milliseconds."""


class Clock(Protocol):
    """The interface of a clock. A simulator has an implementation of its own."""

    def wall(self) -> int:
        """Unix milliseconds of this machine's clock; may be 1970, may jump."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> int:
        """Unix milliseconds of this machine's clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class ServerTime:
    """Estimate of server time: the best signed hint, and the monotonic time since.

    Example:
        A welcome answers this device's nonce, so it may correct the clock backwards; a ``time``
        announcement may be a replay, so it can only raise it.

        >>> known = ServerTime(floor=BUILT).adjust(BUILT + 5_000, at=1.0, bound=True)
        >>> known.adjust(BUILT + 2_000, at=2.0).now(2.0) - BUILT
        6000
        >>> known.adjust(BUILT + 2_000, at=2.0, bound=True).now(2.0) - BUILT
        2000

        A step ahead is limited to 400 days, and the next welcome reverses it.

        >>> wrong = known.adjust(BUILT + 9_000 * DAY, at=3.0, wall=BUILT + 8_000, bound=True)
        >>> (wrong.kept(3.0) - BUILT) // DAY, wrong.before - BUILT
        (400, 5000)
        >>> wrong.adjust(BUILT + 9_000, at=4.0, wall=BUILT + 9_000, bound=True).floor - BUILT
        9000
    """

    # Unix milliseconds; lower bound of server time. Raised by every signed hint, and lowered only
    # by a welcome.
    floor: int = BUILT
    # server time of the best hint in this process, or None before the first
    hint: int | None = None
    at: float = 0.0  # monotonic seconds at which that hint arrived
    # floor before it was last raised by more than a day at once; 0 if it never was, or if a welcome
    # reversed that. The raise may have been an error of the aggregator.
    before: int = 0
    # milliseconds by which the hint exceeds the floor, because its step was limited
    excess: int = 0

    def now(self, monotonic: float) -> int | None:
        """Return server time in Unix milliseconds, or None without any hint in this process."""
        if self.hint is None:
            return None
        return self.hint + int(max(0.0, monotonic - self.at) * 1000)

    def adjust(self, t: int, at: float, *, wall: int = 0, bound: bool = False) -> ServerTime:
        """Return the estimate after a verified hint.

        Args:
            t: Server time in the hint, Unix milliseconds.
            at: Monotonic seconds at which it arrived.
            wall: This machine's clock, Unix milliseconds.
            bound: True if it answers this device's nonce (a ``welcome``), so that it cannot be old.
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
        now = self.now(monotonic)
        return self.floor if now is None else max(self.floor, now - self.excess)

    def latest(self, at: float, wall: int) -> int:
        """Return the latest server time accepted from a message that may be a replay.

        With a welcome in this process, or a plausible machine clock, it is a day ahead of them.
        """
        known = self.now(at)
        if known is not None:
            return max(known, wall if self._is_plausible(wall) else 0) + DAY
        if self._is_plausible(wall):
            return max(self.floor, wall + DAY)
        return self.floor + LEAP

    def _is_plausible(self, wall: int) -> bool:
        return wall >= max(BUILT, self.floor - DAY)

    def _reference(self, wall: int) -> int:
        return max(self.floor, wall) if self._is_plausible(wall) else self.floor

    def has_passed(self, until: int, at: float, *, since: float, grace: float) -> bool:
        """Return whether a deadline is over; without a hint, ``grace`` seconds after ``since``."""
        known = self.now(at)
        return at - since >= grace if known is None else known >= until
