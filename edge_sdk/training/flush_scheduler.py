"""Schedule writes to flash, and record bytes written and time awake, within the limits.

Readings wait in memory until there are many, or a minute has passed. Bytes written and time awake
are recorded hourly.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, StoreFull
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.limits import DailyQuota
from edge_sdk.limits.resource_governor import Deferral, ResourceGovernor, peak_kib
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import history_of, slots_needed

logger = logging.getLogger(__name__)

_READINGS_AT_ONCE = 1024  # readings in memory before a flush; a minute at most
_BOOK_EVERY = 3600.0  # seconds between two records of the bytes written


class FlushScheduler:
    """Flushes readings in batches, and applies the resource limits of the device."""

    def __init__(self, config: Config, store: DeviceStore, session: Session, clock: Clock) -> None:
        self._store, self._session, self._clock = store, session, clock
        self._flushed = self._booked = session.now
        flash = DailyQuota(store.fact("flash day"), store.fact("flash"))
        wake = DailyQuota(store.fact("wake day"), store.fact("wake"))
        self._governor = ResourceGovernor(
            config.limits, flash, wake, now=session.now, deferral=_deferral(config)
        )
        self._kept: Any = None  # the forecaster's state that is saved
        self._oldest: int | None = None  # slot of the oldest reading on flash; None: not read yet

    # --- writes -----------------------------------------------------------------------------------

    def flush_in_time(self, learner: ModelRuntime) -> None:
        """Flush readings that have waited long, even if none follow them for an hour."""
        overdue = self._session.now - self._flushed > self._governor.patience
        waiting = learner.series.unsaved
        if waiting >= _READINGS_AT_ONCE or (waiting and overdue):
            self.flush(learner)

    def flush_for_forecast(self, learner: ModelRuntime) -> None:
        """Flush readings that a forecast is about to use, unless the day's flash quota is used up."""
        if learner.series.unsaved and not self._governor.is_flash_spent:
            self.flush(learner)

    def flush(self, learner: ModelRuntime) -> None:
        """Write buffered readings, and the forecaster's state."""
        rows = learner.series.pending()
        self._flushed = self._session.now
        self._keep_forecaster(learner)
        if self._session.now - self._booked > _BOOK_EVERY:
            self._booked = self._session.now
            self.save_usage()
        if not rows:
            return
        before = self._due(learner, rows)
        try:
            self._store.add_readings(rows, before=before, step=learner.series.step)
            self._oldest = before or self._oldest
        except StoreFull:  # readings are dropped first; the outbox is kept
            self._session.count("readings not kept", len(rows))
        learner.series.saved(rows)

    def _due(self, learner: ModelRuntime, rows: Sequence[SeriesRow]) -> int | None:
        """Return the slot before which readings are dropped now, a day at a time; None for none.

        Nothing is dropped while the newest slots hold less than the model needs: after a long gap,
        or a clock jump, the old readings are all there is.
        """
        series, history = learner.series, history_of(learner.config, learner.manifest)
        if self._oldest is None:
            self._oldest = (self._store.readings.span() or (rows[0].slot,))[0]
        self._oldest = min(self._oldest, *(row.slot for row in rows))
        if series.oldest < self._oldest + history.batch:
            return None
        if series.observed(learner.manifest.required_streams) < slots_needed(
            learner.config, learner.manifest
        ):
            return None
        return series.oldest

    def remembered(self, name: str) -> bytes | None:
        """Return the note that a source saved before a restart, or None."""
        return self._store.paper(f"source {name}")

    def remember(self, notes: Mapping[str, bytes]) -> None:
        """Save the notes of the sources by name; readings are flushed before."""
        try:
            for name, note in notes.items():
                if note != self.remembered(name):
                    self._store.file_paper(f"source {name}", note)
        except StoreFull:
            self._session.count("notes not kept")

    def save_usage(self) -> None:
        """Save the bytes written today and the peak memory, for the report."""
        self._governor.look(
            float("inf"), self._clock.wall() / 1000, self._session.time.time_for_days
        )
        flash, wake = self._governor.flash, self._governor.wake
        usage = {"flash day": flash.day, "flash": flash.used}
        usage |= {"wake day": wake.day, "wake": wake.used}
        with contextlib.suppress(StoreFull):
            self._store.set_facts(**usage, peak=peak_kib())

    def _keep_forecaster(self, learner: ModelRuntime) -> None:
        """Save the forecaster's state if it changed."""
        kept = learner.forecaster.kept
        if kept is None or kept is self._kept:
            return
        try:
            learner.forecaster.save(self._store)
        except StoreFull:
            self._session.count("calibrations not kept")
        else:
            self._kept = kept

    # --- resource limits --------------------------------------------------------------------------

    def count_time(self, *, awake: bool) -> None:
        """Record the use of the time since the last call."""
        self._governor.live(self._session.now, self._session.time.time_for_days, awake=awake)

    def blocking_limit(self) -> str:
        """Return which resource limit forbids training now; empty if none does."""
        session, before = self._session, self._governor.held
        held = self._governor.look(
            session.now, self._clock.wall() / 1000, session.time.time_for_days
        )
        if held and held != before:
            logger.info("training deferred %s", fields(why=held))
        return held

    @property
    def governor(self) -> ResourceGovernor:
        return self._governor

    def has_wake_time(self, share: float) -> bool:
        """Return whether less than a share of the day's wake time is used."""
        return self._governor.has_wake_time(share, self._session.time.time_for_days)

    @property
    def why_held(self) -> str:
        """The last result of ``blocking_limit``."""
        return self._governor.held


def _deferral(config: Config) -> Deferral | None:
    for entry in config.index.configured(config.tables):
        if "deferral" in entry.row:
            found: Deferral = entry.load("deferral")
            return found
    if config.limits.upload_windows or config.limits.train_when != "always":
        raise ConfigError(
            "limits: the extension for upload_windows and train_when is not installed"
        )
    return None
