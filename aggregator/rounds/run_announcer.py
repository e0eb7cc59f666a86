"""Announcements of a run: the common task and its slots, as they are signed and last saved."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass

from aggregator.config import BoundRun
from aggregator.ingress.uploads import MESSAGES
from aggregator.methods import Course
from aggregator.methods.base.wrappers import STEP
from aggregator.rounds import announcements as announce
from aggregator.store.store import Store
from aggregator.store.types import DownloadBody
from edge_sdk.app.clock import Clock
from edge_sdk.app.settings import seconds
from edge_sdk.errors import Refused
from edge_sdk.protocol import messages, topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.contract.method import ALL, CONTRACTS, Scalars, Task, answered
from edge_sdk.protocol.envelope import AGGREGATOR, digest, ref, unproved, unseal
from edge_sdk.protocol.transfer import MOST_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Announced:
    """Announcements to save together, and then to publish."""

    # retained messages, in the order in which they are published
    publications: tuple[announce.Publication, ...] = ()
    contents: tuple[DownloadBody, ...] = ()  # bodies that they announce
    also: tuple[Callable[[], None], ...] = ()  # further writes that belong to the manifest


@dataclass(frozen=True, slots=True)
class RunAnnouncer:
    """Announcer of one run. Its caller saves and publishes the results."""

    run: BoundRun
    number: int
    store: Store  # database with the last announcements
    ends: announce.Ends  # signer and fleet of announcements
    clock: Clock  # wall time
    devices: Sized  # the enrolled devices, whose number sets their pacing

    @property
    def _topic(self) -> str:
        return topics.common(self.ends.fleet, messages.ModelMessage.kind, self.ends.audience)

    def bundle_ref(self) -> bytes:
        """Return the reference of the run's bundle announcement; empty for none."""
        topic = topics.common(self.ends.fleet, messages.BundleMessage.kind, self.ends.audience)
        payload = self.store.announcements.get(topic)
        return ref(digest(unproved(payload))) if payload else b""

    def last_values(self) -> Scalars:
        """Return the scalars of the newest common task, under any signing key."""
        payload = self.store.announcements.all().get(self._topic, b"")
        try:
            message = decode(messages.ModelMessage, unproved(payload))
        except Refused:  # none yet
            return {}
        return message.vals if message.run == self.number else {}

    def last_manifest(self) -> messages.ModelMessage | None:
        """Return the last manifest of this run, if the current key signed it."""
        ends, kind = self.ends, messages.ModelMessage.kind
        payload = self.store.announcements.all().get(self._topic, b"")
        try:
            sealed = unseal(
                payload,
                kind=kind,
                sender=AGGREGATOR,
                recipient=ends.audience,
                fleet=ends.fleet,
                key_of=lambda _sender, _kid: ends.signer.public,
            )
            message = decode(messages.ModelMessage, sealed.body)
        except Refused:  # none yet, or by a key that was replaced since
            return None
        return message if message.run == self.number else None

    def task(self, state: Course) -> Task:
        """Return the published task of a state: its vector and its scalars."""
        name, ask = answered(CONTRACTS[self.run.config.run.method])
        model = self.run.half.model(state)
        values = {one.name: float(model[one.name]) for one in ask.numbers if one.name in model}
        arrays = {ask.down[0] if ask.down else "w": model["p"]}
        arrays |= {STEP: model[STEP]} if STEP in model else {}
        return Task(ALL, state.round, name, base=state.version, values=values, arrays=arrays)

    def announcements(
        self,
        task: Task,
        phase: announce.Phase,
        after: float | None,
        *,
        chunk: int,
        anew: bool = False,
    ) -> Announced:
        """Return the slots, if the model has changed, and then the manifest.

        Args:
            after: Seconds until the round's deadline; None between two rounds of a schedule, when
                the slots are left as they are.
            anew: True signs and returns the slots again, although the model is the announced one.
        """
        body = announce.body(self.run, task, number=self.number)
        step = None if after is None else self._step(task, body, chunk)
        lasts = announce.OVERLAP if self.run.ask.personal else int((after or 0.0) * 1000)
        until = (
            announce.BETWEEN
            if after is None
            else min(self.clock.wall() + lasts, messages.TIME_LIMIT)
        )
        opening = announce.Opening(
            serial=self.store.announcements.next_serial(),
            until=until,
            spread=self._spread(body),
            inline=self.run.config.admission.max_inline_bytes,
            chunk=chunk,
            ahead=0 if after is None else self._ahead(),
            single=0 if after is None else self._single(),
            step=step,
            expires=min(self.clock.wall() + announce.VALIDITY, messages.TIME_LIMIT),
        )
        message = announce.manifest(self.run, task, body, opening, number=self.number, phase=phase)
        also: list[Callable[[], None]] = []
        for entry in self.run.config.index.having("manifest"):
            message, write = entry.load("manifest")(
                message, self.run.bundle.digest, self.store, self.ends, time=self.clock.wall()
            )
            also.append(write)
        manifest = announce.model(self.ends, message)
        if after is None:
            return Announced((manifest,), also=tuple(also))
        before = self.store.contents.get(body.id)
        if before is not None and not anew:
            return Announced((manifest,), also=tuple(also))
        parts = announce.slots(self.ends, body, chunk=chunk)
        if step is not None:
            parts += announce.slots(self.ends, step, chunk=chunk, first=len(parts))
        prefix = topics.part(self.ends.fleet, 0, self.ends.audience)[:-1]
        used = [
            t for t, payload in self.store.announcements.all().items() if payload and prefix in t
        ]
        cleared = announce.cleared(self.ends.fleet, len(parts), len(used), self.ends.audience)
        bodies = [("model", body)] + ([] if step is None else [("step", step)])
        name = self.run.config.run.name
        contents = [DownloadBody(kind, one.id, one.data, chunk, name) for kind, one in bodies]
        return Announced((*parts, *cleared, manifest), tuple(contents), tuple(also))

    def _step(self, task: Task, body: announce.Body, chunk: int) -> announce.Body | None:
        step = announce.step(self.run, task, number=self.number)
        if step is None:
            return None
        slots = sum(messages.count_of(len(one.data), chunk) for one in (body, step))
        return step if slots <= topics.SLOTS_LIMIT else None

    def _ahead(self) -> int:
        admission = self.run.config.admission
        if self.run.ask.personal or not admission.max_inline_bytes:
            return 0
        room = min(MESSAGES, admission.max_in_flight_bytes // messages.CHUNK_LIMIT)
        return min(MOST_IN_FLIGHT, room // max(1, len(self.devices)))

    def _single(self) -> int:
        """Return the largest body of an update that may go in one message, bytes; 0 for none.

        Devices together send no more bytes unasked than in chunks, and one of them at most an eighth of
        its daily quota.
        """
        admission = self.run.config.admission
        if admission.workers:  # they take bodies of at most ``max_inline_bytes``
            return 0
        size = min(
            admission.max_single_bytes,
            admission.daily_bytes // 8,
            self._ahead() * messages.CHUNK_LIMIT,
        )
        return size if size > messages.CHUNK_LIMIT else 0

    def _spread(self, body: announce.Body) -> int:
        """Return the window of the random delay, milliseconds.

        Where steps are announced it is at least one: without any, devices stay subscribed to the
        slots of whole models.
        """
        pacing = self.run.config.pacing
        if pacing.jitter != "auto":
            least = int(self.run.config.run.downlink != "f4")
            return min(max(least, int(1000 * seconds(pacing.jitter))), messages.SPAN_LIMIT)
        return announce.spread(
            len(self.devices),
            len(body.data),
            down_rate=pacing.broadcast_bytes_per_second,
            up_rate=pacing.updates_per_second,
        )
