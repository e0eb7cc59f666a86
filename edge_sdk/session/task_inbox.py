"""Receive announced bundles, manifests and tasks, and download their bodies.

Each message is judged (``session.announcements``), its body is fetched if needed, and the result
waits for the client.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock, ServerTime
from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.session import announcements
from edge_sdk.session.announcements import BodyDownload, ManifestExpectation, NewestAnnouncements
from edge_sdk.session.signal_inbox import SignalInbox, is_perishable
from edge_sdk.session.signed_link import SignedLink
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.contract.method import END, Task, Up
from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.client_sampling import takes_part
from edge_sdk.wire.protocol.codec import decode, unpack_tensor
from edge_sdk.wire.protocol.envelope import digest
from edge_sdk.wire.protocol.outbox import Outbox

logger = logging.getLogger(__name__)

M = TypeVar("M", m.BundleMessage, m.KeysMessage, m.TaskMessage)

_GRACE = 600.0  # seconds after which a round counts as ended when the server time is unknown


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle announcement to follow, its bytes, and the archive if it was not installed."""

    announced: m.BundleMessage
    body: bytes
    archive: bytes | None


class TaskInbox:
    """The receiving side of a session. ``Session`` adds the link and the updates.

    Attributes:
        up: Outbox state; manifests set how much may be sent unrequested.
        seen: The newest announcements used.
        wanted: Required properties of a manifest; set by the client with every bundle.
        holds: Digest of the installed bundle's archive.
        announced: The bundle announcement in force, or None before the first.
        task: The newest task that is ready for training.
        at_work: The task in training; a repeat of it is ignored.
        bundle: A bundle announcement that waits to be activated.
        calls: Perishable tasks.
        begin: The newest task that names the peers, until the client takes it.
        counts: Event counters, by name.
    """

    up: Outbox
    _time: ServerTime

    def __init__(self, config: Config, store: DeviceStore, clock: Clock, post: SignedLink) -> None:
        """Read the saved state."""
        self._config, self._store, self._clock, self._post = config, store, clock, post
        self.counts: Counter[str] = Counter()
        self.announced = filed(store, m.BundleMessage, "bundle")
        self.seen = NewestAnnouncements(
            store.fact("serial"), self.announced.run if self.announced else 0
        )
        self._rng = random.Random(secrets.randbits(64))  # noqa: S311 - spreads load, hides nothing
        self._held_up = bool(store.fact("stopped"))
        self._phase = "train"
        self._said_refusal = ""
        self._manifest: m.ModelMessage | None = None
        self._manifest_at = self.now
        self._fetch: BodyDownload | None = None
        self._asked: m.TaskMessage | None = None
        self._content: tuple[bytes, Vector] | None = None
        self._coming: tuple[m.BundleMessage, bytes] | None = None
        self.wanted: ManifestExpectation | None = None
        self.holds = b""
        self.task: Task | None = None
        self.at_work: Task | None = None
        self.bundle: FoundBundle | None = None
        self.calls = SignalInbox(config.id)
        self.begin: m.TaskMessage | None = None

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    @property
    def is_linked(self) -> bool:
        """Return whether the broker has accepted the connection."""
        return self._post.link.is_up

    @property
    def is_common(self) -> bool:
        """Return whether manifests ask all devices at once; otherwise tasks ask each one."""
        return self.wanted is None or not self.wanted.ask.personal

    @property
    def is_ending(self) -> bool:
        """Return whether the run has ended, so that the only task is to adopt the final model."""
        return self._phase == "stop"

    def learned(self, turn: tuple[int, int, int], version: int) -> None:
        """Set the last task trained; the store holds it already."""
        round_, attempt, step = turn
        self.seen = replace(self.seen, round=round_, attempt=attempt, step=step, version=version)

    @property
    def is_over(self) -> bool:
        """Return whether the round of the newest manifest is known to have ended."""
        manifest = self._manifest
        if manifest is None:
            return False
        grace = manifest.spread / 1000 + _GRACE
        return self._time.has_passed(manifest.until, self.now, since=self._manifest_at, grace=grace)

    def adopt(self, found: FoundBundle) -> None:
        """Set the announcement in force; a new run starts from nothing."""
        if found.announced.run != self.seen.run:
            self.seen = NewestAnnouncements(self.seen.serial, found.announced.run)
            self.task = self._fetch = self._content = None
            self.calls.forget()
            if self._asked is not None and self._asked.run != self.seen.run:
                self._asked = None
        self._store.file_paper("bundle", found.body)
        self.announced, self.bundle = found.announced, None

    def reconsider(self) -> None:
        """Judge the newest manifest and task again, after their prerequisites have arrived."""
        try:
            if self._manifest is not None:
                self._consider(self._manifest)
            if self._asked is not None:
                self._consider_task(self._asked)
        except Refused as refused:
            self.refuse(refused, "model or task")

    def refuse(self, refused: Refused, kind: str) -> None:
        """Count a verified message that is not followed; log an operator's error once.

        Args:
            refused: The refusal with its reason.
            kind: Kind of the message.
        """
        self._post.refused[refused.reason] += 1
        why = str(refused)
        is_news = refused.reason is Reason.BAD_SCALAR and why != self._said_refusal
        if is_news:
            self._said_refusal = why
        level = logging.WARNING if is_news else logging.DEBUG
        logger.log(level, "announcement refused %s", fields(kind=kind, why=why))

    # --- announcements and tasks ------------------------------------------------------------------

    def _consider_bundle(self, announced: m.BundleMessage, body: bytes) -> None:
        """Follow a newer announcement; fetch its archive first if another bundle is installed."""
        newest = self.announced
        accepted = self._config.accept.methods
        announcements.judge_bundle(announced, newest, lambda name: name in accepted)
        if newest is not None and announced.serial == newest.serial:
            return
        if announced.digest == self.holds:
            self.bundle = FoundBundle(announced, body, None)
        elif self._coming is None or self._coming[0].serial < announced.serial:
            self._coming = (announced, body)
            self._begin(BodyDownload.of(announced, opens=self.now, patience=0.0, rng=self._rng))

    def _heed(self, question: m.ModelMessage | m.TaskMessage) -> None:
        """Dispatch a request addressed to all devices, or to this device alone."""
        if isinstance(question, m.ModelMessage):
            self._consider(question)
        elif is_perishable(question, self.wanted):
            if self.wanted is not None and not self._held_up:
                self.calls.hear(question, self.seen, self.wanted, self.now)
        else:
            self._consider_task(question)

    def _consider(self, manifest: m.ModelMessage) -> None:
        """Decide whether this device takes part in the round that a manifest opens."""
        announcements.check_serial(manifest.serial, self.seen.serial)
        if self._manifest is None or manifest.serial > self._manifest.serial:
            self._manifest, self._manifest_at = manifest, self.now
        if self.wanted is None or self.bundle is not None or manifest.run > self.seen.run:
            return  # considered again when the announced run is in force
        announcements.judge_model(manifest, self.seen, self.wanted)
        if manifest.serial > self.seen.serial:
            self._store.set_facts(serial=manifest.serial)
            self.seen = replace(self.seen, serial=manifest.serial)
        self._phase = manifest.phase
        self.up = replace(self.up, inline=manifest.inline)
        if self._is_wanted(manifest) and not self._is_coming(manifest):
            self._plan(manifest)

    def _is_wanted(self, manifest: m.ModelMessage) -> bool:
        """Return whether to fetch the model: for an untrained round, or as the final model."""
        if manifest.phase == "stop":
            return manifest.version > self.seen.version
        if not self.is_common:
            return False
        is_new = manifest.round > self.seen.round and not self._held_up
        drawn = takes_part(manifest.cohort or b"", self._config.id, manifest.share)
        return manifest.phase == "train" and is_new and drawn and not self.is_over

    def _is_coming(self, manifest: m.ModelMessage) -> bool:
        """Return whether the same round is being fetched, waiting for training, or in training."""
        asks = END if manifest.phase == "stop" else self._name
        for task in (self.task, self.at_work):
            if task is not None and (task.round, task.ask) == (manifest.round, asks):
                return True
        coming = self._fetch.manifest if self._fetch else None
        return (
            isinstance(coming, m.ModelMessage)
            and coming.round == manifest.round
            and coming.digest == manifest.digest
        )

    def _consider_task(self, task: m.TaskMessage) -> None:
        """Keep the newest task; work on it once, and on no older one."""
        if task.run < self.seen.run:
            raise Refused(Reason.WRONG_RUN, f"run {task.run}, expected {self.seen.run}")
        kept = self._asked
        if kept is None or kept.run != task.run or task.turn > kept.turn:
            kept = task
        elif task.turn == kept.turn and task.blob:
            kept = task  # a reminder carries no blob
        self._asked = kept
        if self.wanted is None or self.bundle is not None or kept.run > self.seen.run:
            return  # considered again when the announced run is in force
        if self._held_up or self.is_ending:
            return
        announcements.judge_task(kept, self.seen, self.wanted)
        if self.wanted.contract[kept.ask].up is Up.PEERS:
            self.begin = kept
        elif kept.turn > self.seen.turn and not self._is_at(kept):
            self._lay(kept)

    def _is_at(self, task: m.TaskMessage) -> bool:
        """Return whether this task is being fetched, waiting for training, or in training."""
        for one in (self.task, self.at_work):
            if one is not None and one.ask != END and _turn(one) == task.turn:
                return True
        coming = self._fetch.manifest if self._fetch else None
        return isinstance(coming, m.TaskMessage) and coming.turn == task.turn and not task.blob

    def _lay(self, task: m.TaskMessage) -> None:
        """Make a task ready, after fetching its body if it has one."""
        self.task = None
        if task.digest is None:
            self._give_task(task, {})
        elif task.blob:
            if digest(task.blob) != task.digest:
                raise Refused(Reason.BAD_DIGEST, "the blob of a task")
            self._take_task(task, task.blob)
        elif self._content is not None and self._content[0] == task.digest:
            self._give_task(task, self._vectors(task, self._content[1]))
        elif not isinstance(self._fetch and self._fetch.manifest, m.BundleMessage):
            self._begin(BodyDownload.of(task, opens=self.now, patience=0.0, rng=self._rng))

    def _take_task(self, task: m.TaskMessage, body: bytes) -> None:
        content = decode(m.ContentBody, body)
        if (content.run, content.version, content.spec) != (task.run, task.base, task.spec):
            raise Refused(Reason.MALFORMED, "the content is not what its task says")
        assert self.wanted is not None
        whole = self.wanted.size * max(1, len(content.blob) // max(1, 4 * self.wanted.size))
        joined = unpack_tensor(content.blob, content.enc, whole).astype(np.float32)
        self._content = (task.digest or b"", joined)
        self._give_task(task, self._vectors(task, joined))

    def _vectors(self, task: m.TaskMessage, joined: Vector) -> dict[str, Vector]:
        assert self.wanted is not None
        ask = self.wanted.contract[task.ask]
        return announcements.vectors(ask.down, joined, self.wanted.size, stacked=ask.stacked)

    def _give_task(self, task: m.TaskMessage, arrays: dict[str, Vector]) -> None:
        self._end_fetch_of_task()
        self.task = Task(
            to=self._config.id,
            round=task.round,
            ask=task.ask,
            step=task.step,
            base=task.base,
            attempt=task.attempt,
            values=task.vals,
            arrays=arrays,
        )

    def _end_fetch_of_task(self) -> None:
        if self._fetch is not None and isinstance(self._fetch.manifest, m.TaskMessage):
            self._end_fetch()

    def _plan(self, manifest: m.ModelMessage) -> None:
        self.task = None
        if self._content is not None and self._content[0] == manifest.digest:
            self._give(manifest, self._content[1])
            return
        if isinstance(self._fetch and self._fetch.manifest, m.BundleMessage):
            return  # one transfer at a time; considered again when the bundle is in force
        opens = self.now + self._rng.random() * manifest.spread / 1000
        patience = seconds(self._config.timeouts.retained_model)
        self._begin(BodyDownload.of(manifest, opens=opens, patience=patience, rng=self._rng))

    def _begin(self, fetch: BodyDownload) -> None:
        self._end_fetch()
        self._fetch = fetch

    def _end_fetch(self) -> None:
        if self._fetch is not None and self._fetch.is_open:
            self._post.fetch_parts(wanted=False)
        if self._fetch is not None and isinstance(self._fetch.manifest, m.BundleMessage):
            self._coming = None
        self._fetch = None

    def _go_on_fetching(self) -> None:
        """Subscribe to the slots when due, and request missing chunks."""
        fetch = self._fetch
        if fetch is None or not self.is_linked or self.now < fetch.opens:
            return
        if fetch.has_slots and not fetch.is_open:
            fetch.is_open = True
            self._post.fetch_parts(wanted=True)
        have = fetch.ask(self.now)
        if have is not None:
            self.counts["fetches asked"] += 1
            self._post.say(have)

    def _take(self, piece: m.PartMessage | m.ChunkMessage) -> None:
        fetch = self._fetch
        if fetch is None:
            return
        fetch.take(piece, self.now)
        if not fetch.receiving.is_complete:
            return
        body = fetch.receiving.body()
        coming = self._coming
        self._end_fetch()
        if isinstance(fetch.manifest, m.ModelMessage):
            self._give(fetch.manifest, self._read_content(fetch.manifest, body))
        elif isinstance(fetch.manifest, m.TaskMessage):
            self._take_task(fetch.manifest, body)
        elif coming is not None:
            self.bundle = FoundBundle(*coming, archive=body)

    def _read_content(self, manifest: m.ModelMessage, body: bytes) -> Vector:
        """Decode the vector; the digest is verified, so a contradiction is the server's fault."""
        content = decode(m.ContentBody, body)
        said = (content.run, content.version, content.part, content.spec, content.enc)
        if said != (manifest.run, manifest.version, manifest.part, manifest.spec, manifest.enc):
            raise Refused(Reason.MALFORMED, "the content is not what its manifest says")
        assert self.wanted is not None
        vector = unpack_tensor(content.blob, content.enc, self.wanted.size)
        return vector.astype(np.float32)

    @property
    def _name(self) -> str:
        return self.wanted.name if self.wanted is not None else ""

    def _give(self, manifest: m.ModelMessage, w: Vector) -> None:
        """Make the task ready; at the end of a run it carries only the final model."""
        assert self.wanted is not None
        self._content = (manifest.digest, w)
        is_end = manifest.phase == "stop"
        self.task = Task(
            to=self._config.id,
            round=manifest.round,
            ask=END if is_end else self.wanted.name,
            base=manifest.version,
            values=manifest.vals,
            arrays={"w" if is_end else self.wanted.ask.down[0]: w},
        )


def _turn(task: Task) -> tuple[int, int, int]:
    return task.round, task.attempt, task.step


def filed(store: DeviceStore, what: type[M], name: str) -> M | None:
    """Read a saved announcement, or None.

    One that holds a number out of bounds is ignored: the next one replaces it.
    """
    paper = store.paper(name)
    try:
        return None if paper is None else decode(what, paper)
    except Refused as refused:
        logger.warning("stored value rejected %s", fields(what=name, why=refused))
        return None
