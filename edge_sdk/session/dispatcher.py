"""Pass every verified message to the part of the session that it concerns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Protocol

from edge_sdk.app.cli import fields
from edge_sdk.errors import Reason, Refused
from edge_sdk.link.transport import RenewableLink
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.session import agenda as events
from edge_sdk.session.agenda import digest_of, is_defect
from edge_sdk.session.download import DownloadCompleted, is_common_start
from edge_sdk.session.durable_outbox import FromAggregator
from edge_sdk.session.manifest_checks import check_expiry, is_perishable
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.signed_link import VerifiedMessage

logger = logging.getLogger(__name__)

Events = Iterator[events.SessionEvent]


class MessageReader(Protocol):
    """An extension that follows messages and downloads after the core."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the messages that it follows."""

    def on_message(self, message: VerifiedMessage) -> None:
        """Follow a verified message, or raise ``Refused``."""

    def on_download(self, completed: DownloadCompleted) -> None:
        """Follow a complete body."""


class MessageFollower(Protocol):
    """An extension that follows the messages of one kind, by which its row names it in ``followers``.

    It is made from the session's parts and ``Dispatcher.reconsider`` when the first one arrives.
    """

    def receive(self, verified: VerifiedMessage) -> Events:
        """Follow a verified message, or raise ``Refused``."""

    def welcomed(self, welcome: m.WelcomeMessage) -> None:
        """Process a welcome whose number of issued commands is below the number of executed ones."""


_LOGGED = frozenset((Reason.BAD_SCALAR, Reason.ANNOUNCEMENT_EXPIRED))
"""Reasons of which the operator learns from the log, for every kind of announcement."""

TIME_KNOWN = "server time is known"
"""Reason of the reconnection that ends a limited connection."""

_REPORT_AGAIN = 60.0  # seconds until the same refused bundle is reported again


class Dispatcher:
    """The arrivals of one device.

    Attributes:
        heard_at: Time of the last verified message.
        readers: Extensions that follow messages and downloads, in their order.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._followers: dict[str, MessageFollower] = {}
        self.heard_at = parts.time.uptime
        self.readers: list[MessageReader] = []
        self._last_refusal = ""
        self._reported = 0, 0.0

    def key_of(self, sender: str, kid: bytes) -> bytes | None:
        """Return the public key of a sender that is in force now, or None."""
        return self._parts.announcements.ring.key(sender, kid, self._parts.time.now())

    def may_sign(self, kind: str, signers: Collection[bytes]) -> bool:
        return self._parts.announcements.ring.is_enough(kind, signers)

    def reconsider(self) -> Events:
        """Check the newest manifest and task again, after their prerequisites have arrived."""
        try:
            yield from self._follow(
                self._parts.inbox.reconsider(is_held=self._parts.participation.is_held)
            )
            yield from self._follow(self._completed(self._parts.downloads.completed()))
        except Refused as refused:
            self._refuse(refused, "model or task")

    def receive(self, verified: VerifiedMessage) -> Events:
        """Process a verified message; a defect is recorded, and the message skipped from now on."""
        if verified.sender != AGGREGATOR:  # as an extension has read it
            self.heard_at = self._parts.time.uptime
            self._read(verified)
            return
        kind, body = verified.message.kind, digest_of(verified.message.kind, verified.ref)
        if self._parts.set_aside.holds(body):
            return
        try:
            yield from self._follow(self._dispatch(verified))
            self._read(verified)
        except Refused as refused:
            self._refuse(refused, kind)
            if isinstance(verified.message, m.BundleMessage):
                yield from self.refuse_bundle(verified.message, verified.ref, refused.reason)
        except Exception as error:
            if not is_defect(error):
                raise
            run = getattr(verified.message, "run", self._parts.inbox.seen.run)
            self._parts.set_aside.add(kind, body, error, run=run)

    def _read(self, verified: VerifiedMessage) -> None:
        for reader in self.readers:
            if verified.message.kind in reader.kinds:
                reader.on_message(verified)

    def _follow(self, found: Events) -> Events:
        for event in found:
            if isinstance(event, events.InlineLimitAnnounced):
                self._parts.outbox.limit_inline(event.size, event.ahead, event.single)
            else:
                yield event

    def _dispatch(self, verified: VerifiedMessage) -> Events:
        parts = self._parts
        self.heard_at = parts.time.uptime
        match verified.message:
            case (
                m.WelcomeMessage()
                | m.FloorMessage()
                | m.GrantMessage()
                | m.ReceiptMessage()
                | m.HaveMessage() as answer
            ):
                yield from self._receive_answer(answer)
            case m.RefusalMessage() as refusal:
                self._receive_refusal(refusal)
            case m.PartMessage() | m.ChunkMessage() as piece:
                yield from self._receive_piece(piece)
            case m.ModelMessage() | m.TaskMessage() as request:
                yield from self._receive_request(request, len(verified.body))
            case m.BundleMessage() as bundle:
                time = parts.time.latest_signed
                yield from parts.announcements.receive_bundle(bundle, verified.body, time=time)
            case m.KeysMessage() as keys:
                self._receive_keys(keys, verified.body)
            case m.TimeMessage(t=t):
                self._receive_time(t)
            case _:
                yield from self._receive_of_extension(verified)

    def _receive_of_extension(self, verified: VerifiedMessage) -> Events:
        kind = verified.message.kind
        if (follower := self.follower(kind)) is not None:
            yield from follower.receive(verified)
        elif not any(kind in reader.kinds for reader in self.readers):
            raise Refused(Reason.UNKNOWN_KIND, kind)

    def follower(self, kind: str) -> MessageFollower | None:
        """Return the extension that follows a kind of messages, or None."""
        load = self._parts.config.index.loaders("followers").get(kind)
        if kind not in self._followers and load is not None:
            self._followers[kind] = load()(self._parts, self.reconsider)
        return self._followers.get(kind)

    def _receive_request(self, request: m.ModelMessage | m.TaskMessage, size: int) -> Events:
        parts, is_held = self._parts, self._parts.participation.is_held
        if isinstance(request, m.ModelMessage):
            parts.count("bytes down model", size)
            if is_held or parts.participation.is_rationed or not is_common_start(request):
                parts.downloads.release_slots()
            yield from parts.inbox.receive_model(request, is_held=is_held)
            self._request_log()
            yield from self._completed(parts.downloads.completed())
            return
        parts.count(f"bytes down {request.ask}", size)
        if not is_perishable(request, parts.inbox.wanted):
            yield from parts.inbox.receive_task(request, is_held=is_held)

    def _request_log(self) -> None:
        parts = self._parts
        is_ready = parts.outbox.state.is_ready and not parts.participation.is_rationed
        if is_ready and parts.inbox.log.is_request_due(parts.time.uptime):
            parts.count("log proofs requested")
            parts.participation.follow(parts.outbox.propose_life())

    def _receive_piece(self, piece: m.PartMessage | m.ChunkMessage) -> Events:
        yield from self._completed(self._parts.downloads.add(piece))

    def _completed(self, completed: DownloadCompleted | None) -> Events:
        if completed is not None:
            yield from self._parts.announcements.downloaded(completed)
            yield from self._parts.inbox.downloaded(completed)
            for reader in self.readers:
                reader.on_download(completed)

    def _receive_refusal(self, refusal: m.RefusalMessage) -> None:
        parts = self._parts
        if not parts.downloads.refuse(refusal, shortest=parts.outbox.state.retry.base):
            parts.participation.follow(parts.outbox.receive(refusal))

    def _receive_time(self, t: int) -> None:
        parts = self._parts
        if parts.time.receive(t, may_request=parts.outbox.state.is_ready):
            parts.participation.follow(parts.outbox.propose_life())

    def _receive_answer(self, answer: FromAggregator) -> Events:
        """Pass an answer to the outbox; a welcome also corrects time and numbers."""
        parts = self._parts
        parts.outbox.check_leap(answer)
        if parts.outbox.is_loss(answer) and isinstance(answer, m.WelcomeMessage):
            # never add new noise to values that were released under other noise
            is_sound = parts.announcements.ring.is_in_force(answer.time)
            since = parts.time.after_loss(answer.time, is_sound=is_sound)
            parts.store.begin_noise_anew(since // 1000)
            yield events.StoreLossDetected()
        if isinstance(answer, m.WelcomeMessage) and parts.link.is_limited:
            self._receive_time_alone(answer)
            return
        if isinstance(
            answer, m.WelcomeMessage | m.FloorMessage
        ) and parts.identity.replacement.receive(answer, parts.outbox.is_welcome):
            parts.outbox.sign_again()
        was_ready, pending = parts.outbox.state.is_ready, parts.outbox.state.hello
        stated = b"" if pending is None else pending.hello.log + pending.hello.root
        parts.participation.follow(parts.outbox.receive(answer))
        if isinstance(answer, m.WelcomeMessage) and parts.outbox.state.is_ready and not was_ready:
            self._welcomed(answer)
            yield from self._follow_run(parts.choice.offer(answer.runs))
            if parts.inbox.log.receive_welcome(answer, stated):
                yield from self.reconsider()
            yield from self._withdraw_expired()

    def _receive_time_alone(self, welcome: m.WelcomeMessage) -> None:
        parts = self._parts
        if not parts.outbox.is_welcome(welcome):
            return
        is_sound = parts.announcements.ring.is_in_force(welcome.time)
        parts.time.correct(welcome.time, is_sound=is_sound)
        if is_sound and isinstance(parts.link.link, RenewableLink):
            parts.link.link.reconnect(TIME_KNOWN)

    def _withdraw_expired(self) -> Events:
        """Withdraw a manifest that arrived before the time was known, if its validity is over."""
        inbox, manifest = self._parts.inbox, self._parts.inbox.manifest
        if manifest is None:
            return
        try:
            check_expiry(manifest, self._parts.time.latest_signed)
        except Refused:
            inbox.forget_manifest()
            if inbox.is_common:
                self._parts.downloads.abandon()
                yield events.TaskWithdrawn()
            raise

    def _follow_run(self, name: str) -> Events:
        """Take part in the run of this name; drop all tasks of the former run."""
        parts = self._parts
        if name == parts.announcements.name:
            return
        logger.info(
            "run assigned %s", fields(name=name or "-", before=parts.announcements.name or "-")
        )
        parts.announcements.follow_run(name)
        parts.inbox.follow_run(name)
        parts.downloads.abandon()
        parts.link.follow_run(name)
        yield events.TaskWithdrawn()

    def _welcomed(self, welcome: m.WelcomeMessage) -> None:
        parts = self._parts
        is_sound = parts.announcements.ring.is_in_force(welcome.time)
        before = parts.time.latest_signed
        parts.time.correct(welcome.time, is_sound=is_sound)
        has_refused = parts.link.refused[Reason.ANNOUNCEMENT_EXPIRED] > 0
        if has_refused and parts.time.latest_signed < before:
            parts.link.subscribe()  # they were judged by a time that was wrong
        if parts.store.fact("command") > welcome.cmd and (commands := self.follower("command")):
            commands.welcomed(welcome)
        logger.info(
            "welcome received %s", fields(life=welcome.life, run=welcome.run, hold=welcome.hold)
        )
        parts.link.publish_status(parts.outbox.status("online"))

    def _receive_keys(self, keys: m.KeysMessage, body: bytes) -> None:
        """Adopt the keys, and request again the messages that could not be verified without them.

        A broker sends retained messages in any order, and each of them once per subscription.
        """
        parts = self._parts
        adopted = parts.announcements.receive_keys(keys, body)
        parts.link.refusals.note_followed_root()
        if adopted.is_renumbered:
            parts.inbox.restart_serials()
        if adopted.is_changed and parts.link.is_refusing_unknown:
            parts.link.subscribe()

    def refuse_bundle(self, bundle: m.BundleMessage, ref: bytes, reason: Reason) -> Events:
        """Report that this device does not follow a bundle, and take part in another run instead.

        The report is sent once a minute. Another run is chosen if this device lacks an ability that
        the present one needs, and the welcome names a run that it has not declined.
        """
        parts = self._parts
        self._report_refused(bundle, ref, reason)
        other = parts.choice.decline(parts.announcements.name, reason)
        if other is not None:
            yield from self._follow_run(other)

    def _report_refused(self, bundle: m.BundleMessage, ref: bytes, reason: Reason) -> None:
        parts, now = self._parts, self._parts.time.uptime
        is_new = bundle.serial != self._reported[0] or now - self._reported[1] >= _REPORT_AGAIN
        if is_new and parts.link.is_up and not parts.participation.is_rationed:
            self._reported = bundle.serial, now
            about = m.RefusalMessage(code=reason, wait=0, ref=ref, id=bundle.digest[:16])
            parts.link.send(about)

    def _refuse(self, refused: Refused, kind: str) -> None:
        self._parts.link.count_refused(refused.reason)
        why = str(refused)
        is_error = refused.reason in _LOGGED or kind == m.BundleMessage.kind
        is_first = is_error and why != self._last_refusal
        if is_first:
            self._last_refusal = why
        level = logging.WARNING if is_first else logging.DEBUG
        logger.log(level, "announcement refused %s", fields(kind=kind, why=why))
