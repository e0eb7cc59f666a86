"""Implement the durable outbox as a pure machine: lives, entries, offers, chunks, receipts, timers.

A frozen ``Outbox`` and an event are the input; the next ``Outbox`` and the messages to send are the
output. The shell saves ``numbers`` and ``entries`` before it sends anything (`PROTOCOL.md` section
9). Times are seconds of the monotonic clock; randomness and nonces come from ``StepInputs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.envelope import digest, ref
from edge_sdk.wire.protocol.messages import (
    CHUNK_LIMIT,
    LARGEST,
    WIRE,
    ChunkMessage,
    FloorMessage,
    GrantMessage,
    HaveMessage,
    HelloMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
    WelcomeMessage,
)
from edge_sdk.wire.protocol.transfer import FIRST_GAP, chunk_size, count_of, indices

CAPS = ("b1", "b2")
"""Optional abilities of a device: tensor encodings of signs."""

SOONEST_GAP = FIRST_GAP / 2
"""Shortest time in seconds that a receiver waits for chunks before it reports a gap."""

Key = tuple[int, int]
"""``(life, seq)``: the number of an outbox entry."""


@dataclass(frozen=True, slots=True)
class UplinkCounters:
    """Counters that are never reused; saved before a message with them is sent.

    Attributes:
        life: Highest ledger session ever proposed.
        seq: Last sequence number assigned within it.
        spent: Number of releases charged so far.
        lost: Whether the store is new and the aggregator's welcome is still missing.
    """

    life: int = 0
    seq: int = 0
    spent: int = 0
    lost: bool = True


@dataclass(frozen=True)  # without slots: a cached property needs a place
class OutboxEntry:
    """One release that waits for its receipt: the exact bytes, signed once."""

    life: int
    seq: int
    body: bytes
    proof: bytes
    run: int
    round: int
    base: int
    spec: bytes
    spent: int
    kind: str = "update"
    attempts: int = 0  # saved; 0 = never sent, and only then may the body be sent unasked

    @property
    def key(self) -> Key:
        """Return the entry's number."""
        return self.life, self.seq

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 of the body."""
        return digest(self.body)

    @property
    def id(self) -> bytes:
        """Return the 16 bytes that name the body in grants, chunks and receipts."""
        return ref(self.digest)

    def offer(self, chunk: int) -> OfferMessage:
        """Return the offer of 300 bytes that replaces the body on every later attempt."""
        return OfferMessage(
            of=self.kind,
            digest=self.digest,
            size=len(self.body),
            chunk=chunk,
            sig=self.proof,
            run=self.run,
            round=self.round,
            base=self.base,
            spec=self.spec,
            life=self.life,
            seq=self.seq,
            spent=self.spent,
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry timer for missing answers: from ``base`` seconds, doubling to ``cap``, with jitter."""

    base: float = 10.0
    cap: float = 900.0

    def wait(self, attempts: int, draw: float) -> float:
        """Return the wait after the given attempt; ``draw`` is uniform in 0 … 1.

        At least a tenth of the step, so that an answer in flight can arrive.

        >>> RetryPolicy().wait(1, 1.0), RetryPolicy().wait(3, 0.5), RetryPolicy().wait(30, 1.0)
        (10.0, 22.0, 900.0)
        """
        step = min(self.cap, self.base * 2.0 ** min(max(attempts, 1) - 1, 30))
        return step * (0.1 + 0.9 * draw)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """External inputs of one step: a uniform draw, a nonce, the present time."""

    draw: Callable[[], float]
    nonce: Callable[[], bytes]  # 16 unpredictable bytes
    now: float


@dataclass(frozen=True, slots=True)
class PendingHello:
    """A hello that waits for its welcome; repeated unchanged."""

    hello: HelloMessage
    due: float
    attempts: int = 0

    @property
    def ref(self) -> bytes:
        """Return the reference that the answer must name."""
        return ref(digest(encode(self.hello)))


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """The one entry that is being offered or sent in chunks."""

    key: Key
    asked: bytes  # ref of the offer itself: a refusal may name it
    have: frozenset[int] = frozenset()
    sent: tuple[int, ...] = ()  # in sending order, without the chunks that arrived
    left: float = float("-inf")  # when chunks were sent last


@dataclass(frozen=True, slots=True)
class SendWhole:
    """An effect: send the entry's own envelope, as it was signed."""

    entry: OutboxEntry


@dataclass(frozen=True, slots=True)
class SendChunk:
    """An effect: send one chunk to the worker that granted it."""

    chunk: ChunkMessage
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class EntrySettled:
    """A note: an entry is settled for good; ``code`` 0 means it counts."""

    entry: OutboxEntry
    code: int


@dataclass(frozen=True, slots=True)
class RefusalReceived:
    """A note: a refusal that an operator should see."""

    code: int
    wait: float


Say = HelloMessage | OfferMessage | SendWhole | SendChunk
Note = EntrySettled | RefusalReceived


@dataclass(frozen=True, slots=True)
class Outbox:
    """State of the uplink. ``numbers`` and ``entries`` are persistent."""

    numbers: UplinkCounters = field(default_factory=UplinkCounters)
    entries: tuple[OutboxEntry, ...] = ()
    conn: int = 0
    sdk: str = "0"
    pace: RetryPolicy = field(default_factory=RetryPolicy)
    is_linked: bool = False
    greeting: PendingHello | None = None
    welcome: WelcomeMessage | None = None
    inline: int = 0
    chunk: int = CHUNK_LIMIT
    due: tuple[tuple[Key, float], ...] = ()  # when each entry is tried next
    transfer: PendingTransfer | None = None
    stopped: Reason | None = None  # reason why this process has stopped releasing

    @property
    def is_ready(self) -> bool:
        """Return whether this process's hello was welcomed and releases are allowed."""
        return self.welcome is not None and self.greeting is None and self.stopped is None

    @property
    def may_release(self) -> bool:
        """Return whether one more numbered entry may be made now (rule D2)."""
        return self.is_ready and self.welcome is not None and len(self.entries) < self.welcome.hold

    def entry(self, key: Key) -> OutboxEntry | None:
        """Find an entry by its number."""
        return next((entry for entry in self.entries if entry.key == key), None)


@dataclass(frozen=True, slots=True)
class OutboxStep:
    """Result of one event: the next state, the messages to send after saving it, the notes."""

    uplink: Outbox
    says: tuple[Say, ...] = ()
    notes: tuple[Note, ...] = ()


# --- events -------------------------------------------------------------------------------------


def greet(up: Outbox, chance: StepInputs, *, above: int = 0) -> OutboxStep:
    """Propose a new ledger session: a number never used before, bound by a nonce (rule D5)."""
    numbers = replace(up.numbers, life=min(max(up.numbers.life, above) + 1, LARGEST))
    hello = HelloMessage(
        life=numbers.life,
        nonce=chance.nonce(),
        spent=numbers.spent,
        lost=numbers.lost,
        open=tuple(entry.key for entry in up.entries[:8]),
        wire=(WIRE, WIRE),
        caps=CAPS,
        sdk=up.sdk,
        conn=up.conn,
    )
    fresh = replace(
        up,
        numbers=numbers,
        greeting=PendingHello(hello, chance.now),
        welcome=None,
        transfer=None,
        due=(),
    )
    return tick(fresh, chance)


def linked(up: Outbox, chance: StepInputs, *, max_payload: int, conn: int) -> OutboxStep:
    """Handle a new connection: send hello if this process has not, else continue."""
    unusable = up.stopped == Reason.UNUSABLE_LINK
    stopped: Reason | None = None if unusable else up.stopped
    chunk = up.chunk
    try:
        chunk = chunk_size(max_payload)
    except Refused as refused:
        stopped = refused.reason
    up = replace(up, is_linked=True, chunk=chunk, stopped=stopped, conn=conn, transfer=None, due=())
    if up.greeting is None and up.welcome is None:
        return greet(up, chance)
    if up.greeting is not None:
        up = replace(up, greeting=replace(up.greeting, due=chance.now))
    return tick(up, chance)


def unlinked(up: Outbox) -> Outbox:
    """Handle a lost connection: nothing is lost, nothing is sent."""
    return replace(up, is_linked=False, transfer=None)


def release(up: Outbox, entry: OutboxEntry, chance: StepInputs) -> OutboxStep:
    """Add a new entry; its first send follows at once if the link is up."""
    numbers = replace(up.numbers, seq=entry.seq, spent=entry.spent)
    return tick(replace(up, numbers=numbers, entries=(*up.entries, entry)), chance)


def receive(
    up: Outbox,
    message: WelcomeMessage
    | FloorMessage
    | GrantMessage
    | HaveMessage
    | ReceiptMessage
    | RefusalMessage,
    chance: StepInputs,
) -> OutboxStep:
    """Process a message from the aggregator.

    Raises:
        Refused: MALFORMED: a bitmap of the wrong size; the state is unchanged.
    """
    match message:
        case WelcomeMessage():
            return _welcomed(up, message, chance)
        case FloorMessage():
            is_ours = up.greeting is not None and message.hello == up.greeting.ref
            return greet(up, chance, above=message.life) if is_ours else OutboxStep(up)
        case GrantMessage() | HaveMessage():
            return _send(up, message, chance)
        case ReceiptMessage():
            return _settle(up, message, chance)
    return _refused(up, message, chance)


def tick(up: Outbox, chance: StepInputs) -> OutboxStep:
    """Send the messages that are due: hello first, then one offer at a time, oldest entry first."""
    if not up.is_linked:
        return OutboxStep(up)
    if up.greeting is not None:
        return _repeat_hello(up, up.greeting, chance)
    if not up.is_ready:
        return OutboxStep(up)
    says: list[Say] = []
    for entry in up.entries:
        if _due(up, entry.key) > chance.now:
            continue
        up, said = _try(up, entry, chance)
        says += said
    return OutboxStep(up, tuple(says))


def next_due(up: Outbox) -> float | None:
    """Return when ``tick`` is due next, or None if only an event can change that."""
    if not up.is_linked or up.stopped is not None:
        return None
    if up.greeting is not None:
        return up.greeting.due
    return min((_due(up, e.key) for e in up.entries if not _must_queue(up, e)), default=None)


# --- implementation -----------------------------------------------------------------------------


def _repeat_hello(up: Outbox, greeting: PendingHello, chance: StepInputs) -> OutboxStep:
    if greeting.due > chance.now or up.stopped is not None:
        return OutboxStep(up)
    attempts = greeting.attempts + 1
    due = chance.now + up.pace.wait(attempts, chance.draw())
    again = replace(greeting, attempts=attempts, due=due)
    return OutboxStep(replace(up, greeting=again), (greeting.hello,))


def _welcomed(up: Outbox, welcome: WelcomeMessage, chance: StepInputs) -> OutboxStep:
    """Accept only the first answer to the present nonce; a second one would reset ``seq``."""
    if up.greeting is None or welcome.hello != up.greeting.ref:
        return OutboxStep(up)
    if welcome.life != up.numbers.life:
        return OutboxStep(up)
    spent = max(up.numbers.spent, welcome.spent)
    numbers = replace(up.numbers, seq=0, spent=spent, lost=False)
    ready = replace(
        up, numbers=numbers, greeting=None, welcome=welcome, inline=welcome.inline, due=()
    )
    return tick(ready, chance)


def _try(up: Outbox, entry: OutboxEntry, chance: StepInputs) -> tuple[Outbox, tuple[Say, ...]]:
    """Send one entry: whole on the first attempt if it fits, as an offer afterwards (rule D3)."""
    attempts = entry.attempts + 1
    tried = replace(entry, attempts=attempts)
    due = chance.now + up.pace.wait(attempts, chance.draw())
    if _must_queue(up, entry):
        return up, ()
    if _goes_whole(up, entry):
        return _put(up, tried, due), (SendWhole(tried),)
    offer = entry.offer(up.chunk)
    transfer = PendingTransfer(entry.key, ref(digest(encode(offer))))
    return replace(_put(up, tried, due), transfer=transfer), (offer,)


def _goes_whole(up: Outbox, entry: OutboxEntry) -> bool:
    return entry.attempts == 0 and len(entry.body) <= min(up.inline, up.chunk)


def _must_queue(up: Outbox, entry: OutboxEntry) -> bool:
    """Return whether another entry is being offered or sent: one transfer at a time."""
    busy = up.transfer is not None and up.transfer.key != entry.key
    return busy and not _goes_whole(up, entry)


def _send(up: Outbox, asked: GrantMessage | HaveMessage, chance: StepInputs) -> OutboxStep:
    """Send the missing chunks, at most ``win`` beyond those the receiver has.

    Raises:
        Refused: MALFORMED, if the bitmap does not fit the body.
    """
    entry = next((entry for entry in up.entries if entry.id == asked.id), None)
    if entry is None or not up.is_linked:
        return OutboxStep(up)
    worker = asked.to if isinstance(asked, GrantMessage) else None
    before = up.transfer if up.transfer and up.transfer.key == entry.key else None
    before = before or PendingTransfer(entry.key, b"")
    count = count_of(len(entry.body), up.chunk)
    have = frozenset(indices(asked.have, count))
    is_early = chance.now - before.left < SOONEST_GAP
    flying = before.sent if is_early and have == before.have else _still_flying(before, have)
    wanted = [i for i in range(count) if i not in have and i not in flying]
    going = wanted[: max(0, asked.win - len(flying))]
    left = chance.now if going else before.left
    transfer = replace(before, have=have, sent=(*flying, *going), left=left)
    quiet = chance.now + up.pace.base  # all sent and no answer: offer again
    answered = replace(entry, attempts=1)
    pieces = tuple(SendChunk(_chunk(entry, i, up.chunk), worker) for i in going)
    return OutboxStep(replace(_put(up, answered, quiet), transfer=transfer), pieces)


def _still_flying(before: PendingTransfer, have: frozenset[int]) -> tuple[int, ...]:
    """Return chunks that may still arrive; a chunk is lost once a later one has arrived.

    A report without a new chunk after the receiver's timeout means that no chunk is in flight. An
    earlier one crossed with the chunks and changes nothing.
    """
    if have <= before.have:
        return ()
    arrived = [n for n, i in enumerate(before.sent) if i in have]
    last = arrived[-1] if arrived else -1
    return tuple(i for n, i in enumerate(before.sent) if n > last and i not in have)


def _chunk(entry: OutboxEntry, i: int, size: int) -> ChunkMessage:
    data = entry.body[i * size : (i + 1) * size]
    return ChunkMessage(id=entry.id, i=i, life=entry.life, seq=entry.seq, blob=data)


def _settle(up: Outbox, receipt: ReceiptMessage, chance: StepInputs) -> OutboxStep:
    """Remove the entry that number and digest name; any code is final (rules D4, D7)."""
    key = (receipt.life, receipt.seq)
    entry = up.entry(key)
    if entry is None or entry.id != receipt.ref:
        return OutboxStep(up)
    rest = tuple(other for other in up.entries if other.key != key)
    transfer = None if up.transfer and up.transfer.key == key else up.transfer
    up = replace(up, entries=rest, transfer=transfer)
    note = EntrySettled(entry, receipt.code)
    closed_now = receipt.code == Reason.CLOSED and receipt.life == up.numbers.life
    turn = tick(up, chance)
    if receipt.code == Reason.FORK or (closed_now and up.greeting is None):
        turn = greet(up, chance)
    return replace(turn, notes=(note, *turn.notes))


_SILENT = frozenset(range(1, 7))  # caused by an error of this device: reported only
_FINAL_STOP = frozenset({Reason.TWO_LIVES, Reason.UPGRADE_REQUIRED, Reason.REVOKED})
_UNKNOWN_WAIT = 900.0


def _refused(up: Outbox, refusal: RefusalMessage, chance: StepInputs) -> OutboxStep:
    """Handle a refusal: wait as requested; some refusals need a further action."""
    wait = refusal.wait / 1000
    note = RefusalReceived(refusal.code, wait)
    if refusal.code in _SILENT:
        return OutboxStep(up, notes=(note,))
    if refusal.code in _FINAL_STOP:
        return OutboxStep(replace(up, stopped=Reason(refusal.code)), notes=(note,))
    if refusal.code == Reason.SAY_HELLO:
        if up.welcome is None:
            return OutboxStep(up, notes=(note,))
        return replace(greet(up, chance), notes=(note,))
    if refusal.code not in Reason.__members__.values():
        wait = max(wait, _UNKNOWN_WAIT)
    if up.greeting is not None and refusal.ref == up.greeting.ref:
        later = replace(up.greeting, due=chance.now + max(wait, up.pace.wait(1, chance.draw())))
        return OutboxStep(replace(up, greeting=later), notes=(note,))
    return OutboxStep(_postpone(up, refusal, wait, chance), notes=(note,))


def _postpone(up: Outbox, refusal: RefusalMessage, wait: float, chance: StepInputs) -> Outbox:
    """Postpone the refused entry; other entries may be sent."""
    names = {refusal.ref, refusal.id} - {None}
    asked = up.transfer is not None and up.transfer.asked in names
    for entry in up.entries:
        mine = up.transfer is not None and up.transfer.key == entry.key
        if entry.id in names or (mine and asked):
            backoff = wait or up.pace.wait(entry.attempts, chance.draw())
            transfer = None if mine else up.transfer
            return replace(_put(up, entry, chance.now + backoff), transfer=transfer)
    return up


def _put(up: Outbox, entry: OutboxEntry, due: float) -> Outbox:
    entries = tuple(entry if other.key == entry.key else other for other in up.entries)
    dues = {key: when for key, when in up.due if up.entry(key) is not None}
    return replace(up, entries=entries, due=tuple({**dues, entry.key: due}.items()))


def _due(up: Outbox, key: Key) -> float:
    return dict(up.due).get(key, float("-inf"))
