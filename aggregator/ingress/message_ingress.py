"""Turn the messages of devices into journal entries and replies, independently of the method.

Every message passes topic, size, envelope, deny list, quota, signature, schema, number, admission,
one transaction, and then the reply. No update is counted twice, and nothing is receipted before it
is durable (`PROTOCOL.md` sections 5, 9 and 10).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aggregator.ingress.admission_context import AdmissionContext, WelcomeTerms, check_signal
from aggregator.ingress.content_server import ContentServer
from aggregator.ingress.device_sessions import DeviceSessions, Welcomed
from aggregator.ingress.rate_limits import RateLimiter
from aggregator.ingress.replies import IngressParts, IngressResult, pause, subject
from aggregator.ingress.update_admission import UpdateAdmission
from aggregator.ingress.update_ingress import UpdateIngress
from aggregator.ingress.uploads import Uploads
from aggregator.store.errors import DatabaseFullError
from edge_sdk.errors import Reason, Refused
from edge_sdk.link.transport import Message as Arrival
from edge_sdk.protocol import codec, messages, topics
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.envelope import Sealed

logger = logging.getLogger(__name__)

Receiver = tuple[type[Any], Callable[[Sealed, Any], str | IngressResult]] | tuple[None, None]
"""Class and handler of a message kind of an extension; None where it is not configured.

The handler returns the name of the counter that the message raises, or its replies.
"""


_NONE: Receiver = (None, None)


@dataclass(frozen=True, slots=True)
class VerifiedArrival(Arrival):
    """A message whose signature was verified before."""

    verified_by: bytes = b""  # public key of the signature; empty where it was not verified


class Signals:
    """Transient signals of a run: a method without any refuses them."""

    def assemble(self, device: str, fragment: messages.SignalMessage) -> method.Signal | None:  # noqa: ARG002 - of a derived class
        """Add a fragment; return a whole signal, else None; raise Refused if it is wrong."""
        raise Refused(Reason.UNKNOWN_KIND, f"ask {fragment.ask!r}")

    def forget(self, device: str) -> None:
        """Drop the fragments of a device."""


class AtHand(NamedTuple):
    """The message in process, with its decoded parts."""

    device: str = ""
    kind: str = ""
    sealed: Sealed | None = None
    message: messages.ProtocolMessage | None = None


class MessageIngress:
    """Receiver of the protocol; everything outside of the store may be lost.

    Attributes:
        counts: Counters by name: refusal reasons, and ACCEPTED, REPLAYED, UNKNOWN_KEYS,
            SEQ_GAPS, STALE_STATUS, PULLS_DELAYED, REFUSED_BY_DEVICE; NO_WINDOWS_ON_DEVICE for a
            device without a window; LOG_FORK_ON_DEVICE for a hello with a checkpoint of another
            log; SLOTS_AGAIN for a chunk sent again; OUTLIVED for a life that continued behind a
            newer one; IGNORED for a name with many forged signatures; STRAY for others.
        is_full: True if the last write found the disk full.
        at_hand: The newest message.
        sealer: Seals all replies.

    Args:
        receivers: Returns the receiver of a kind that the ingress does not know itself.
    """

    def __init__(
        self,
        parts: IngressParts,
        terms: WelcomeTerms | None = None,
        *,
        rng: random.Random | None = None,
        receivers: Callable[[str], Receiver | None] = lambda _kind: None,
        welcomed: Welcomed = lambda _device, _hello, welcome: welcome,
    ) -> None:
        self.counts, self.sealer, self._is_set_aside = (
            parts.counts,
            parts.sealer,
            parts.is_set_aside,
        )
        self._registry, self._clock, self._receivers = parts.registry, parts.clock, receivers
        self.is_full = False
        self.at_hand = AtHand()
        self._terms = terms or WelcomeTerms()
        self._signals_of: dict[int, Signals] = {}
        self._contexts: dict[int, AdmissionContext] = {}
        self._limiter = RateLimiter(self._terms.quotas)
        self._uploads = Uploads(self._terms.room, rng or random.Random())  # noqa: S311 - jitter
        self._downloads = ContentServer(
            parts.store, sealer=self.sealer, window=self._terms.window, counts=self.counts
        )
        self._admission = UpdateAdmission(parts)
        self._updates = UpdateIngress(
            parts,
            admission=self._admission,
            uploads=self._uploads,
            refuse=lambda device, reason, offer: self._refuse(device, reason, None, offer),
            is_offered=lambda kind: bool((cls := (receivers(kind) or _NONE)[0]) and cls.is_offered),
        )
        sessions = DeviceSessions(
            parts,
            admission=self._admission,
            uploads=self._uploads,
            downloads=self._downloads,
            contexts=self._contexts.values(),
            welcomed=welcomed,
        )
        self._handlers: Mapping[str, tuple[type[Any], Callable[[Sealed, Any], IngressResult]]] = {
            messages.HelloMessage.kind: (
                messages.HelloMessage,
                lambda sealed, hello: sessions.hello(sealed, hello, self._terms),
            ),
            messages.StatusMessage.kind: (messages.StatusMessage, sessions.status),
            messages.MetricsMessage.kind: (messages.MetricsMessage, sessions.metrics),
            messages.ReceiptMessage.kind: (messages.ReceiptMessage, sessions.receipt),
            messages.RefusalMessage.kind: (messages.RefusalMessage, sessions.refusal),
            messages.UpdateMessage.kind: (messages.UpdateMessage, self._update),
            messages.OfferMessage.kind: (messages.OfferMessage, self._offer),
            messages.ChunkMessage.kind: (messages.ChunkMessage, self._chunk),
            messages.HaveMessage.kind: (messages.HaveMessage, self._have),
            messages.SignalMessage.kind: (messages.SignalMessage, self._signal),
        }

    @property
    def context(self) -> AdmissionContext | None:
        """Return the admission context of the first run, or None."""
        return next(iter(self._contexts.values()), None)

    def open(self, context: AdmissionContext) -> None:
        """Admit updates of its run in this context from now on."""
        self._contexts[context.opened.run] = context
        self._updates.open(context)
        self._downloads.serve(topics.audience(context.name))

    def assemble(self, run: int, signals: Signals) -> None:
        self._signals_of[run] = signals

    def apply_terms(self, terms: WelcomeTerms) -> None:
        """Apply these terms from now on."""
        self._terms = terms
        self._limiter.follow(terms.quotas)
        self._uploads.resize(terms.room)

    def receive(self, message: Arrival) -> IngressResult:
        """Handle one message; it may be acknowledged afterwards."""
        self.at_hand = AtHand()
        address = topics.parse(message.topic)
        is_ours = (
            address is not None and address.fleet == self.sealer.bodies.fleet and message.payload
        )
        if address is None or not is_ours or address.direction not in ("up", "status"):
            self.counts["STRAY"] += 1
            return IngressResult()
        return self._receive(address.id, address.kind, message)

    def receive_body(self, body: Sealed) -> IngressResult:
        """Handle a body of chunks that was set aside before."""
        self.at_hand = AtHand(body.sender, body.kind)
        return self._complete(body)

    def fail(self, reason: Reason) -> IngressResult:
        """Refuse the message at hand after its transaction was undone, and drop its transfer.

        Args:
            reason: INTERNAL after a defect, which settles an update; else NO_SPACE.
        """
        device, kind, sealed, message = self.at_hand
        for signals in self._signals_of.values():
            signals.forget(device)
        self._uploads.drop(device)
        self._downloads.drop(device)
        if kind == messages.SignalMessage.kind or not device:
            self.counts[reason.name] += 1
            return IngressResult()
        if (
            reason is Reason.INTERNAL
            and sealed is not None
            and isinstance(message, messages.UpdateMessage)
        ):
            try:
                return self._admission.set_aside(sealed, message)
            except Refused as refused:
                reason = refused.reason
        return self._refuse(device, reason, sealed, message)

    def refuse_unseen(self, topic: str) -> IngressResult:
        """Refuse a message unread: the same bytes caused a defect before."""
        self.at_hand = AtHand()
        address = topics.parse(topic)
        if (
            address is None
            or address.fleet != self.sealer.bodies.fleet
            or address.kind == messages.SignalMessage.kind
        ):
            self.counts[Reason.INTERNAL.name] += 1
            return IngressResult()
        return self._refuse(address.id, Reason.INTERNAL, None, None)

    def tick(self) -> IngressResult:
        """Send pending requests and grants."""
        now = self._clock.monotonic()
        self._downloads.forget(now)
        return IngressResult(self._updates.tick(now))

    @property
    def next_due(self) -> float | None:
        """Return the time of the next ``tick``, in seconds of the monotonic clock."""
        return self._updates.next_due

    # --- authentication

    def _receive(self, device: str, kind: str, arrival: Arrival) -> IngressResult:
        now = self._clock.monotonic()
        if self._limiter.is_ignored(device, now):
            self.counts["IGNORED"] += 1
            return IngressResult()
        self.at_hand = AtHand(device, kind)
        sealed: Sealed | None = None
        message: messages.ProtocolMessage | None = None
        try:
            receiver = None if kind in self._handlers else self._receivers(kind)
            if kind not in self._handlers and receiver is None:
                raise Refused(Reason.UNKNOWN_KIND, kind)  # noqa: TRY301 - one place replies
            sealed = self._unseal(device, kind, arrival, now)
            self.at_hand = AtHand(device, kind, sealed)
            self._registry.record_contact(sealed, self._clock.wall())
            self._check_set_aside(sealed)
            cls, handler = receiver or self._handlers[kind]
            if cls is None or handler is None:
                raise Refused(Reason.UNKNOWN_KIND, "not configured")  # noqa: TRY301 - as above
            message = codec.decode(cls, sealed.content, on_unknown=self._unknown)
            self.at_hand = AtHand(device, kind, sealed, message)
            result = self._counted(handler(sealed, message))
        except Refused as refused:
            if refused.reason is Reason.BAD_SIGNATURE:
                self._limiter.failed(device, now)
            if kind == messages.SignalMessage.kind:  # transient: no reply
                self.counts[refused.reason.name] += 1
                return IngressResult()
            return self._refuse(device, refused.reason, sealed, message)
        except DatabaseFullError:
            self.is_full = True
            return self._refuse(device, Reason.NO_SPACE, sealed, message)
        self.is_full = self.is_full and not result.entries
        return result

    def _counted(self, result: str | IngressResult) -> IngressResult:
        if isinstance(result, IngressResult):
            return result
        self.counts[result] += 1
        return IngressResult()

    def _unseal(self, device: str, kind: str, arrival: Arrival, now: float) -> Sealed:
        payload = arrival.payload

        def key_of(sender: str, kid: bytes) -> bytes | None:
            public = self._registry.key_of(sender, kid)
            self._limiter.charge(sender, kind, len(payload), now)
            return public

        known = arrival.verified_by if isinstance(arrival, VerifiedArrival) else b""
        return self.sealer.bodies.unseal(
            payload,
            kind=kind,
            sender=device,
            key_of=key_of,
            verified_by=known,
            limit=self._terms.payload_limit(kind),
        )

    def _check_set_aside(self, body: Sealed) -> None:
        if self._is_set_aside(body.sender, body.digest):
            raise Refused(Reason.INTERNAL, "this body caused an internal error before")

    def _unknown(self, _key: str) -> None:
        self.counts["UNKNOWN_KEYS"] += 1

    def _refuse(
        self,
        device: str,
        reason: Reason,
        sealed: Sealed | None,
        message: messages.ProtocolMessage | None,
    ) -> IngressResult:
        """Count a refusal, and send it unless that would amplify traffic."""
        self.counts[reason.name] += 1
        if not self._limiter.may_answer(device, reason, self._clock.monotonic()):
            return IngressResult()
        wait = self._uploads.wait() if reason is Reason.BUSY else pause(reason)
        refusal = messages.RefusalMessage(reason, wait, *subject(sealed, message))
        return IngressResult((self.sealer.refuse(device, refusal, message),))

    # --- updates

    def _update(self, sealed: Sealed, update: messages.UpdateMessage) -> IngressResult:
        if (size := len(sealed.body)) > (most := self._terms.largest_update):
            text = f"{size} bytes inline, at most {most} are allowed: offer the body first"
            raise Refused(Reason.TOO_LARGE, text)
        return self._admit(sealed, update)

    def _offer(self, sealed: Sealed, offer: messages.OfferMessage) -> IngressResult:
        return self._updates.offer(sealed, offer, self._clock.monotonic())

    def _chunk(self, sealed: Sealed, chunk: messages.ChunkMessage) -> IngressResult:
        device, now = sealed.sender, self._clock.monotonic()
        if not self._uploads.expects(device, chunk):
            receipt = self._updates.settled_chunk(device, chunk)
            is_sent = self._limiter.may_answer(device, Reason.EXPIRED, now)
            return receipt if is_sent else IngressResult()
        received = self._updates.chunk(device, chunk, now)
        return self._complete(received) if isinstance(received, Sealed) else received

    def _complete(self, body: Sealed) -> IngressResult:
        body = self.sealer.bodies.opened(body)
        self.at_hand = AtHand(body.sender, body.kind, body)
        self._check_set_aside(body)
        is_update = body.kind == messages.UpdateMessage.kind
        found = (messages.UpdateMessage, self._admit) if is_update else self._receivers(body.kind)
        cls, handler = found or _NONE
        if cls is None or handler is None:
            raise Refused(Reason.UNKNOWN_KIND, body.kind)
        message = codec.decode(cls, body.content, on_unknown=self._unknown)
        self.at_hand = AtHand(body.sender, body.kind, body, message)
        return self._counted(handler(body, message))

    def _admit(self, sealed: Sealed, update: messages.UpdateMessage) -> IngressResult:
        return self._admission.update(sealed, update, self._updates.context_of(update.run))

    # --- transient signals and downloads

    def _signal(self, sealed: Sealed, signal: messages.SignalMessage) -> IngressResult:
        check_signal(sealed.sender, signal.run, self._updates.context_of(signal.run))
        if self._registry.is_quarantined(sealed.sender):
            raise Refused(Reason.QUARANTINED, sealed.sender)
        self._registry.check_one_life(sealed.sender)
        signals = self._signals_of.get(signal.run) or Signals()
        return IngressResult(signal=signals.assemble(sealed.sender, signal), run=signal.run)

    def _have(self, sealed: Sealed, have: messages.HaveMessage) -> IngressResult:
        device, now = sealed.sender, self._clock.monotonic()
        if not self._limiter.may_pull(device, now):
            self.counts["PULLS_DELAYED"] += 1
            return IngressResult()
        room = self._limiter.room_for_download(device, now)
        answers = self._downloads.missing(device, have, now, room)
        self._limiter.downloaded(device, sum(len(answer.payload) for answer in answers), now)
        return IngressResult(answers)
