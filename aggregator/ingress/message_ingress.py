"""Turn the messages of devices into journal entries and replies, independently of the method.

Every message passes the same steps: topic, size, envelope, deny list, quota, signature, schema,
number, admission, one transaction, and then the reply. No update is counted twice, and nothing is
receipted before it is durable (`PROTOCOL.md` sections 5, 9 and 10).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aggregator.ingress.admission_context import (
    AdmissionContext,
    WelcomeTerms,
    foreseen,
    wanted,
    welcome,
)
from aggregator.ingress.content_server import ContentServer
from aggregator.ingress.rate_limits import RateLimiter
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import IngressResult, Reply, ReplySealer, pause, subject
from aggregator.ingress.signal_assembler import SignalAssembler
from aggregator.ingress.update_admission import UpdateAdmission
from aggregator.ingress.uploads import Uploads
from aggregator.store.errors import DatabaseFullError
from aggregator.store.sequence_ledger import LedgerRow, after_hello
from aggregator.store.types import Store
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock
from edge_sdk.wire.contract import method
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.link.transport import Message as Arrival
from edge_sdk.wire.protocol import codec, envelope, messages, topics
from edge_sdk.wire.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.wire.protocol.messages import (
    WIRE,
    ChunkMessage,
    FloorMessage,
    HaveMessage,
    HelloMessage,
    Message,
    MetricsMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
    SignalMessage,
    StatusMessage,
    UpdateMessage,
)

logger = logging.getLogger(__name__)

GRANTED_AT_ONCE = 64  # offers taken from the queue in one iteration of the loop
RENUMBERED = 16  # commands that are renumbered for a device in one life


class AtHand(NamedTuple):
    """The message being handled, as far as it is decoded."""

    device: str = ""
    kind: str = ""
    sealed: Sealed | None = None
    said: Message | None = None


class MessageIngress:
    """Receiving end of the protocol. Durable state is in the store; the rest may be lost.

    Attributes:
        counts: Counters by name: refusal reasons, and ACCEPTED, REPLAYED, UNKNOWN_KEYS,
            SEQ_GAPS, STALE_STATUS, PULLS_DELAYED, REFUSED_BY_DEVICE; NO_WINDOWS_ON_DEVICE for a
            device that had no complete window to train on in a round; SLOTS_AGAIN for a chunk of
            the model broadcast again; OUTLIVED for a life that continued behind a newer one;
            IGNORED for a name with too many forged signatures; STRAY for a message that no device
            of this fleet sends to the aggregator.
        is_full: True if the last write found the disk full.
        is_set_aside: Returns whether a device's body of this digest met a defect before.
        at_hand: The message being handled, or the last one.
        signals: Assembler of transient signals; the daemon sets which ones are wanted.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        fleet: str,
        signer: Signer,
        clock: Clock,
        terms: WelcomeTerms | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Start without an open run and without transfers.

        Args:
            store: Store of all durable state.
            registry: Enrolled devices and their keys.
            fleet: Id of the fleet, from the configuration; no message contains it.
            signer: The aggregator's online key.
            clock: Wall time for welcomes, monotonic time for everything else.
            terms: Terms of a welcome.
            rng: Random jitter of waits and timers; no result depends on it.
        """
        self.counts: Counter[str] = Counter()
        self.is_full = False
        self.is_set_aside: Callable[[str, bytes], bool] = lambda _device, _digest: False
        self.at_hand = AtHand()
        self.signals = SignalAssembler({})
        self._store = store
        self._registry = registry
        self._fleet = fleet
        self._clock = clock
        self._terms = terms or WelcomeTerms()
        self._turn: AdmissionContext | None = None
        self._is_more_waiting = False
        self._sealer = ReplySealer(fleet, signer)
        self._renumbered: dict[str, tuple[int, int]] = {}
        self._guard = RateLimiter(self._terms.quotas)
        self._uploads = Uploads(self._terms.room, rng or random.Random())  # noqa: S311 - jitter
        self._serving = ContentServer(
            store, sealer=self._sealer, window=self._terms.window, counts=self.counts
        )
        self._settling = UpdateAdmission(
            store, registry, sealer=self._sealer, clock=clock, counts=self.counts
        )
        self._takers: Mapping[str, tuple[type[Any], Callable[[Sealed, Any], IngressResult]]] = {
            HelloMessage.kind: (HelloMessage, self._hello),
            StatusMessage.kind: (StatusMessage, self._status),
            MetricsMessage.kind: (MetricsMessage, self._metrics),
            ReceiptMessage.kind: (ReceiptMessage, self._receipt),
            RefusalMessage.kind: (RefusalMessage, self._refusal),
            UpdateMessage.kind: (UpdateMessage, self._update),
            OfferMessage.kind: (OfferMessage, self._offer),
            ChunkMessage.kind: (ChunkMessage, self._chunk),
            HaveMessage.kind: (HaveMessage, self._have),
            SignalMessage.kind: (SignalMessage, self._signal),
        }

    @property
    def turn(self) -> AdmissionContext | None:
        """Return the open admission context, or None."""
        return self._turn

    def open(self, turn: AdmissionContext) -> None:
        """Admit updates in this context from now on."""
        self._turn = turn

    def keep_to(self, terms: WelcomeTerms) -> None:
        """Apply these terms from now on."""
        self._terms = terms
        self._guard.follow(terms.quotas)
        self._uploads.resize(terms.room)

    def receive(self, message: Arrival) -> IngressResult:
        """Handle one message from the broker; it may be acknowledged when this returns."""
        self.at_hand = AtHand()
        address = topics.parse(message.topic)
        is_ours = address is not None and address.fleet == self._fleet and message.payload
        if address is None or not is_ours or address.direction not in ("up", "status"):
            self.counts["STRAY"] += 1
            return IngressResult()
        return self._take(address.id, address.kind, message.payload)

    def take_whole(self, whole: Sealed) -> IngressResult:
        """Handle a body that was sent in chunks and set aside before.

        Raises:
            Refused: As for a body whose last chunk arrives.
        """
        self.at_hand = AtHand(whole.sender, whole.kind)
        return self._complete(whole)

    def fail(self, reason: Reason) -> IngressResult:
        """Refuse the message at hand after its transaction was undone, and drop its transfer.

        Args:
            reason: INTERNAL after a defect, which settles an update; else NO_SPACE.
        """
        device, kind, sealed, said = self.at_hand
        self.signals.forget(device)
        self._uploads.drop(device)
        self._serving.drop(device)
        if kind == SignalMessage.kind or not device:
            self.counts[reason.name] += 1
            return IngressResult()
        if reason is Reason.INTERNAL and sealed is not None and isinstance(said, UpdateMessage):
            try:
                return self._settling.set_aside(sealed, said)
            except Refused as refused:
                reason = refused.reason
        return self._refuse(device, reason, sealed, said)

    def refuse_unseen(self, topic: str) -> IngressResult:
        """Refuse a message without reading it: the same bytes met a defect before."""
        self.at_hand = AtHand()
        address = topics.parse(topic)
        if address is None or address.fleet != self._fleet or address.kind == SignalMessage.kind:
            self.counts[Reason.INTERNAL.name] += 1
            return IngressResult()
        return self._refuse(address.id, Reason.INTERNAL, None, None)

    def tick(self) -> IngressResult:
        """Request overdue chunks, drop timed-out transfers, and grant waiting offers."""
        now = self._clock.monotonic()
        self._serving.forget(now)
        due = self._uploads.due(now)
        said = [self._sealer.seal(device, have) for device, have in due]
        return IngressResult((*said, *self._grant_waiting(now)))

    @property
    def next_due(self) -> float | None:
        """Return the time of the next ``tick``, in seconds of the monotonic clock."""
        return float("-inf") if self._is_more_waiting else self._uploads.next_due

    @property
    def in_flight(self) -> tuple[int, int]:
        """Return the chunks in flight to the aggregator, and their bytes."""
        return self._uploads.in_flight

    # --- authentication

    def _take(self, device: str, kind: str, payload: bytes) -> IngressResult:
        now = self._clock.monotonic()
        if self._guard.is_ignored(device, now):
            self.counts["IGNORED"] += 1
            return IngressResult()
        self.at_hand = AtHand(device, kind)
        sealed: Sealed | None = None
        said: Message | None = None
        try:
            if kind not in self._takers:
                raise Refused(Reason.UNKNOWN_KIND, kind)  # noqa: TRY301 - one place replies
            sealed = self._unseal(device, kind, payload, now)
            self.at_hand = AtHand(device, kind, sealed)
            self._registry.heard(device, self._clock.wall())
            if self.is_set_aside(device, sealed.digest):
                raise Refused(Reason.INTERNAL, "set aside before")  # noqa: TRY301 - as above
            cls, taker = self._takers[kind]
            said = codec.decode(cls, sealed.body, on_unknown=self._unknown)
            self.at_hand = AtHand(device, kind, sealed, said)
            taken = taker(sealed, said)
        except Refused as refused:
            if refused.reason is Reason.BAD_SIGNATURE:
                self._guard.failed(device, now)
            if kind == SignalMessage.kind:  # transient: no reply
                self.counts[refused.reason.name] += 1
                return IngressResult()
            return self._refuse(device, refused.reason, sealed, said)
        except DatabaseFullError:
            self.is_full = True
            return self._refuse(device, Reason.NO_SPACE, sealed, said)
        self.is_full = self.is_full and not taken.entries
        return taken

    def _unseal(self, device: str, kind: str, payload: bytes, now: float) -> Sealed:
        def key_of(sender: str, kid: bytes) -> bytes | None:
            public = self._registry.key_of(sender, kid)
            self._guard.charge(sender, kind, len(payload), now)
            return public

        return envelope.unseal(
            payload,
            kind=kind,
            sender=device,
            recipient=AGGREGATOR,
            fleet=self._fleet,
            key_of=key_of,
        )

    def _unknown(self, _key: str) -> None:
        self.counts["UNKNOWN_KEYS"] += 1

    def _refuse(
        self, device: str, reason: Reason, sealed: Sealed | None, said: Message | None
    ) -> IngressResult:
        """Count a refusal, and send it unless that would amplify traffic."""
        self.counts[reason.name] += 1
        if not self._guard.may_answer(device, reason, self._clock.monotonic()):
            return IngressResult()
        wait = self._uploads.wait() if reason is Reason.BUSY else pause(reason)
        refusal = RefusalMessage(reason, wait, *subject(sealed, said))
        return IngressResult((self._sealer.seal(device, refusal),))

    # --- sessions

    def _hello(self, sealed: Sealed, hello: HelloMessage) -> IngressResult:
        device = sealed.sender
        if not hello.wire[0] <= WIRE <= hello.wire[1]:
            raise Refused(Reason.UPGRADE_REQUIRED, f"{device} speaks {hello.wire}")
        self._registry.check_one_life(device)
        before = self._store.ledger(device)
        ledger, is_welcome = after_hello(before, hello, sealed.digest, self._terms.hold)
        if not is_welcome:
            return IngressResult((self._sealer.seal(device, FloorMessage(sealed.ref, ledger.top)),))
        if ledger != before:
            self._settling.greeted(device, hello, ledger)
            self._uploads.leave(device)  # the device repeats its open offers
        run = self._turn.opened.run if self._turn else 0
        words = welcome(self._terms, hello, sealed.ref, ledger, run=run, time=self._clock.wall())
        said: list[Message] = [words, *self._store.issued(device)]
        answers = tuple(self._sealer.seal(device, word) for word in said)
        return IngressResult(answers, member=method.Member(device, True), greeted=device)

    def _status(self, sealed: Sealed, status: StatusMessage) -> IngressResult:
        top = self._store.ledger(sealed.sender).top  # highest confirmed life
        status = replace(status, life=min(status.life, top))
        known = self._registry.presence(sealed.sender)
        if (status.life, status.conn) < (known.life, known.conn):
            self.counts["STALE_STATUS"] += 1
        member = self._registry.follow(sealed.sender, status)
        if member is not None and not member.present:
            self._uploads.leave(sealed.sender)
        is_early = member is not None and member.present and not status.life  # before its hello
        return IngressResult(member=None if is_early else member)

    def _metrics(self, sealed: Sealed, metrics: MetricsMessage) -> IngressResult:
        self._registry.metrics[sealed.sender] = metrics
        return IngressResult()

    def _receipt(self, sealed: Sealed, receipt: ReceiptMessage) -> IngressResult:
        if receipt.life == 0:
            self._store.command_done(sealed.sender, receipt.seq, receipt.code)
        return IngressResult()

    def _refusal(self, sealed: Sealed, refusal: RefusalMessage) -> IngressResult:
        if refusal.code == Reason.ABORTED:
            self._uploads.abort(sealed.sender, refusal.id)
        self._serving.stop(sealed.sender, refusal.id)
        self.counts["REFUSED_BY_DEVICE"] += 1
        if refusal.code == Reason.NO_WINDOWS:
            self.counts["NO_WINDOWS_ON_DEVICE"] += 1
        if refusal.code == Reason.SUPERSEDED and refusal.ref is not None:
            return self._number_again(sealed.sender, refusal.ref)
        return IngressResult()

    def _number_again(self, device: str, ref: bytes) -> IngressResult:
        """Renumber a command that the device refused as old, at most ``RENUMBERED`` times a life."""
        life = self._store.ledger(device).top
        last, count = self._renumbered.get(device, (life, 0))
        count = count if last == life else 0
        command = self._store.reissue(device, ref) if count < RENUMBERED else None
        if command is None:
            return IngressResult()
        told = {"device": device, "num": command.num, "op": command.op}
        logger.warning("command renumbered %s", fields(**told))
        self._renumbered[device] = life, count + 1
        return IngressResult((self._sealer.seal(device, command),))

    # --- updates, whole and in chunks

    def _update(self, sealed: Sealed, update: UpdateMessage) -> IngressResult:
        if len(sealed.body) > self._terms.inline:
            raise Refused(Reason.TOO_LARGE, f"{len(sealed.body)} bytes unasked: offer them")
        return self._settling.update(sealed, update, self._turn)

    def _offer(self, sealed: Sealed, offer: OfferMessage) -> IngressResult:
        """Answer an offer: a receipt, a refusal, a grant, or nothing while it is queued."""
        device = sealed.sender
        if offer.of != UpdateMessage.kind:
            raise Refused(Reason.UNKNOWN_KIND, offer.of)
        settled = self._settled(device, offer)
        if settled is not None:
            return settled
        grant = self._uploads.offered(device, offer, self._clock.monotonic())
        return (
            IngressResult() if grant is None else IngressResult((self._sealer.seal(device, grant),))
        )

    def _settled(self, device: str, offer: OfferMessage) -> IngressResult | None:
        """Return the receipt of an offer with a settled number; None if it may be granted.

        Raises:
            Refused: The proof or the number is invalid; PAUSED.
        """
        key = (offer.life, offer.seq)
        ledger = self._settling.number(self._proved(device, offer), key, offer.spent)
        if isinstance(ledger, IngressResult):
            self._uploads.drop(device)
            return ledger
        is_set_aside = self.is_set_aside(device, offer.digest)
        reason = Reason.INTERNAL if is_set_aside else foreseen(offer, wanted(self._turn))
        if reason is None:
            return None
        row = LedgerRow(offer.digest, reason, offer.run, offer.round)
        return self._settling.refuse(device, ledger, key, row)

    def _grant_waiting(self, now: float) -> list[Reply]:
        """Grant waiting offers while there is room, after checking each again."""
        answers: list[Reply] = []
        self._is_more_waiting = False
        for _ in range(GRANTED_AT_ONCE):
            found = self._uploads.next_waiting(now)
            if found is None:
                return answers
            answers += self._grant_one(*found, now).answers
        self._is_more_waiting = True
        return answers

    def _grant_one(self, device: str, offer: OfferMessage, now: float) -> IngressResult:
        try:
            settled = self._settled(device, offer)
        except Refused as refused:
            return self._refuse(device, refused.reason, None, offer)
        if settled is not None:
            return settled
        return IngressResult((self._sealer.seal(device, self._uploads.grant(device, offer, now)),))

    def _proved(self, device: str, offer: OfferMessage) -> Sealed:
        """Verify the device's signature over the whole offered body."""
        envelope.check_proof(
            offer.digest,
            offer.sig,
            kind=offer.of,
            sender=device,
            recipient=AGGREGATOR,
            fleet=self._fleet,
            key_of=self._registry.key_of,
        )
        return Sealed(offer.of, device, b"", offer.digest, offer.sig)

    def _chunk(self, sealed: Sealed, chunk: ChunkMessage) -> IngressResult:
        device = sealed.sender
        if not self._uploads.expects(device, chunk):
            return self._late_chunk(device, chunk)
        came = self._uploads.add(device, chunk, self._clock.monotonic())
        if isinstance(came, Sealed):
            return self._complete(came)
        return (
            IngressResult() if came is None else IngressResult((self._sealer.seal(device, came),))
        )

    def _complete(self, whole: Sealed) -> IngressResult:
        """Handle a complete, verified body as if it had arrived inline."""
        if whole.body[:1] == bytes([messages.SEALED]):
            raise Refused(Reason.CANNOT_OPEN, "a sealed body")
        self.at_hand = AtHand(whole.sender, whole.kind, whole)
        if self.is_set_aside(whole.sender, whole.digest):
            raise Refused(Reason.INTERNAL, "set aside before")
        update = codec.decode(UpdateMessage, whole.body, on_unknown=self._unknown)
        self.at_hand = AtHand(whole.sender, whole.kind, whole, update)
        return self._settling.update(whole, update, self._turn)

    def _late_chunk(self, device: str, chunk: ChunkMessage) -> IngressResult:
        """Answer a chunk without an upload: its body is settled, or its grant has expired."""
        if chunk.life and chunk.seq:
            key = (chunk.life, chunk.seq)
            row = self._store.row(device, key)
            if row is not None and envelope.ref(row.digest) == chunk.id:
                self.counts["REPLAYED"] += 1
                if not self._guard.may_answer(device, Reason.EXPIRED, self._clock.monotonic()):
                    return IngressResult()
                return IngressResult((self._sealer.receipt(device, key, row),))
        raise Refused(Reason.EXPIRED, f"{device}: a chunk that nobody waits for")

    # --- transient signals and downloads

    def _signal(self, sealed: Sealed, signal: SignalMessage) -> IngressResult:
        """Handle a fragment of a transient signal; nothing is recorded or receipted."""
        turn = wanted(self._turn)
        if signal.run != turn.opened.run:
            raise Refused(Reason.WRONG_RUN, f"run {signal.run}, now {turn.opened.run}")
        if self._registry.is_quarantined(sealed.sender):
            raise Refused(Reason.QUARANTINED, sealed.sender)
        self._registry.check_one_life(sealed.sender)
        return IngressResult(signal=self.signals.assemble(sealed.sender, signal))

    def _have(self, sealed: Sealed, have: HaveMessage) -> IngressResult:
        """Send the chunks of a body that a device is missing, within its quota.

        Raises:
            Refused: QUOTA or BUSY if nothing may be sent now; else as ``missing``.
        """
        device, now = sealed.sender, self._clock.monotonic()
        if not self._guard.may_pull(device, now):
            self.counts["PULLS_DELAYED"] += 1
            return IngressResult()
        room = self._guard.room_for_download(device, now)
        answers = self._serving.missing(device, have, now, room)
        self._guard.downloaded(device, sum(len(answer.payload) for answer in answers), now)
        return IngressResult(answers)
