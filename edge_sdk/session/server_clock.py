"""Estimate server time from signed messages, and keep it across restarts."""

from __future__ import annotations

import logging

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, Clock, ServerTime
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

_HOUR = 3_600_000  # ms: a certificate begins an hour before its issue
_DOUBT_EVERY = 3600.0  # seconds between two requests for the time that a doubt causes


class ServerClock:
    """The estimate of server time on one device.

    Attributes:
        is_bound: True once a welcome has answered a hello of this process: its time is no replay.
    """

    def __init__(self, store: DeviceStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        floor = max(ServerTime().floor, store.fact("floor"))
        self._time = ServerTime(floor, before=store.fact("floor before"))
        self._started = self._doubts_at = self.uptime
        self.is_bound = False

    @property
    def uptime(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    @property
    def seconds_running(self) -> float:
        """Seconds since this process began."""
        return self.uptime - self._started

    def now(self) -> int | None:
        """Return server time in Unix milliseconds, or None without any hint in this process."""
        return self._time.now(self.uptime)

    @property
    def latest_signed(self) -> int:
        """Latest server time that a signed message gave, Unix milliseconds.

        The machine's clock is not used, so a device whose clock is wrong judges no announcement by
        it. What the aggregator signed by a wrong clock counts until a welcome takes it back.
        """
        return max(self._time.floor, self.now() or 0)

    def has_passed(self, until: int, *, since: float, grace: float) -> bool:
        """Return whether a deadline is over; without a hint, ``grace`` seconds after ``since``."""
        return self._time.has_passed(until, self.uptime, since=since, grace=grace)

    @property
    def time_for_days(self) -> int:
        """Server time in Unix milliseconds; if unknown, the latest known one plus the uptime."""
        now = self.now()
        return self._time.floor + int(1e3 * self.seconds_running) if now is None else now

    def best_time(self) -> float:
        """Return the best estimate of the present time, Unix seconds.

        Signed time if this process has received it; else the later one of the machine's clock and
        the stored signed time.
        """
        now = self.now()
        return (max(self._clock.wall(), self._time.floor) if now is None else now) / 1000

    def certificate_time(self) -> float | None:
        """Return the time to check certificates against, or None to use the machine's clock.

        The machine's clock is wrong if it is a day behind the newest signed time, or an hour away from
        the time of a welcome to this process; then the signed time is used.
        """
        signed, wall = self.latest_signed, self._clock.wall()
        is_wrong = wall + DAY < signed or (self.is_bound and abs(wall - signed) > _HOUR)
        return signed / 1000 if is_wrong else None

    def earliest_certificate_time(self) -> float | None:
        """Return the earliest possible present time; None once a welcome to this process has given the time."""
        return None if self.is_bound else self.latest_signed / 1000

    def earlier_certificate_time(self) -> float | None:
        """Return a second time for checks of certificates: the stored time before its last increase."""
        return self._time.before / 1000 if self._time.before else None

    def receive(self, t: int, *, may_request: bool) -> bool:
        """Adopt an announced time; return whether it is doubtful, so that the time must be requested.

        It is in doubt if the announcement is a day behind the present estimate.
        """
        known = self.now()
        self._time = self._time.adjust(t, self.uptime, wall=self._clock.wall())
        is_behind = known is not None and t < known - DAY
        if not (is_behind and may_request and self.uptime >= self._doubts_at):
            return False
        self._doubts_at = self.uptime + _DOUBT_EVERY
        logger.warning("server time implausible %s", fields(announced=t, known=known))
        return True

    def correct(self, t: int, *, is_sound: bool) -> None:
        """Adopt and save the time of a welcome that answers this process's hello."""
        before = self._time.kept(self.uptime)
        if is_sound:
            self._time = self._time.adjust(t, self.uptime, wall=self._clock.wall(), bound=True)
            self.is_bound = True
            self.save()
        else:
            logger.error("server time rejected %s", fields(time=t, why="no key is valid"))
        if abs(self._time.floor - before) > DAY:
            times = {"before": before, "now": self._time.floor, "machine": self._clock.wall()}
            logger.warning("stored time changed %s", fields(**times))

    def after_loss(self, t: int, *, is_sound: bool) -> int:
        """Return the time before which every reading counts as released, after a store was lost."""
        wall = self._clock.wall()
        if is_sound:
            return self._time.adjust(t, self.uptime, wall=wall, bound=True).floor
        return max(self._time.floor, wall)

    def save(self) -> None:
        kept = self._time.kept(self.uptime)
        self._store.set_facts(**{"floor": kept, "floor before": self._time.before})
