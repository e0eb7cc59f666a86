"""Take part in a staged rollout: score the version, serve it in its wave, and return from it.

The version runs beside the bundle in use, which goes on learning in its run: shared and personal layers stay
as they are. So serving the version, and returning from it, is one saved word, and a device has the
served model at any moment. A device whose own choice is a model of its own keeps serving that: a
rollout replaces the fleet's model.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys, install, load_installed
from edge_sdk.config import Config
from edge_sdk.errors import EdgeError, StoreFull
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.combination import FLEET, TUNED
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.session.events import RolloutDownloaded
from edge_sdk.session.rollout_inbox import FollowedRollout, saved_rollout
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.bootstrap import archive_keys
from edge_sdk.training.fine_tuning import tuned, why_not_tuned
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.saved_trial import (
    SavedTrial,
    TrialState,
    drop_vector,
    save_vector,
    saved_trial,
    saved_vector,
    trial_summary,
)
from edge_sdk.training.trial_version import TrialVersion
from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.protocol.messages import TrialMessage
from edge_sdk.wire.protocol.rollout_roles import role

logger = logging.getLogger(__name__)

FOLDER = "rollout"
"""Folder inside the device's state folder that holds the version of the rollout."""


class RolloutMember:
    """The part of one device in a rollout.

    Args:
        config: Configuration of the device.
        store: Its store.
        session: Its session.
        active: The bundle in use, with its state.
        scheduler: Limits of the device.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: DeviceStore,
        session: Session,
        active: ActiveRun,
        scheduler: FlushScheduler,
    ) -> None:
        self._scheduler = scheduler
        self._config, self._store, self._session, self._active = config, store, session, active
        self._saved = saved_trial(store)
        self._version: TrialVersion | None = None
        self._present: ModelRuntime | None = None
        self._reported: tuple[object, ...] = ()
        self._is_tried = False

    # --- one turn ---------------------------------------------------------------------------------

    def turn(self, archive: RolloutDownloaded | None = None) -> None:
        """Follow the rollout; install an archive that has arrived, compare, and report.

        Raises:
            StoreFull: No space; the saved state stays.
        """
        if archive is not None:
            self._install(archive)
        self.follow()
        found = self._session.rollout
        if found is None:
            return
        version = self._version
        if version is None and self._is_wanted(found) and self._saved.state != "declined":
            self._session.request_rollout()
        if version is not None and self._saved.state == "wait":
            self._begin(version)
        if version is not None and self._is_day_over:
            self._compare(self._learned)
        self._judge(found)
        self._report(found)

    def follow(self) -> None:
        """Do at once what description, stage and bundle in use ask for; called before a forecast."""
        found = self._session.rollout
        if found is None:
            return
        if self._saved.of != found.of:
            self._forget()
            self._save(SavedTrial(found.of))
        if found.stage.phase == "return":
            if self._saved.state in ("score", "serve"):
                self._move("returned", "the aggregator ended the rollout")
            if self._version is not None or not self._is_tried:
                self._forget()
                self._is_tried = True
            return
        learner = self._active.learner
        if learner is not self._present:
            self._present, self._version, self._is_tried = learner, None, False
        if self._version is None and not self._is_tried and self._is_wanted(found):
            self._is_tried = True
            self._load(found)

    def forecast(self, choice: str) -> Forecast | None:
        """Forecast with the version; None where the device does not serve it.

        Args:
            choice: Name of the candidate that the device has chosen.
        """
        version = self.serving(choice)
        return None if version is None else version.forecast(self._learned)

    def serving(self, choice: str) -> TrialVersion | None:
        """Return the version if the device serves it; None if it serves anything else."""
        with suppress(StoreFull):
            self.follow()
        found = self._session.rollout
        if found is None or found.stage.phase == "return" or self._saved.of != found.of:
            return None
        if self._saved.state != "serve" or choice not in (FLEET, TUNED):
            return None
        return self._version if self._is_wanted(found) else None

    def status(self) -> dict[str, Any]:
        """Return the device's part in plain words; empty without a rollout."""
        return trial_summary(self._session.rollout, self._saved)

    @property
    def marks(self) -> tuple[object, ...]:
        """Values on which the served forecast depends here."""
        return self._saved.of, self._saved.state, self._version is not None

    # --- the steps --------------------------------------------------------------------------------

    def _is_wanted(self, found: FollowedRollout) -> bool:
        """Return whether this device has the version, or is to have it, beside the bundle in use.

        A device that has followed the version's announcement as a run keeps serving the version
        until it has the first model of that run.
        """
        present = self._active.learner.bundle.digest
        if role(found.plan, found.stage.stage, self._config.id) == "none":
            return False
        if present == found.plan.digest:
            return self._saved.state == "serve" and self._session.seen.version < 0
        return present == found.plan.served

    def _load(self, found: FollowedRollout) -> None:
        """Load the installed version, if it is there."""
        if self._saved.state == "declined":
            return
        folder = self._config.state / FOLDER
        if not (folder / found.plan.digest.hex()).is_dir():
            return
        try:
            bundle = load_installed(folder, found.plan.digest, trust=_trust(self._config))
            vector = saved_vector(self._store, found.of)
            self._version = TrialVersion.of(bundle, self._active.learner, vector)
        except (EdgeError, MemoryError) as error:
            shutil.rmtree(folder, ignore_errors=True)  # it is downloaded again
            logger.warning("rollout version not loaded %s", fields(why=error))
            return
        self._active.learner.call_before_training("rollout", self._compare)

    def _install(self, archive: RolloutDownloaded) -> None:
        """Install the archive in a folder of its own, and load it."""
        found = self._session.rollout
        if found is None or archive.of != found.of or found.stage.phase == "return":
            return
        folder = self._config.state / FOLDER
        try:
            shutil.rmtree(folder, ignore_errors=True)
            trust, digest = _trust(self._config), found.plan.digest
            bundle = install(archive.archive, folder, trust=trust, digest=digest)
            _check_name(bundle, found)
            TrialVersion.of(bundle, self._active.learner)
        except (EdgeError, MemoryError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._save(SavedTrial(found.of))
            self._move("declined", str(error)[:200])
            return
        self._is_tried = False

    def _begin(self, version: TrialVersion) -> None:
        """Tune a version with personal layers, then compare it from now on."""
        runtime, series = version.runtime, self._active.learner.series
        if not len(series):
            return
        version.follow()
        if not version.reads_learned:
            own = runtime.bundle.initial
            if version.is_personal and not why_not_tuned(self._config, runtime):
                if self._scheduler.blocking_limit():
                    return
                try:
                    found = tuned(runtime, own, None)
                except GivenUp:
                    return  # other work came first; it is tried again
                own = own if found is None or found.p is None else found.p
            save_vector(self._store, self._saved.of, own)
            version.adopt(own)
        self._saved = replace(self._saved, upto=series.newest)
        self._move("score", "")
        version.release()

    def _compare(self, learned: Vector) -> None:
        """Compare the version on rows that the model in use has not learned; save at once."""
        version, saved = self._version, self._saved
        series = self._active.learner.series
        if version is None or not saved.is_compared or not saved.upto < series.newest:
            return
        try:
            record = version.compared(saved.record, saved.upto, learned)
            self._save(replace(saved, record=record, upto=series.newest))
        except (StoreFull, MemoryError) as error:
            logger.warning("rollout version not compared %s", fields(why=error))
        if saved.state != "serve":
            version.release()

    def _judge(self, found: FollowedRollout) -> None:
        """Serve the version in its wave after enough days; return from one that is grossly worse."""
        saved, plan, stage = self._saved, found.plan, found.stage
        if self._version is None or saved.state not in ("score", "serve"):
            return
        is_gross = saved.record.is_gross(self._today)
        if saved.state == "serve":
            if is_gross:
                self._move("returned", "twice the error of the served version on two days")
            return
        is_due = role(plan, stage.stage, self._config.id) == "serve" and stage.phase != "pause"
        if is_due and not is_gross and len(saved.record.complete(self._today)) >= plan.days:
            self._move("serve", "")

    def _report(self, found: FollowedRollout) -> None:
        """Send state and daily words once after each change; the message repeats earlier days."""
        saved, today = self._saved, self._today
        if saved.state == "wait":
            return
        mark = (saved.of, saved.state, today, len(saved.record.complete(today)))
        if mark == self._reported:
            return
        words = saved.record.words(today, found.plan.margin) if saved.is_compared else ()
        report = TrialMessage(saved.of, saved.state, max(0, today - 1), words)
        if self._session.send_trial(report):
            self._reported = mark

    # --- state ------------------------------------------------------------------------------------

    @property
    def _learned(self) -> Vector:
        return self._active.learner.vector(self._active.latest)

    @property
    def _today(self) -> int:
        """Number of the day of the newest row, which is not complete."""
        series = self._active.learner.series
        return int(series.newest * series.step // DAY) if len(series) else 0

    @property
    def _is_day_over(self) -> bool:
        saved, series = self._saved, self._active.learner.series
        if not saved.is_compared or not len(series):
            return False
        return self._today > saved.upto * series.step // DAY

    def _move(self, state: TrialState, why: str) -> None:
        """Save another state in one transaction; forecasts follow it from the next one on."""
        self._save(replace(self._saved, state=state, why=why))
        rollout = self._session.rollout
        version = rollout.plan.version if rollout is not None else 0
        self._session.count(f"rollout {state}")
        logger.info("rollout state %s", fields(version=version, state=state, why=why or "-"))

    def _save(self, saved: SavedTrial) -> None:
        saved.save(self._store)
        self._saved = saved

    def _forget(self) -> None:
        """Delete the version; the bundle in use was never touched."""
        if self._version is not None:
            self._version.present.call_before_training("rollout", None)
        self._version, self._is_tried = None, False
        drop_vector(self._store)
        shutil.rmtree(self._config.state / FOLDER, ignore_errors=True)


def served_version(
    config: Config, store: DeviceStore, learner: ModelRuntime, choice: str
) -> TrialVersion | None:
    """Return the version that a device serves, read beside the running device; None if none."""
    found, saved = saved_rollout(store), saved_trial(store)
    if not config.accept.rollouts:
        return None
    is_serving = found is not None and saved.of == found.of and saved.state == "serve"
    if not is_serving or found is None or found.stage.phase == "return":
        return None
    if choice not in (FLEET, TUNED) or learner.bundle.digest != found.plan.served:
        return None
    try:
        bundle = load_installed(config.state / FOLDER, found.plan.digest, trust=_trust(config))
        return TrialVersion.of(bundle, learner, saved_vector(store, found.of))
    except EdgeError:
        return None


def _check_name(bundle: Bundle, found: FollowedRollout) -> None:
    """Refuse an archive of another name or version than described.

    Raises:
        BundleError: They differ.
    """
    manifest, plan = bundle.manifest, found.plan
    if (manifest.name, manifest.version) != (plan.name, plan.version):
        raise BundleError(
            f"the archive is {manifest.name} version {manifest.version}, the description is of "
            f"{plan.name} version {plan.version}"
        )


def _trust(config: Config) -> TrustedKeys:
    return TrustedKeys(archive_keys(config))
