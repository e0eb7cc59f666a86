"""Receive manifests and tasks, download their bodies, and return the tasks that are ready.

Each message is checked (``session.manifest_checks``). ``Agenda`` holds what is returned: a message
that repeats one of its tasks, or the download in progress, changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import decode, unpack_tensor
from edge_sdk.protocol.contract.method import END, Task, Up
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.envelope import digest
from edge_sdk.protocol.messages import takes_part
from edge_sdk.session import agenda as events
from edge_sdk.session import manifest_checks
from edge_sdk.session.announcements import Announcements
from edge_sdk.session.download import DownloadCompleted, Downloader
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.store.store import DeviceStore

if TYPE_CHECKING:
    from edge_sdk.session.body_download import NewestModel

logger = logging.getLogger(__name__)

_GRACE = 600.0  # seconds after which a round counts as ended when the server time is unknown

Events = Iterator[events.SessionEvent]


class TaskInbox:
    """The tasks that a device receives: one for all devices, or one addressed to it alone.

    Attributes:
        log: Log of the run's manifests.
        seen: The newest announcements used.
        wanted: Required properties of a manifest; None before the first bundle.
        manifest: The newest manifest, or None.
        phase: Phase of the run: ``train``, or ``stop`` at its end.
    """

    def __init__(
        self,
        config: Config,
        store: DeviceStore,
        clock: ServerClock,
        downloads: Downloader,
        agenda: events.Agenda,
        *,
        announcements: Announcements,
    ) -> None:
        self._config, self._store, self._clock = config, store, clock
        self._downloads, self._agenda, self._announcements = downloads, agenda, announcements
        self._device, self._name = config.id, announcements.name
        self._patience = seconds(config.timeouts.retained_model)
        self.log = manifest_checks.ManifestLog(store)
        self._is_logged = False
        if any(store.has_papers(entry.row["records"]) for entry in config.index.having("log")):
            self._follow_log()
        bundle = announcements.bundle
        run = bundle.run if bundle is not None else 0
        self.seen = manifest_checks.NewestAnnouncements(store.fact(self._serial), run)
        self.wanted: manifest_checks.ManifestExpectation | None = None
        self.manifest: m.ModelMessage | None = None
        self.phase = "train"
        self._manifest_at = clock.uptime
        self._task: m.TaskMessage | None = None
        self._content: tuple[bytes, Vector] | None = None
        self._model: NewestModel | None = None

    @property
    def is_common(self) -> bool:
        """Return whether manifests ask all devices at once; otherwise tasks ask each one."""
        return self.wanted is None or not self.wanted.ask.personal

    @property
    def is_ending(self) -> bool:
        """Return whether the run has ended, so that the only task is to adopt the final model."""
        return self.phase == "stop"

    @property
    def is_over(self) -> bool:
        """Return whether the round of the newest manifest is known to have ended."""
        manifest = self.manifest
        if manifest is None:
            return False
        grace = manifest.spread / 1000 + _GRACE
        return self._clock.has_passed(manifest.until, since=self._manifest_at, grace=grace)

    # --- changes of the run -----------------------------------------------------------------------

    def expect(self, wanted: manifest_checks.ManifestExpectation) -> None:
        """Set the required properties of a manifest: another bundle is in use."""
        self.wanted = wanted

    def record_trained(self, turn: tuple[int, int, int], version: int) -> None:
        """Set the last task trained; the store holds it already."""
        round_, attempt, step = turn
        self.seen = replace(self.seen, round=round_, attempt=attempt, step=step, version=version)

    def begin_run(self, run: int) -> None:
        """Begin a run: nothing was received in it yet."""
        self.seen = manifest_checks.NewestAnnouncements(self.seen.serial, run)
        self._content = None
        self._model = None
        if self._task is not None and self._task.run != run:
            self._task = None

    def follow_run(self, name: str) -> None:
        """Take part in the run of this name: nothing was received in it yet."""
        self.log.follow_run(name)
        self._name, self.manifest, self._task = name, None, None
        self._content = None
        self._model = None
        self.seen = manifest_checks.NewestAnnouncements(self._store.fact(self._serial))
        self.phase = "train"

    @property
    def _serial(self) -> str:
        """Name of the fact with the newest serial number of a manifest."""
        return f"serial {self._name}" if self._name else "serial"

    def forget_manifest(self) -> None:
        """Forget the newest manifest: it is not to be followed any more."""
        self.manifest = None

    def restart_serials(self) -> None:
        """Accept any serial number again: the holder of another key restarts the numbering."""
        self.seen, self.manifest = replace(self.seen, serial=0), None

    def reconsider(self, *, is_held: bool) -> Events:
        """Check the newest manifest and task again, after their prerequisites have arrived.

        Raises:
            Refused: As ``receive_model`` and ``receive_task``.
        """
        if self.manifest is not None:
            yield from self.receive_model(self.manifest, is_held=is_held)
        if self._task is not None:
            yield from self.receive_task(self._task, is_held=is_held)

    def _follow_log(self) -> None:
        """Follow the log of manifests from now on, if an extension can."""
        for entry in self._config.index.having("log"):
            made = entry.load("log")
            self.log = made(self._config, self._store, self._announcements, self._clock)
        self._is_logged = True

    # --- manifests --------------------------------------------------------------------------------

    def receive_model(self, manifest: m.ModelMessage, *, is_held: bool) -> Events:
        """Decide whether this device takes part in the round that a manifest opens.

        Raises:
            Refused: As ``manifest_checks.judge_model``, ``manifest_checks.check_expiry`` and
                the log's ``continued``.
        """
        manifest_checks.check_serial(manifest.serial, self.seen.serial)
        manifest_checks.check_expiry(manifest, self._clock.latest_signed)
        before = self.manifest
        if self.manifest is None or manifest.serial > self.manifest.serial:
            self.manifest, self._manifest_at = manifest, self._clock.uptime
        if self._is_early(manifest.run) or self.wanted is None:
            return  # considered again when the announced run is in force
        manifest_checks.judge_model(manifest, self.seen, self.wanted)
        if manifest.note is not None and not self._is_logged:
            self._follow_log()
        try:
            followed = self.log.continued(manifest)
        except Refused:
            self.manifest = before
            raise
        if self.log.is_behind:
            return  # considered again when the proof is here
        if manifest.serial > self.seen.serial:
            self.log.save(followed, **{self._serial: manifest.serial})
            self.seen = replace(self.seen, serial=manifest.serial)
        self.phase = manifest.phase
        yield events.InlineLimitAnnounced(
            manifest.inline, manifest.ahead or 0, manifest.single or 0
        )
        if self._is_wanted(manifest, is_held=is_held) and not self._is_pending(manifest):
            yield from self._fetch_model(manifest)

    def _is_early(self, run: int) -> bool:
        return self._agenda.bundle is not None or run > self.seen.run

    def _is_wanted(self, manifest: m.ModelMessage, *, is_held: bool) -> bool:
        if manifest.phase == "stop":
            return manifest.version > self.seen.version
        if not self.is_common:
            return False
        is_new = manifest.round > self.seen.round and not is_held
        drawn = takes_part(manifest.cohort or b"", self._device, manifest.share)
        return manifest.phase == "train" and is_new and drawn and not self.is_over

    def _is_pending(self, manifest: m.ModelMessage) -> bool:
        """Return whether the same round is being fetched, waiting for training, or in training."""
        ask = END if manifest.phase == "stop" else self.wanted.name if self.wanted else ""
        if any((t.round, t.ask) == (manifest.round, ask) for t in self._agenda.tasks):
            return True
        pending = self._downloads.manifest
        return (
            isinstance(pending, m.ModelMessage)
            and pending.round == manifest.round
            and pending.digest == manifest.digest
        )

    def _fetch_model(self, manifest: m.ModelMessage) -> Events:
        yield events.TaskWithdrawn()
        if self._content is not None and self._content[0] == manifest.digest:
            yield self._model_task(manifest, self._content[1])
        elif not isinstance(self._downloads.manifest, m.BundleMessage):
            # one transfer at a time; considered again when the bundle is in force
            has_base = self._newest.has_base(manifest)
            self._downloads.begin(manifest, patience=self._patience, is_step=has_base)

    # --- tasks for this device --------------------------------------------------------------------

    def receive_task(self, task: m.TaskMessage, *, is_held: bool) -> Events:
        """Keep the newest task; work on it once, and on no older one.

        Raises:
            Refused: WRONG_RUN for an older run; or as ``manifest_checks.judge_task``.
        """
        if task.run < self.seen.run:
            raise Refused(Reason.WRONG_RUN, f"run {task.run}, expected {self.seen.run}")
        kept = self._task
        if kept is None or kept.run != task.run or task.turn > kept.turn:
            kept = task
        elif task.turn == kept.turn and (task.blob or task.serial > kept.serial):
            kept = task  # a reminder carries no blob; a newer serial has other keys of the peers
        self._task = kept
        if self._is_early(kept.run) or self.wanted is None:
            return  # considered again when the announced run is in force
        if is_held or self.is_ending:
            return
        manifest_checks.judge_task(kept, self.seen, self.wanted)
        if self.wanted.contract[kept.ask].up is Up.PEERS:
            yield events.PeersAnnounced(kept)
        elif kept.turn > self.seen.turn and not self._is_at(kept):
            yield from self._fetch_task(kept)

    def _is_at(self, task: m.TaskMessage) -> bool:
        for known in self._agenda.tasks:
            if known.ask != END and (known.round, known.attempt, known.step) == task.turn:
                return True
        pending = self._downloads.manifest
        return isinstance(pending, m.TaskMessage) and pending.turn == task.turn and not task.blob

    def _fetch_task(self, task: m.TaskMessage) -> Events:
        yield events.TaskWithdrawn()
        if task.digest is None:
            yield self._own_task(task, {})
        elif task.blob:
            if digest(task.blob) != task.digest:
                raise Refused(Reason.BAD_DIGEST, "the content of the task has another digest")
            yield self._read_task(task, task.blob)
        elif self._content is not None and self._content[0] == task.digest:
            yield self._own_task(task, self._vectors(task, self._content[1]))
        elif not isinstance(self._downloads.manifest, m.BundleMessage):
            self._downloads.begin(task)

    @property
    def _newest(self) -> NewestModel:
        from edge_sdk.session.body_download import NewestModel  # noqa: PLC0415 - with the first body

        self._model = self._model or NewestModel()
        return self._model

    # --- bodies -----------------------------------------------------------------------------------

    def downloaded(self, completed: DownloadCompleted) -> Events:
        """Return the task whose body is complete.

        Raises:
            Refused: MALFORMED, WRONG_SIZE or NOT_FINITE: the body is not what was announced.
        """
        manifest = completed.manifest
        if isinstance(manifest, m.ModelMessage):
            w = self._read_common(manifest, completed)
            if w is not None:
                yield self._model_task(manifest, w)
        elif isinstance(manifest, m.TaskMessage):
            yield self._read_task(manifest, completed.body)

    def _read_common(self, manifest: m.ModelMessage, completed: DownloadCompleted) -> Vector | None:
        """Return the vector; None after a step that does not fit: the whole model is downloaded."""
        assert self.wanted is not None
        try:
            return self._newest.read(manifest, completed, self.wanted.size)
        except Refused as refused:
            if not completed.is_step:
                raise
            logger.warning("step refused %s", fields(version=manifest.version, why=str(refused)))
            self._model = None
            self._downloads.begin(manifest, patience=self._patience)
            return None

    def _model_task(self, manifest: m.ModelMessage, w: Vector) -> events.TaskReceived:
        """Return the task of a manifest; at the end of a run it carries only the final model."""
        assert self.wanted is not None
        self._content = (manifest.digest, w)
        self._newest.keep(manifest.version, w)
        is_end = manifest.phase == "stop"
        return events.TaskReceived(
            Task(
                to=self._device,
                round=manifest.round,
                ask=END if is_end else self.wanted.name,
                base=manifest.version,
                values=manifest.vals,
                arrays={"w" if is_end else self.wanted.ask.down[0]: w},
            )
        )

    def _read_task(self, task: m.TaskMessage, body: bytes) -> events.TaskReceived:
        content = decode(m.ContentBody, body)
        if (content.run, content.version, content.spec) != (task.run, task.base, task.spec):
            raise Refused(Reason.MALFORMED, "the content differs from its task")
        assert self.wanted is not None
        whole = self.wanted.size * max(1, len(content.blob) // max(1, 4 * self.wanted.size))
        joined = unpack_tensor(content.blob, content.enc, whole).astype(np.float32)
        self._content = (task.digest or b"", joined)
        return self._own_task(task, self._vectors(task, joined))

    def _vectors(self, task: m.TaskMessage, joined: Vector) -> dict[str, Vector]:
        assert self.wanted is not None
        ask = self.wanted.contract[task.ask]
        return manifest_checks.vectors(ask.down, joined, self.wanted.size, stacked=ask.stacked)

    def _own_task(self, task: m.TaskMessage, arrays: dict[str, Vector]) -> events.TaskReceived:
        if isinstance(self._downloads.manifest, m.TaskMessage):
            self._downloads.stop()
        return events.TaskReceived(
            Task(
                to=self._device,
                round=task.round,
                ask=task.ask,
                step=task.step,
                base=task.base,
                attempt=task.attempt,
                values=task.vals,
                arrays=arrays,
            )
        )
