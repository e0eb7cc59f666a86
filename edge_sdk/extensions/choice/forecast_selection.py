"""Choose at intervals which forecast the device serves: the fleet's model, or a better candidate.

Values that no model has learned are compared as they arrive, before the next training, or, where a
part of the record is held back from training, on that part. At the first choice the newest part of an
old record counts (``record_errors``). The comparison, the tuned copy and the device's own model stay on
the device: no update and no report depends on them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.app.settings import seconds
from edge_sdk.errors import StoreFull
from edge_sdk.extensions.choice.candidates import CandidateModels, is_profile
from edge_sdk.extensions.choice.combination import LAST_GOOD, LEAST, PROFILES
from edge_sdk.extensions.choice.fine_tuning import (
    digest_of,
    tuned,
    tuning_of,
    why_fleet,
    why_not_tuned,
)
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice, choose_by_step
from edge_sdk.extensions.choice.last_good import after_day
from edge_sdk.extensions.choice.own_model import fit
from edge_sdk.extensions.choice.record_errors import record_errors
from edge_sdk.extensions.choice.saved_selection import (
    BOOSTED_MODEL,
    GOOD_MODEL,
    OWN_MODEL,
    SELECTION,
    TUNED_MODEL,
    DeviceCandidates,
    SavedSelection,
    save,
    summary_of,
)
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import FLEET, ForecastQuality
from edge_sdk.forecasting.windows import ChannelFrame, Scale
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.runtime import GraphError
from edge_sdk.training.active_run import GivenUp
from edge_sdk.training.extension import DeviceExtension, DeviceParts
from edge_sdk.training.model_runtime import ModelRuntime

logger = logging.getLogger(__name__)

_RETRY = 60.0  # seconds before a selection that was abandoned or failed is tried again


class ForecastSelection(DeviceExtension):
    """Compares the candidates of the active bundle, tunes a copy, and serves the best."""

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        self._config, self._store, self._session = device.config, device.store, device.session
        self._active, self._scheduler = device.active, device.scheduler
        self._retry_at, self._is_interrupted = -float("inf"), False
        self._learner: ModelRuntime | None = None
        self._scale: Scale | None = None
        self._known: tuple[Any, bytes] = (None, b"")
        self.candidates = DeviceCandidates()

    def start(self) -> None:
        """Serve the candidate chosen before the last restart."""
        self.on_forecast()

    @property
    def quality(self) -> ForecastQuality:
        return self.candidates.quality

    @property
    def marks(self) -> tuple[object, ...]:
        selection = self.candidates.selection
        return selection.judged, selection.choice.name

    def on_forecast(self) -> None:
        """Recall the candidates of the active bundle and scale, where these have changed."""
        learner = self._active.learner
        if learner is self._learner and learner.scale == self._scale:
            return
        self._learner, self._scale, self._known = learner, learner.scale, (None, b"")
        learner.call_before_training("selection", None)
        learner.forecaster.serve(None)
        if self.why_off:
            self.candidates = DeviceCandidates()
            return
        self.candidates = DeviceCandidates.recall(learner, self._store)
        learner.call_before_training("selection", self._compare)
        learner.forecaster.serve(self.candidates.served(learner, self._active.latest))

    @property
    def why_off(self) -> str:
        """Return why the fleet's model is always served; empty if candidates are compared."""
        return why_fleet(self._config, self._active.learner)

    @property
    def is_due(self) -> bool:
        """Return whether to tune and choose now; never while other work or a limit forbids it."""
        self.on_forecast()
        session, now = self._session, self._session.now
        if self.why_off or session.outbox.entries:
            return False
        if now < self._retry_at and not (self._is_interrupted and session.is_done):
            return False
        if not (self._is_wanted() or self._is_day_over):
            return False
        share = tuning_of(self._config).wake_share
        return not self._scheduler.blocking_limit() and self._scheduler.has_wake_time(share)

    def on_idle(self) -> None:
        """Tune the common model, fit the device's own one, and choose; abandon all if disturbed."""
        begun = self._session.now
        self._retry_at, self._is_interrupted = begun + _RETRY, False
        self._scheduler.count_time(awake=False)
        try:
            self._compare(self._active.learner.vector(self._active.latest))
            if not self._is_wanted():
                return
            self._tune()
            self._fit()
            self._fit_trees()
            self._choose()
        except GivenUp:
            self._is_interrupted = True
            self._session.count("selections given up")
        except (StoreFull, GraphError, MemoryError) as error:
            self._session.count("selections failed")
            logger.warning("forecast not chosen %s", fields(why=error))
        else:
            self._retry_at = begun
            self._session.count("selections")
            spent = self._session.now - begun
            logger.debug("candidates compared %s", fields(seconds=spent))
        finally:
            self._scheduler.count_time(awake=True)

    def status(self) -> dict[str, Any]:
        """Return the choice in plain words, or why there is none."""
        found = summary_of(self._config, self._active.learner, self.candidates)
        return {"forecast": found}

    # --- the steps --------------------------------------------------------------------------------

    @property
    def _is_alarmed(self) -> bool:
        """Return whether the served forecast has become worse than the naive one since the choice."""
        before = self.candidates.selection
        return before.monitor.alarmed_row > before.judged_row

    @property
    def _is_day_over(self) -> bool:
        """Return whether a day of readings is complete that has not been scored."""
        learner, upto = self._active.learner, self.candidates.selection.upto
        series = learner.series
        if learner.scale is None or not len(series):
            return False
        return series.newest * series.step // DAY > upto * series.step // DAY

    def _is_wanted(self) -> bool:
        """Return whether a common model is new, the last choice is old, or there was an alarm.

        Before the first training there is no scale, and so no model to tune or compare.
        """
        learner, before = self._active.learner, self.candidates.selection
        if learner.scale is None or not len(learner.series):
            return False
        interval = seconds(self._config.forecast.choice_interval)
        age = learner.shell.clock() / 1000 - before.judged
        rows = learner.series.newest - before.judged_row
        if not 0.0 <= age < interval or rows * learner.series.step >= interval:
            return True
        if self._is_alarmed:
            return True
        if self._session.seen.version < 0 or self._digest() == before.base:
            return False
        pause = seconds(tuning_of(self._config).min_interval)
        return self._session.is_done or age >= pause

    def _digest(self) -> bytes:
        state = self._active.latest
        if self._known[0] is not state:
            self._known = (state, digest_of(self._active.learner.vector(state)))
        return self._known[1]

    def _tune(self) -> None:
        active, learner = self._active, self._active.learner
        if why_not_tuned(self._config, learner) or self._session.seen.version < 0:
            return
        last = self.candidates.tuned
        if last is not None and last.base == self._digest() and not self._is_alarmed:
            return
        found = tuned(learner, learner.vector(active.latest), last)
        if found is None:
            return
        save(self._store, learner, TUNED_MODEL, found.arrays())
        self.candidates = replace(self.candidates, tuned=found)
        self._session.count("models tuned")
        is_kept = found.p is not None
        losses = {"before": found.before, "after": found.after}
        logger.info("model tuned %s", fields(kept=is_kept, **losses))

    def _fit(self) -> None:
        learner = self._active.learner
        if not self._config.forecast.own_model:
            return
        frame = learner.frame()
        found = fit(frame, frame.origins((0.0, 1.0 - self._config.training.holdout_fraction)))
        if found is not None:
            save(self._store, learner, OWN_MODEL, found.arrays())
            self.candidates = replace(self.candidates, own=found)

    def _fit_trees(self) -> None:
        """Fit trees and blend, at the first choice, a week of readings later, and after a run.

        A device without the memory for it goes on without them.
        """
        learner, before = self._active.learner, self.candidates.boosted
        fit_trees = self._config.offered("fit")
        if fit_trees is None or not self._is_outdated():
            return
        try:
            found = fit_trees(learner, self._active.latest, self._digest())
        except MemoryError as error:
            logger.warning("trees not fitted %s", fields(why=error))
            return
        if found is None:
            return
        save(self._store, learner, BOOSTED_MODEL, found.arrays())
        self.candidates = replace(self.candidates, boosted=found)
        self._session.count("trees fitted")
        logger.info("trees fitted %s", fields(first=before is None, windows=found.model.windows))

    def _is_outdated(self) -> bool:
        learner, before = self._active.learner, self.candidates.boosted
        if before is None or self._is_alarmed:
            return True
        age = (learner.series.newest - before.row) * learner.series.step
        if not 0 <= age < seconds(self._config.forecast.choice_interval):
            return True
        return self._session.is_done and before.base != self._digest()

    def _choose(self) -> None:
        learner, state = self._active.learner, self._active.latest
        p, frame = learner.vector(state), learner.frame()
        self._compare(p)
        before, models = self.candidates.selection, self.candidates.models(learner, state)
        is_first = not before.judged and len(before.table.days) < LEAST
        if is_first and not self._config.training.holdout_fraction:
            old = record_errors(learner, state, models)
            before = before if old is None else replace(before, table=old)
        found = self._chosen(before, models, p, frame)
        newest, judged = learner.series.newest, int(learner.shell.clock() / 1000)
        self._save(replace(found, judged=judged, judged_row=newest, base=self._digest()))
        self._serve(before.choice)

    def _chosen(
        self, before: SavedSelection, models: CandidateModels, p: Vector, frame: ChannelFrame
    ) -> SavedSelection:
        """Choose from the candidates as they are.

        The last good model is one after an alarm, and while the present one is not good.
        """
        holdout, table = self._config.training.holdout_fraction, before.table
        if holdout:
            table = models.compared_on(p, frame, frame.origins((1.0 - holdout, 1.0)))
        recent, least = before.monitor.comparable(table)
        if is_profile(self._active.learner.frame()) and before.monitor.since < 0:
            least = PROFILES
        available = {*models.available}
        good = self.candidates.good
        if before.monitor.since < 0 and (good is None or good.next is not None):
            available.discard(LAST_GOOD)
        choice = choose_by_step(recent, before.choice, available, least=least)
        return replace(before, table=table, choice=choice)

    def _serve(self, before: ForecastChoice) -> None:
        learner, choice = self._active.learner, self.candidates.selection.choice
        learner.forecaster.serve(self.candidates.served(learner, self._active.latest))
        if choice.name != before.name:
            names = {"served": choice.name, "before": before.name, "days": choice.days}
            errors = {name: choice.errors.get(name, np.nan) for name in (choice.name, FLEET)}
            compared = {"error": errors[choice.name], "fleet": errors[FLEET]}
            logger.info("forecast chosen %s", fields(**names, **compared))

    def _compare(self, p: Vector) -> None:
        """Score candidates and served forecasts on values since the last comparison.

        It is saved at once: after a restart, values that were learned meanwhile are not compared.
        After an alarm the device leaves what it served in the same transaction, for the best of what
        it has; models are fitted and compared again later, when no other work waits.
        """
        learner, before = self._active.learner, self.candidates.selection
        if not len(learner.series) or learner.series.newest == before.upto:
            return
        newest, table, monitor = learner.series.newest, before.table, before.monitor
        models, frame = self.candidates.models(learner, self._active.latest), learner.frame()
        if 0 <= before.upto < newest:
            if not self._config.training.holdout_fraction:
                table = models.compared_since(table, before.upto, p, frame)
            monitor = models.monitored(monitor, before.choice, before.upto, p, frame)
        found = replace(before, table=table, upto=newest, monitor=monitor)
        is_alarm = monitor.alarms > before.monitor.alarms
        with suppress(StoreFull):
            self._save(self._chosen(found, models, p, frame) if is_alarm else found)
            self._keep_good(p)
        if is_alarm:
            scores = {"week": monitor.scores.ratio(7), "month": monitor.scores.ratio(28)}
            logger.warning("forecast has become worse %s", fields(**scores))
            self._session.count("forecast alarms")
            self._serve(before.choice)

    def _keep_good(self, p: Vector) -> None:
        learner, before = self._active.learner, self.candidates.good
        today = learner.series.newest * learner.series.step // DAY
        saved = self.candidates.selection
        is_returned = LAST_GOOD in saved.choice.used
        found = after_day(before, saved.monitor.scores, today, p, is_returned=is_returned)
        if found is not None and found is not before:
            save(self._store, learner, GOOD_MODEL, found.arrays())
            self.candidates = replace(self.candidates, good=found)

    def _save(self, selection: SavedSelection) -> None:
        save(self._store, self._active.learner, SELECTION, selection.leaves())
        self.candidates = replace(self.candidates, selection=selection)
