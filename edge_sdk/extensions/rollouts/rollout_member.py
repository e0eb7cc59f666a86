"""Take part in a staged rollout: score the version, serve it in its wave, and return from it.

The version runs beside the bundle in use, which continues to learn in its run: shared and personal layers stay
as they are. So serving the version, and returning from it, is one saved word, and a device has the
served model at any moment. A device whose own choice is a model of its own keeps serving that: a
rollout replaces the fleet's model.

A version with personal layers is tuned by the extension whose row has ``tuned_copy``, a function of the
runtime and a whole vector that returns the vector to use, and ``why_not_tuned``, one of the configuration
and the runtime that returns why none is; without it, it is not tuned.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.app.settings import seconds
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys, load_installed
from edge_sdk.config import Config
from edge_sdk.errors import EdgeError, StoreFull
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.rollouts.rollout_inbox import (
    STAGE_SERIAL,
    FollowedRollout,
    RolloutInbox,
    saved_rollout,
)
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.extensions.rollouts.saved_trial import (
    SavedTrial,
    TrialState,
    drop_vector,
    save_vector,
    saved_trial,
    saved_vector,
    trial_status,
)
from edge_sdk.extensions.rollouts.trial_version import TrialVersion
from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import FLEET, TUNED
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.session.download import DownloadCompleted
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import GivenUp
from edge_sdk.training.bootstrap import archive_keys
from edge_sdk.training.bundle_install import install
from edge_sdk.training.extension import DeviceExtension, DeviceParts
from edge_sdk.training.model_runtime import ModelRuntime

logger = logging.getLogger(__name__)

FOLDER = "rollout"
"""Folder inside the device's state folder that holds the version of the rollout."""


class RolloutMember(DeviceExtension):
    """The part of one device in a rollout."""

    kinds = (RolloutMessage.kind, StageMessage.kind)

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        self._config, self._store, self._session = device.config, device.store, device.session
        self._active, parts = device.active, device.session.parts
        self._inbox = RolloutInbox(
            device.store,
            parts.downloads,
            parts.time,
            pause=seconds(device.config.timeouts.retained_model),
        )
        self._archive: tuple[bytes, bytes] | None = None
        self._saved = saved_trial(device.store)
        self._version: TrialVersion | None = None
        self._present: ModelRuntime | None = None
        self._reported: tuple[object, ...] = ()
        self._is_tried = False

    # --- what arrives -----------------------------------------------------------------------------

    def start(self) -> None:
        parts = self._session.parts
        parts.link.subscribe_further(self.kinds)
        parts.announcements.serials.append(STAGE_SERIAL)

    def on_message(self, message: VerifiedMessage) -> None:
        """Follow a description or a stage.

        Raises:
            Refused: ROLLBACK.
        """
        match message.message:
            case RolloutMessage() as plan:
                self._inbox.receive_plan(plan, message.body)
            case StageMessage() as stage:
                self._inbox.receive_stage(stage, message.body)

    def on_download(self, completed: DownloadCompleted) -> None:
        """Keep the archive of the version until the next tick."""
        found, archive = self._inbox.followed, self._inbox.archive(completed)
        if found is not None and archive is not None:
            self._archive = found.of, archive

    # --- one tick ---------------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Follow the rollout; install an archive that has arrived, compare, and report.

        Raises:
            StoreFull: No space; the saved state stays.
        """
        archive, self._archive = self._archive, None
        if archive is not None:
            self._install(*archive)
        self.follow()
        found = self._inbox.followed
        if found is None:
            return
        version = self._version
        if version is None and self._is_wanted(found) and self._saved.state != "declined":
            self._inbox.request()
        if version is not None and self._saved.state == "wait":
            self._begin(version)
        if version is not None and self._is_day_over:
            self._compare(self._learned)
        self._judge(found)
        self._report(found)

    def follow(self) -> None:
        """Apply description, stage and bundle of the rollout; called before a forecast."""
        found = self._inbox.followed
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

    def serving(self, choice: str) -> TrialVersion | None:
        with suppress(StoreFull):
            self.follow()
        found = self._inbox.followed
        if found is None or found.stage.phase == "return" or self._saved.of != found.of:
            return None
        if self._saved.state != "serve" or choice not in (FLEET, TUNED):
            return None
        return self._version if self._is_wanted(found) else None

    def status(self) -> dict[str, Any]:
        """Return the device's part in plain words; empty without a rollout."""
        return trial_status(self._inbox.followed, self._saved)

    @property
    def marks(self) -> tuple[object, ...]:
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

    def _install(self, of: bytes, archive: bytes) -> None:
        found = self._inbox.followed
        if found is None or of != found.of or found.stage.phase == "return":
            return
        folder = self._config.state / FOLDER
        try:
            shutil.rmtree(folder, ignore_errors=True)
            trust, digest = _trust(self._config), found.plan.digest
            bundle = install(archive, folder, trust=trust, digest=digest)
            _check_name(bundle, found)
            TrialVersion.of(bundle, self._active.learner)
        except (EdgeError, MemoryError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._save(SavedTrial(found.of))
            self._move("declined", str(error)[:200])
            return
        self._is_tried = False

    def _begin(self, version: TrialVersion) -> None:
        runtime, series = version.runtime, self._active.learner.series
        if not len(series):
            return
        version.follow()
        if not version.reads_learned:
            own = runtime.bundle.initial
            tune = self._tuning(version)
            if tune is not None:
                if self.device.scheduler.blocking_limit():
                    return
                try:
                    own = tune(runtime, own)
                except GivenUp:
                    return  # other work came first; it is tried again
            save_vector(self._store, self._saved.of, own)
            version.adopt(own)
        self._saved = replace(self._saved, upto=series.newest)
        self._move("score", "")
        version.release()

    def _tuning(self, version: TrialVersion) -> Callable[[ModelRuntime, Vector], Vector] | None:
        """Return the tuning of a version on this device; None if it is used as released."""
        why_not, tune = (self._config.offered(key) for key in ("why_not_tuned", "tuned_copy"))
        if not version.is_personal or tune is None or why_not(self._config, version.runtime):
            return None
        found: Callable[[ModelRuntime, Vector], Vector] = tune
        return found

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
        if self._session.send(report):
            self._reported = mark

    # --- state ------------------------------------------------------------------------------------

    @property
    def _learned(self) -> Vector:
        return self._active.learner.vector(self._active.latest)

    @property
    def _today(self) -> int:
        """Return the number of the incomplete day of the newest row."""
        series = self._active.learner.series
        return int(series.newest * series.step // DAY) if len(series) else 0

    @property
    def _is_day_over(self) -> bool:
        saved, series = self._saved, self._active.learner.series
        if not saved.is_compared or not len(series):
            return False
        return self._today > saved.upto * series.step // DAY

    def _move(self, state: TrialState, why: str) -> None:
        self._save(replace(self._saved, state=state, why=why))
        rollout = self._inbox.followed
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
    manifest, plan = bundle.manifest, found.plan
    if (manifest.name, manifest.version) != (plan.name, plan.version):
        raise BundleError(
            f"the archive is {manifest.name} version {manifest.version}, the description is of "
            f"{plan.name} version {plan.version}"
        )


def _trust(config: Config) -> TrustedKeys:
    return TrustedKeys(archive_keys(config))
