"""Count the bytes that cross the link against the daily quota, across restarts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from edge_sdk.app.cli import fields
from edge_sdk.limits.daily_quota import DailyQuota
from edge_sdk.limits.resource_limits import lesser
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)


SAVE_AFTER = 8_192
"""Bytes that cross the link until the count is saved again, also between the hourly saves; a larger
quota counts in steps of ``SHARE``."""

SHARE = 256
"""Fraction of the quota that may be lost from the count when power fails."""


class LinkQuota:
    """The daily quota of one device's link.

    Args:
        store: Store that keeps the count.
        own: Quota of the device's own configuration, or None.
    """

    def __init__(self, store: DeviceStore, own: int | None) -> None:
        self._store, self._own = store, own
        self._day, self._counted = DailyQuota(store.fact("day"), store.fact("used")), 0
        self._saved = self._day
        self._others: tuple[LinkQuota, ...] = ()

    def share(self, others: Iterable[LinkQuota]) -> None:
        """Count the bytes of the device's other participations against the same quota."""
        self._others = tuple(others)

    @property
    def day(self) -> DailyQuota:
        """The day and its bytes so far, of this participation alone."""
        return self._day

    def is_spent(self, announced: int | None) -> bool:
        """Return whether the quota is used up; the lower of the announced and the own one holds."""
        used = self._day
        if self._others:
            used = used.with_others(other.day for other in self._others)
        return used.is_spent(lesser(announced, self._own))

    def count(self, crossed: int, now: int | None, *, announced: int | None) -> None:
        """Count the bytes since the last call, and log once when the quota is used up.

        Args:
            crossed: Payload bytes of both directions since the start of the process.
            now: Server time in Unix milliseconds; None if it is not known.
            announced: Quota of the welcome, or None.
        """
        was_spent = self.is_spent(announced)
        self._day = self._day.use(crossed - self._counted, now)
        self._counted = crossed
        if self.is_spent(announced) and not was_spent:
            logger.warning("daily quota exhausted %s", fields(bytes=self._day.used))
            self.save()
        elif self._day.day != self._saved.day or self._is_behind(announced):
            self.save()

    def _is_behind(self, announced: int | None) -> bool:
        """Return whether so much has crossed the link that the count is to be saved."""
        step = max(SAVE_AFTER, (lesser(announced, self._own) or 0) // SHARE)
        return self._day.used - self._saved.used >= step

    def save(self) -> None:
        """Save the count for the next process, and for ``gridfed-edge budget`` beside this one."""
        self._saved = self._day
        self._store.set_facts(day=self._day.day, used=self._day.used)
