"""Define resource limits by device class: memory, flash, link bytes, times to train and send.

Pure: the configuration section, the numbers of the classes, the rules derived from them, and the use
of a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal

from edge_sdk.app.clock import DAY
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.app.settings import Duration, seconds

Window = Annotated[str, Matches(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")]
"""Two times of day, UTC: ``01:00-05:30``. A window that ends before it begins spans midnight."""

TrainWhen = Literal["always", "idle", "mains"]

Bytes = Annotated[int, Between(0, 10**15)]


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """Resource limits of this device. A class sets the keys left out; without one, none is set."""

    device_class: Literal["", "A", "B", "C"] = ""  # edge server, small 64-bit Linux, 32-bit Linux
    memory_mb: Annotated[int, Between(32, 1_048_576)] | None = None  # MiB of data (RLIMIT_DATA)
    daily_flash_bytes: Bytes | None = None  # bytes written a day, as the kernel counts them
    daily_link_bytes: Bytes | None = None  # payload bytes a day, both directions
    history_bytes: Bytes | None = None  # bytes of flash for readings and their noise
    daily_wake_time: Duration | None = None  # time a day for training and waiting on the link
    commit_interval: Duration | None = None  # longest wait of readings in memory
    upload_windows: Annotated[tuple[Window, ...], Length(0, 8)] = ()  # when updates are sent
    train_when: TrainWhen = "always"  # idle: little load; mains: not on battery


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """A section completed by its class. None is no limit."""

    memory: int | None = None  # bytes of data that the process may have
    daily_flash_bytes: int | None = None  # bytes written per day
    daily_link_bytes: int | None = None  # payload bytes per day, both directions
    # seconds per day for training, or for waiting on the receipt of an update
    daily_wake_time: float | None = None
    # seconds that readings wait in memory; the most that a power cut can lose
    commit_interval: float = 60.0
    history_bytes: int | None = None  # bytes of flash for readings, and for the noise on them


CLASSES: Final[Mapping[str, ResourceLimits]] = {
    "": ResourceLimits(),
    "A": ResourceLimits(daily_flash_bytes=1_000_000_000, history_bytes=256_000_000),
    "B": ResourceLimits(128 * 2**20, 50_000_000, 1_000_000, 1440.0, history_bytes=32_000_000),
    "C": ResourceLimits(96 * 2**20, 20_000_000, 1_000_000, 1440.0, 300.0, history_bytes=16_000_000),
}
"""Limits of an edge server, a usual 64-bit Linux board, a 32-bit controller without onnxruntime.

The wake time is 48 times half a minute: a round on 20 kB/s, every half hour.
"""


def limits_of(section: LimitsSection) -> ResourceLimits:
    """Return the limits in force.

    >>> limits = limits_of(LimitsSection("C", daily_link_bytes=5))
    >>> limits.daily_link_bytes, limits.commit_interval
    (5, 300.0)
    """
    usual = CLASSES[section.device_class]
    wake, after = section.daily_wake_time, section.commit_interval
    return ResourceLimits(
        usual.memory if section.memory_mb is None else section.memory_mb * 2**20,
        usual.daily_flash_bytes if section.daily_flash_bytes is None else section.daily_flash_bytes,
        usual.daily_link_bytes if section.daily_link_bytes is None else section.daily_link_bytes,
        usual.daily_wake_time if wake is None else seconds(wake),
        usual.commit_interval if after is None else seconds(after),
        usual.history_bytes if section.history_bytes is None else section.history_bytes,
    )


def lesser(one: int | None, other: int | None) -> int | None:
    """Return the stricter of two limits.

    >>> lesser(None, 5), lesser(7, 5), lesser(None, None)
    (5, 5, None)
    """
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)


@dataclass(frozen=True, slots=True)
class DailyQuota:
    """The bytes used on the present day, by server time; saved, so that a restart loses little.

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

    day: int = 0  # days since 1970, UTC; 0 before any server time is known
    used: int = 0  # payload bytes of that day, both directions

    def use(self, size: int, now: int | None) -> DailyQuota:
        """Return the quota state after the use of more bytes."""
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
