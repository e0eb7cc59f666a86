"""Time as an argument: wall and monotonic clocks, and server time from signed hints."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

BUILT = 1_735_689_600_000
"""No server time lies before this moment (2025-01-01): the first floor of a device without one."""

LEAP = 400 * 86_400_000
"""A replayable hint further than this above the floor is not believed without an operator."""


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
        floor: Unix milliseconds; server time is not before this. Never lowered.
        hint: Server time of the best hint of this process, or None before the first.
        at: Monotonic seconds when that hint came.

    Example:
        A welcome answers our own nonce, so it may correct the clock backwards; a ``time``
        announcement may be an old one replayed, so it only ever raises.

        >>> known = ServerTime(floor=BUILT).hear(BUILT + 5_000, at=1.0, bound=True)
        >>> known.hear(BUILT + 2_000, at=2.0).now(2.0) - BUILT
        6000
        >>> known.hear(BUILT + 2_000, at=2.0, bound=True).now(2.0) - BUILT
        2000
    """

    floor: int = BUILT
    hint: int | None = None
    at: float = 0.0

    def now(self, monotonic: float) -> int | None:
        """Server time in Unix milliseconds, or None without any hint in this process."""
        if self.hint is None:
            return None
        return self.hint + int(max(0.0, monotonic - self.at) * 1000)

    def hear(self, t: int, at: float, *, bound: bool = False) -> ServerTime:
        """Take a verified hint into account.

        Args:
            t: Server time it carries.
            at: Our monotonic clock when it came.
            bound: Whether it answered our own nonce (a ``welcome``), so that it cannot be old.
        """
        if not bound and t > self.floor + LEAP:
            return self
        known = self.now(at)
        raised = replace(self, floor=max(self.floor, t))
        if bound or known is None or t > known:
            return replace(raised, hint=t, at=at)
        return raised

    def has_passed(self, until: int, at: float, *, since: float, grace: float) -> bool:
        """Whether a deadline is over; without any hint, ``grace`` seconds after ``since`` it is."""
        known = self.now(at)
        return at - since >= grace if known is None else known >= until
