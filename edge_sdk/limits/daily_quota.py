"""Count the payload bytes of a day against the quota that the fleet sets in the welcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

DAY = 86_400_000  # ms


@dataclass(frozen=True, slots=True)
class DailyQuota:
    """The bytes used on the present day, by server time; saved, so that a restart loses little.

    Attributes:
        day: Days since 1970, UTC; 0 before any server time is known.
        used: Payload bytes of that day, both directions.

    Example:
        Bytes used before the time is known count for the first known day; a new day begins at zero,
        and a clock that goes back begins none. A day that lies too far ahead is treated as an error
        and corrected.

        >>> used = DailyQuota().use(400, now=None).use(100, now=20_000 * DAY)
        >>> used, used.is_spent(500), used.is_spent(501)
        (DailyQuota(day=20000, used=500), True, False)
        >>> used.use(7, now=20_001 * DAY)
        DailyQuota(day=20001, used=7)
        >>> used.use(7, now=19_999 * DAY)
        DailyQuota(day=20000, used=507)
        >>> used.use(7, now=19_960 * DAY)
        DailyQuota(day=19960, used=507)
    """

    day: int = 0
    used: int = 0

    def use(self, size: int, now: int | None) -> DailyQuota:
        """Return the quota state after so many more bytes.

        Args:
            size: Bytes.
            now: Server time in Unix milliseconds; None if it is not known.
        """
        today = self.day if now is None else now // DAY
        is_mistaken = self.day > today + 1
        day = today if is_mistaken else max(self.day, today)
        before = self.used if is_mistaken or day == self.day or not self.day else 0
        return replace(self, day=day, used=before + size)

    def with_others(self, others: Iterable[DailyQuota]) -> DailyQuota:
        """Return the use of the day together with that of others on the same day.

        >>> DailyQuota(20_000, 400).with_others([DailyQuota(20_000, 50), DailyQuota(19_999, 7)])
        DailyQuota(day=20000, used=450)
        """
        return DailyQuota(self.day, self.used + sum(x.used for x in others if x.day == self.day))

    def is_spent(self, quota: int | None) -> bool:
        """Return whether only receipts, commands and status may be sent for the rest of the day.

        A quota of None, before the first welcome, forbids nothing.
        """
        return quota is not None and self.used >= quota
