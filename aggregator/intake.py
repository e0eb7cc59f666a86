"""What devices say, turned into journal rows and answers. Knows the protocol and no method.

Every message passes the same order: topic, size, envelope, deny list, quota, signature, form,
number, judgement, one transaction, and only then the answer. Nothing here is counted twice and
nothing is receipted that a crash could take back (`PROTOCOL.md` sections 5, 9 and 10).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from aggregator.crowds import Crowds
from aggregator.downloads import Downloads
from aggregator.ledger import Key, Ledger, Row, Standing, charged, hear, standing, used
from aggregator.quotas import Guard
from aggregator.records import Entry, Store
from aggregator.registry import Registry
from aggregator.signals import Signals
from aggregator.store import StoreFullError
from aggregator.turn import Terms, Turn, foreseen
from aggregator.twins import SIGNS, Twins
from aggregator.uploads import KEEP, Uploads
from edge_sdk.clock import Clock
from edge_sdk.program import fields
from edge_sdk.wire import codec, envelope, messages, method, topics
from edge_sdk.wire.admit import admit_update
from edge_sdk.wire.cohort import takes_part
from edge_sdk.wire.envelope import AGGREGATOR, Sealed
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.messages import (
    WIRE,
    Chunk,
    Floor,
    Grant,
    Have,
    Hello,
    Message,
    Metrics,
    Offer,
    Part,
    Receipt,
    Refusal,
    Signal,
    Status,
    Update,
    Welcome,
)
from edge_sdk.wire.transfer import Report
from edge_sdk.wire.transport import Message as Arrival

__all__ = ["Answer", "Intake", "Taken", "Terms", "Turn"]

logger = logging.getLogger(__name__)

ROWS = 4096  # settled numbers kept for a device; beyond, it must say hello, which prunes
NO_SPACE_WAIT = 60_000  # ms
LATER = 1_000  # ms


class Answer(NamedTuple):
    """One message to publish; retained only where it is a slot of the common model."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a message. Whatever it was, it may be acknowledged to the broker now.

    Attributes:
        answers: What to publish, after the commit that they tell of.
        entries: Updates that were journalled, for the fold; at most one.
        member: Who came or went.
        greeted: Who said hello and is to hear again what it should work on.
        signal: An answer that perishes, whole.
    """

    answers: tuple[Answer, ...] = ()
    entries: tuple[Entry, ...] = ()
    member: method.Member | None = None
    greeted: str | None = None
    signal: method.Signal | None = None


class Intake:
    """The receiving end of the protocol. What must last is in the store; the rest may be lost.

    Attributes:
        counts: How often what happened: reasons by name, and ACCEPTED, REPLAYED, UNKNOWN_KEYS,
            SEQ_GAPS, STALE_STATUS, PULLS_DELAYED, REFUSED_BY_DEVICE; SLOTS_AGAIN for a crowd that
            got a piece of the model at once; OUTLIVED for a life that went on behind a newer one;
            IGNORED for a name under which too much was forged, STRAY for what no device of this
            fleet says to us.
        is_full: Whether the last attempt to record something found the disk full.
        signals: What perishes, as it is being put together; the daemon says what is wanted.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        fleet: str,
        signer: Signer,
        clock: Clock,
        terms: Terms | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Begin with no run open and no transfer known.

        Args:
            store: Where everything that counts goes.
            registry: Who may speak.
            fleet: From the configuration; no message says it.
            signer: The aggregator's online key.
            clock: Wall time for welcomes, monotonic time for everything else.
            terms: What devices are promised.
            rng: Jitter of waits and timers; no result depends on it.
        """
        self._store = store
        self._registry = registry
        self._fleet = fleet
        self._signer = signer
        self._clock = clock
        self._terms = terms or Terms()
        self._guard = Guard(self._terms.quotas)
        self._uploads = Uploads(self._terms.room, rng or random.Random())  # noqa: S311 - jitter
        self._downloads = Downloads(store.content, self._terms.window)
        self._crowds = Crowds()
        self._last: dict[str, Key] = {}
        self._twins = Twins()
        self._turn: Turn | None = None
        self._takers: Mapping[str, tuple[type[Any], Callable[[Sealed, Any], Taken]]] = {
            Hello.kind: (Hello, self._hello),
            Status.kind: (Status, self._status),
            Metrics.kind: (Metrics, self._metrics),
            Receipt.kind: (Receipt, self._receipt),
            Refusal.kind: (Refusal, self._refusal),
            Update.kind: (Update, self._update),
            Offer.kind: (Offer, self._offer),
            Chunk.kind: (Chunk, self._chunk),
            Have.kind: (Have, self._have),
            Signal.kind: (Signal, self._signal),
        }
        self.counts: Counter[str] = Counter()
        self.is_full = False
        self.signals = Signals({})

    @property
    def turn(self) -> Turn | None:
        """What is open now."""
        return self._turn

    def open(self, turn: Turn) -> None:
        """From now on judge updates against this turn."""
        self._turn = turn

    def keep_to(self, terms: Terms) -> None:
        """Judge and promise by these terms from now on."""
        self._terms = terms
        self._guard.follow(terms.quotas)
        self._uploads.resize(terms.room)

    def take(self, message: Arrival) -> Taken:
        """Take one message from the broker; when it returns, the message may be acknowledged."""
        address = topics.parse(message.topic)
        is_ours = address is not None and address.fleet == self._fleet and message.payload
        if address is None or not is_ours or address.direction not in ("up", "status"):
            self.counts["STRAY"] += 1
            return Taken()
        return self._take(address.id, address.kind, message.payload)

    def tick(self) -> Taken:
        """Ask for chunks that are overdue and forget transfers that went silent."""
        now = self._clock.monotonic()
        self._downloads.forget(now)
        return Taken(
            tuple(
                self._say(device, _progress(upload.offer, report))
                for device, upload, report in self._uploads.due(now)
            )
        )

    @property
    def next_due(self) -> float | None:
        """When ``tick`` has something to do, in seconds of the monotonic clock."""
        return self._uploads.next_due

    # --- who says it

    def _take(self, device: str, kind: str, payload: bytes) -> Taken:
        now = self._clock.monotonic()
        if self._guard.is_ignored(device, now):
            self.counts["IGNORED"] += 1
            return Taken()
        sealed: Sealed | None = None
        said: Message | None = None
        try:
            if kind not in self._takers:
                raise Refused(Reason.UNKNOWN_KIND, kind)  # noqa: TRY301 - one place answers
            sealed = self._unseal(device, kind, payload, now)
            self._registry.heard(device, self._clock.wall())
            cls, taker = self._takers[kind]
            said = codec.decode(cls, sealed.body, on_unknown=self._unknown)
            taken = taker(sealed, said)
        except Refused as refused:
            if refused.reason is Reason.BAD_SIGNATURE:
                self._guard.failed(device, now)
            if kind == Signal.kind:  # perishes: nobody waits to hear
                self.counts[refused.reason.name] += 1
                return Taken()
            return self._refuse(device, refused.reason, sealed, said)
        except StoreFullError:
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

    # --- sessions

    def _hello(self, sealed: Sealed, hello: Hello) -> Taken:
        device = sealed.sender
        if not hello.wire[0] <= WIRE <= hello.wire[1]:
            raise Refused(Reason.UPGRADE_REQUIRED, f"{device} speaks {hello.wire}")
        self._registry.check_one_life(device)
        before = self._store.ledger(device)
        ledger, is_welcome = hear(before, hello, sealed.digest, self._terms.hold)
        if not is_welcome:
            return Taken((self._say(device, Floor(sealed.ref, ledger.top)),))
        if ledger != before:
            self._store.save_ledger(device, ledger)
            self._last.pop(device, None)
            charged_so_far = ledger.spent if hello.lost else hello.spent
            self._twins.greeted(device, life=hello.life, spent=charged_so_far)
        words = self._say(device, self._welcome(sealed, hello, ledger))
        commands = (self._say(device, command) for command in self._store.issued(device))
        return Taken((words, *commands), member=method.Member(device, True), greeted=device)

    def _welcome(self, sealed: Sealed, hello: Hello, ledger: Ledger) -> Welcome:
        return Welcome(
            hello=sealed.ref,
            life=hello.life,
            spent=ledger.spent,
            time=self._clock.wall(),
            wire=WIRE,
            caps=tuple(word for word in hello.caps if word in self._terms.caps),
            run=self._turn.opened.run if self._turn else 0,
            inline=self._terms.inline,
            window=self._terms.window,
            quota=self._terms.quota,
            hold=self._terms.hold,
            cmd=ledger.cmd,
        )

    def _status(self, sealed: Sealed, status: Status) -> Taken:
        known = self._registry.presence(sealed.sender)
        if (status.life, status.conn) < (known.life, known.conn):
            self.counts["STALE_STATUS"] += 1
        member = self._registry.follow(sealed.sender, status)
        is_early = member is not None and member.present and not status.life  # its hello follows
        return Taken(member=None if is_early else member)

    def _metrics(self, sealed: Sealed, metrics: Metrics) -> Taken:
        self._registry.metrics[sealed.sender] = metrics
        return Taken()

    def _receipt(self, sealed: Sealed, receipt: Receipt) -> Taken:
        if receipt.life == 0:
            self._store.command_done(sealed.sender, receipt.seq, receipt.code)
        return Taken()

    def _refusal(self, sealed: Sealed, refusal: Refusal) -> Taken:
        upload = self._uploads.of(sealed.sender)
        if upload and refusal.code == Reason.ABORTED and refusal.id == upload.machine.id:
            self._uploads.drop(sealed.sender)
        self._downloads.stop(sealed.sender, refusal.id)
        self.counts["REFUSED_BY_DEVICE"] += 1
        return Taken()

    # --- numbered messages

    def _update(self, sealed: Sealed, update: Update) -> Taken:
        if len(sealed.body) > self._terms.inline:
            raise Refused(Reason.TOO_LARGE, f"{len(sealed.body)} bytes unasked: offer them")
        return self._settle(sealed, update)

    def _settle(self, sealed: Sealed, update: Update) -> Taken:
        """Judge a whole update and record the judgement; inline and in chunks end here."""
        device, key = sealed.sender, (update.life, update.seq)
        ledger = self._numbered(sealed, key, update.spent)
        if isinstance(ledger, Taken):
            return ledger
        turn = self._open_turn()
        row = Row(sealed.digest, Reason.ACCEPTED, update.run, update.round)
        try:
            self._check_sender(device, ledger, turn)
            admitted = admit_update(
                update, sender=device, limits=turn.limits, round_state=turn.opened
            )
            self._check_asked(device, update, turn)
        except Refused as refused:
            return self._close(device, ledger, key, replace(row, code=refused.reason))
        row, entry = self._store.append(device, ledger, key, row, _compact(admitted))
        self.counts[Reason(row.code).name] += 1
        self._note_gap(device, key)
        answers = (self._receipted(device, key, row),)
        return Taken(answers, () if entry is None else (entry,))

    def _numbered(self, sealed: Sealed, key: Key, spent: int) -> Ledger | Taken:
        """Return the ledger to judge with, or what settled the number already (A2, A3)."""
        device = sealed.sender
        self._registry.check_one_life(device)
        before = self._store.ledger(device)
        ledger = used(before, key[0])
        row = self._store.row(device, key)
        meaning = standing(ledger, key, sealed.digest, row)
        if row is None:
            self._watch(device, key, spent)
        if meaning is Standing.NEW:
            if self._store.held(device) >= ROWS and ledger != before:
                self._store.save_ledger(device, ledger)  # a new life in use prunes
            if self._store.held(device) >= ROWS:
                raise Refused(Reason.SAY_HELLO, f"{device} holds {ROWS} numbers")
            return charged(ledger, spent)
        if meaning is Standing.UNKNOWN_LIFE:
            raise Refused(Reason.SAY_HELLO, f"{device}: life {key[0]} is not known here")
        if ledger != before:
            self._store.save_ledger(device, ledger)
        if meaning is Standing.REPEAT and row is not None:
            self.counts["REPLAYED"] += 1
            return Taken((self._receipted(device, key, row),))
        is_fork = meaning is Standing.FORK
        if is_fork:
            self._registry.quarantine(device, f"FORK: two bodies under number {key}")
        code = Reason.FORK if is_fork else Reason.CLOSED
        self.counts[code.name] += 1
        return Taken((self._receipted(device, key, Row(sealed.digest, code, 0, 0)),))

    def _watch(self, device: str, key: Key, spent: int) -> None:
        """Look for a second process under this identity.

        Raises:
            Refused: TWO_LIVES; from now on nothing of either process counts.
        """
        life = key[0]
        signs = self._twins.outlived(device, life=life, spent=spent, now=self._clock.monotonic())
        if not signs:
            return
        self.counts["OUTLIVED"] += 1
        told = {"device": device, "life": life, "signs": f"{signs} of {SIGNS}"}
        logger.warning(
            "an image was restored, or two processes use one identity %s", fields(**told)
        )
        if signs >= SIGNS:
            self._twins.forget(device)
            self._registry.part(device, f"life {life} goes on behind newer ones")
            self._registry.check_one_life(device)

    def _close(self, device: str, ledger: Ledger, key: Key, row: Row) -> Taken:
        """Record a final refusal and tell it."""
        self._store.refuse(device, ledger, key, row)
        self.counts[Reason(row.code).name] += 1
        self._note_gap(device, key)
        return Taken((self._receipted(device, key, row),))

    def _open_turn(self) -> Turn:
        if self._turn is None or self._turn.is_paused:
            raise Refused(Reason.PAUSED, "no updates are wanted now")
        return self._turn

    def _check_sender(self, device: str, ledger: Ledger, turn: Turn) -> None:
        if self._registry.is_quarantined(device):
            raise Refused(Reason.QUARANTINED, device)
        if turn.releases is not None and ledger.spent > turn.releases:
            raise Refused(Reason.BUDGET_SPENT, f"{device}: {ledger.spent} releases")
        if turn.cohort is not None and not takes_part(turn.cohort, device, turn.share):
            raise Refused(Reason.NOT_IN_COHORT, device)

    def _check_asked(self, device: str, update: Update, turn: Turn) -> None:
        """Whether an update answers the task its device was given last, and says so rightly.

        A repeat under another number goes on, to be receipted as TWICE_IN_ROUND.
        """
        if not turn.is_personal:
            return
        asked = self._store.asked(device, turn.opened.run)
        wanted = None if asked is None else (asked.round, asked.base)
        if wanted != (update.round, update.base):
            said = f"round {update.round} of version {update.base}"
            raise Refused(Reason.LATE, f"{device} answers {said}, asked was {wanted}")

    def _signal(self, sealed: Sealed, signal: Signal) -> Taken:
        """Take a piece of an answer that perishes; nothing is recorded, nothing is receipted."""
        turn = self._open_turn()
        if signal.run != turn.opened.run:
            raise Refused(Reason.WRONG_RUN, f"run {signal.run}, now {turn.opened.run}")
        if self._registry.is_quarantined(sealed.sender):
            raise Refused(Reason.QUARANTINED, sealed.sender)
        self._registry.check_one_life(sealed.sender)
        return Taken(signal=self.signals.take(sealed.sender, signal))

    # --- bodies in chunks

    def _offer(self, sealed: Sealed, offer: Offer) -> Taken:
        """Answer a question of 300 bytes: settled, refused, not now, or go ahead."""
        device, key = sealed.sender, (offer.life, offer.seq)
        if offer.of != Update.kind:
            raise Refused(Reason.UNKNOWN_KIND, offer.of)
        whole = self._proved(device, offer)
        ledger = self._numbered(whole, key, offer.spent)
        if isinstance(ledger, Taken):
            self._uploads.drop(device)
            return ledger
        turn = self._open_turn()
        reason = foreseen(offer, turn)
        if reason is not None:
            row = Row(offer.digest, reason, offer.run, offer.round)
            return self._close(device, ledger, key, row)
        now = self._clock.monotonic()
        upload = self._uploads.offered(device, offer, now)
        upload.machine.report(now)
        grant = Grant(whole.ref, upload.machine.having, upload.machine.window, KEEP)
        return Taken((self._say(device, grant),))

    def _proved(self, device: str, offer: Offer) -> Sealed:
        """Check that the device signed the whole body that is offered."""
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

    def _chunk(self, sealed: Sealed, chunk: Chunk) -> Taken:
        device, now = sealed.sender, self._clock.monotonic()
        upload = self._uploads.of(device)
        if upload is None or upload.machine.id != chunk.id:
            return self._late_chunk(device, chunk)
        machine = upload.machine
        try:
            machine.add(chunk.id, chunk.i, chunk.blob, now)
            if not machine.is_complete:
                report = machine.report(now)
                return Taken(
                    (self._say(device, _progress(upload.offer, report)),) if report else ()
                )
            return self._complete(device, machine.body(), upload.offer, now)
        except Refused as refused:
            if refused.reason is Reason.BAD_DIGEST:
                self._uploads.drop(device)
            raise

    def _complete(self, device: str, body: bytes, offer: Offer, now: float) -> Taken:
        """Every byte is here and is what was signed: go on as if it had come inline."""
        self._uploads.done(device, now)
        whole = Sealed(offer.of, device, body, offer.digest, offer.sig)
        if body[:1] == bytes([messages.SEALED]):
            raise Refused(Reason.CANNOT_OPEN, "a sealed body")
        return self._settle(whole, codec.decode(Update, body, on_unknown=self._unknown))

    def _late_chunk(self, device: str, chunk: Chunk) -> Taken:
        """A chunk nobody waits for: its body is settled, or its grant is forgotten."""
        if chunk.life and chunk.seq:
            key = (chunk.life, chunk.seq)
            row = self._store.row(device, key)
            if row is not None and envelope.ref(row.digest) == chunk.id:
                self.counts["REPLAYED"] += 1
                if not self._guard.may_answer(device, Reason.EXPIRED, self._clock.monotonic()):
                    return Taken()
                return Taken((self._receipted(device, key, row),))
        raise Refused(Reason.EXPIRED, f"{device}: a chunk that nobody waits for")

    def _have(self, sealed: Sealed, have: Have) -> Taken:
        """Send the chunks of a common body that a device is missing."""
        device, now = sealed.sender, self._clock.monotonic()
        if not self._guard.may_pull(device, now):
            self.counts["PULLS_DELAYED"] += 1
            return Taken()
        missing = self._downloads.wanted(device, have, now)
        said = (self._piece(device, chunk, now) for chunk in missing)
        return Taken(tuple(answer for answer in said if answer is not None))

    def _piece(self, device: str, chunk: Chunk, now: float) -> Answer | None:
        """Send one chunk; what a crowd misses is published once more in its slot instead."""
        piece = chunk.id, chunk.i
        slot = self._slot(chunk) if self._crowds.grows(device, piece, now) else None
        if slot is None:
            return self._say(device, chunk)
        if not self._crowds.is_waiting(piece, now):
            return None
        self.counts["SLOTS_AGAIN"] += 1
        return slot

    def _slot(self, chunk: Chunk) -> Answer | None:
        """Return the retained slot with this very chunk, if it is of the present common model."""
        topic = topics.part(self._fleet, chunk.i)
        payload = self._store.announced(topic)
        if not payload:
            return None
        part = codec.decode(Part, envelope.unproved(payload))
        is_it = (part.id, part.blob) == (chunk.id, chunk.blob)
        return Answer(topic, payload, retain=True) if is_it else None

    # --- words

    def _receipted(self, device: str, key: Key, row: Row) -> Answer:
        life, seq = key
        is_counted = row.code == Reason.ACCEPTED
        return self._say(
            device,
            Receipt(
                life=life,
                seq=seq,
                ref=envelope.ref(row.digest),
                code=row.code,
                run=row.run if is_counted else 0,
                round=row.round if is_counted else 0,
            ),
        )

    def _refuse(
        self, device: str, reason: Reason, sealed: Sealed | None, said: Message | None
    ) -> Taken:
        """Count that nothing was recorded, and say so if that is no amplifier."""
        self.counts[reason.name] += 1
        if not self._guard.may_answer(device, reason, self._clock.monotonic()):
            return Taken()
        ref, transfer = _subject(sealed, said)
        refusal = Refusal(reason, self._wait(device, reason), ref, transfer)
        return Taken((self._say(device, refusal),))

    def _wait(self, device: str, reason: Reason) -> int:
        if reason is Reason.BUSY:
            return self._uploads.wait(device)
        waits = {
            Reason.NO_SPACE: NO_SPACE_WAIT,
            Reason.PAUSED: NO_SPACE_WAIT,
            Reason.QUOTA: NO_SPACE_WAIT,
            Reason.SAY_HELLO: 0,
        }
        return waits.get(reason, LATER)

    def _say(self, device: str, message: Message) -> Answer:
        payload = envelope.seal(
            codec.encode(message),
            kind=message.kind,
            sender=AGGREGATOR,
            recipient=device,
            fleet=self._fleet,
            signer=self._signer,
        )
        return Answer(topics.down(self._fleet, device, message.kind), payload)

    def _unknown(self, _key: str) -> None:
        self.counts["UNKNOWN_KEYS"] += 1

    def _note_gap(self, device: str, key: Key) -> None:
        """Gaps in the numbers mean nothing for learning; a rising count means loss (A7)."""
        life, seq = self._last.get(device, (key[0], 0))
        if key[0] == life and key[1] > seq + 1:
            self.counts["SEQ_GAPS"] += 1
        self._last[device] = max(key, (life, seq))


def _subject(sealed: Sealed | None, said: Message | None) -> tuple[bytes | None, bytes | None]:
    """Return what a refusal is about: a message, or a transfer by the id both ends know."""
    if isinstance(said, Offer):
        return None, envelope.ref(said.digest)
    if isinstance(said, (Chunk, Have)):
        return None, said.id
    return (sealed.ref if sealed else None), None


def _progress(offer: Offer, report: Report) -> Have:
    return Have(envelope.ref(offer.digest), report.having, report.window)


def _compact(update: method.Update) -> method.Update:
    """Keep the vector in float32 where that loses nothing: it is what a device sent."""
    single = np.asarray(update.vector, np.float32)
    return replace(update, vector=single) if np.array_equal(single, update.vector) else update
