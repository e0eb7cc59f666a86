"""Implement the durable outbox as a pure machine: lives, entries, offers, chunks.

A frozen ``Outbox`` and an event are the input; the next ``Outbox`` and the messages to send are the
output. The shell saves ``numbers`` and ``entries`` before it sends (`PROTOCOL.md`, 9).
Times are monotonic seconds; draws are in ``StepInputs``.
"""

from __future__ import annotations

from dataclasses import field, replace

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol import outbox_state as state
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import digest, ref


@dataclass(frozen=True, slots=True)
class Outbox:
    """State of the outbox. ``numbers`` and ``entries`` are persistent."""

    numbers: state.UplinkCounters = field(default_factory=state.UplinkCounters)
    entries: tuple[state.OutboxEntry, ...] = ()
    conn: int = 0
    sdk: str = "0"
    retry: state.RetryPolicy = field(default_factory=state.RetryPolicy)
    is_linked: bool = False
    hello: state.PendingHello | None = None
    welcome: m.WelcomeMessage | None = None
    inline: int = 0
    ahead: int = 0  # most chunks that may follow a first offer without a grant
    single: int = 0  # largest body that may go in one message, beyond ``inline``
    chunk: int = m.CHUNK_LIMIT
    largest: int = m.CHUNK_LIMIT  # body that the link carries in one message
    due: tuple[tuple[state.Key, float], ...] = ()  # when each entry is tried next
    transfer: state.PendingTransfer | None = None
    stopped: Reason | None = None  # reason why this process has stopped releasing
    is_counted: bool = False  # whether ``spent`` is known although the store is new

    @property
    def is_ready(self) -> bool:
        return self.welcome is not None and self.hello is None and self.stopped is None

    @property
    def may_release(self) -> bool:
        """Return whether one more numbered entry may be made now (rule D2)."""
        return self.is_ready and self.welcome is not None and len(self.entries) < self.welcome.hold

    def entry(self, key: state.Key) -> state.OutboxEntry | None:
        return next((entry for entry in self.entries if entry.key == key), None)


@dataclass(frozen=True, slots=True)
class OutboxStep:
    """Result of one event: the next state, the messages to send after saving it, the notes."""

    outbox: Outbox
    messages: tuple[state.OutgoingMessage, ...] = ()
    notes: tuple[state.Note, ...] = ()


# --- events ----------------------------------------------------------------------------------------


def propose_life(outbox: Outbox, inputs: state.StepInputs, *, above: int = 0) -> OutboxStep:
    """Propose a new ledger session: a number never used before, bound by a nonce (rule D5)."""
    numbers = replace(outbox.numbers, life=min(max(outbox.numbers.life, above) + 1, m.LARGEST))
    hello = m.HelloMessage(
        life=numbers.life,
        nonce=inputs.nonce(),
        spent=numbers.spent,
        lost=numbers.lost and not outbox.is_counted,
        open=tuple(entry.key for entry in outbox.entries[:8]),
        wire=(m.WIRE, m.WIRE),
        caps=state.CAPS,
        sdk=outbox.sdk,
        conn=outbox.conn,
        **inputs.stated,
    )
    fresh = replace(
        outbox,
        numbers=numbers,
        hello=state.PendingHello(hello, inputs.now),
        welcome=None,
        transfer=None,
        due=(),
    )
    return tick(fresh, inputs)


def linked(outbox: Outbox, inputs: state.StepInputs, *, max_payload: int, conn: int) -> OutboxStep:
    """Handle a new connection: send hello if none was, else continue."""
    unusable = outbox.stopped == Reason.UNUSABLE_LINK
    stopped: Reason | None = None if unusable else outbox.stopped
    chunk = outbox.chunk
    try:
        chunk = m.chunk_size(max_payload)
    except Refused as refused:
        stopped = refused.reason
    outbox = replace(
        outbox,
        is_linked=True,
        chunk=chunk,
        largest=max_payload - m.ENVELOPE_LIMIT,
        stopped=stopped,
        conn=conn,
        transfer=None,
        due=(),
    )
    if outbox.hello is None and outbox.welcome is None:
        return propose_life(outbox, inputs)
    if outbox.hello is not None:
        outbox = replace(outbox, hello=replace(outbox.hello, due=inputs.now))
    return tick(outbox, inputs)


def unlinked(outbox: Outbox) -> Outbox:
    """Handle a lost connection: nothing is sent."""
    return replace(outbox, is_linked=False, transfer=None)


def release(outbox: Outbox, entry: state.OutboxEntry, inputs: state.StepInputs) -> OutboxStep:
    """Add a new entry; its first send follows at once if the link is up."""
    numbers = replace(outbox.numbers, seq=entry.seq, spent=entry.spent)
    return tick(replace(outbox, numbers=numbers, entries=(*outbox.entries, entry)), inputs)


def receive(
    outbox: Outbox,
    message: m.WelcomeMessage
    | m.FloorMessage
    | m.GrantMessage
    | m.HaveMessage
    | m.ReceiptMessage
    | m.RefusalMessage,
    inputs: state.StepInputs,
) -> OutboxStep:
    """Process a message from the aggregator.

    Raises:
        Refused: MALFORMED: a bitmap of the wrong size; the state is unchanged.
    """
    match message:
        case m.WelcomeMessage():
            return _welcomed(outbox, message, inputs)
        case m.FloorMessage():
            is_current = outbox.hello is not None and message.hello == outbox.hello.ref
            return (
                propose_life(outbox, inputs, above=message.life)
                if is_current
                else OutboxStep(outbox)
            )
        case m.GrantMessage() | m.HaveMessage():
            return _send_chunks(outbox, message, inputs)
        case m.ReceiptMessage():
            return _settled(outbox, message, inputs)
    return _refused(outbox, message, inputs)


def tick(outbox: Outbox, inputs: state.StepInputs) -> OutboxStep:
    """Send the messages that are due: hello first, then one offer at a time, oldest entry first."""
    if not outbox.is_linked:
        return OutboxStep(outbox)
    if outbox.hello is not None:
        return _repeat_hello(outbox, outbox.hello, inputs)
    if not outbox.is_ready:
        return OutboxStep(outbox)
    messages: list[state.OutgoingMessage] = []
    for entry in outbox.entries:
        if _due(outbox, entry.key) > inputs.now:
            continue
        outbox, sent = _attempt(outbox, entry, inputs)
        messages += sent
    return OutboxStep(outbox, tuple(messages))


def next_due(outbox: Outbox) -> float | None:
    """Return when ``tick`` is due next, or None if only an event can change that."""
    if not outbox.is_linked or outbox.stopped is not None:
        return None
    if outbox.hello is not None:
        return outbox.hello.due
    return min(
        (_due(outbox, e.key) for e in outbox.entries if not _must_queue(outbox, e)), default=None
    )


# --- implementation --------------------------------------------------------------------------------


def _repeat_hello(
    outbox: Outbox, hello: state.PendingHello, inputs: state.StepInputs
) -> OutboxStep:
    if hello.due > inputs.now or outbox.stopped is not None:
        return OutboxStep(outbox)
    attempts = hello.attempts + 1
    due = inputs.now + outbox.retry.wait(attempts, inputs.draw())
    again = replace(hello, attempts=attempts, due=due)
    return OutboxStep(replace(outbox, hello=again), (hello.hello,))


def _welcomed(outbox: Outbox, welcome: m.WelcomeMessage, inputs: state.StepInputs) -> OutboxStep:
    """Accept only the first answer to the present nonce; a second one would reset ``seq``."""
    if outbox.hello is None or welcome.hello != outbox.hello.ref:
        return OutboxStep(outbox)
    if welcome.life != outbox.numbers.life:
        return OutboxStep(outbox)
    spent = max(outbox.numbers.spent, welcome.spent)
    numbers = replace(outbox.numbers, seq=0, spent=spent, lost=False)
    ready = replace(
        outbox, numbers=numbers, hello=None, welcome=welcome, inline=welcome.inline, due=()
    )
    return tick(ready, inputs)


def _attempt(
    outbox: Outbox, entry: state.OutboxEntry, inputs: state.StepInputs
) -> tuple[Outbox, tuple[state.OutgoingMessage, ...]]:
    """Send one entry: whole on the first attempt if it fits, as an offer afterwards (rule D3).

    All its chunks follow the first offer if the open round grants them ahead.
    """
    attempts = entry.attempts + 1
    tried = replace(entry, attempts=attempts)
    due = inputs.now + outbox.retry.wait(attempts, inputs.draw())
    if _must_queue(outbox, entry):
        return outbox, ()
    if _goes_whole(outbox, entry):
        return _with_entry(outbox, tried, due), (state.SendWhole(tried),)
    count = m.count_of(len(entry.body), outbox.chunk)
    is_granted = entry.attempts == 0 and count <= outbox.ahead
    offer = entry.offer(outbox.chunk, ahead=count if is_granted else None)
    transfer = state.PendingTransfer(entry.key, ref(digest(encode(offer))))
    if not is_granted:
        return replace(_with_entry(outbox, tried, due), transfer=transfer), (offer,)
    transfer = replace(transfer, sent=tuple(range(count)))  # a grant means that none was taken
    chunks = (state.SendChunk(_chunk(entry, i, outbox.chunk)) for i in range(count))
    sent = _with_entry(outbox, tried, inputs.now + outbox.retry.base)
    return replace(sent, transfer=transfer), (offer, *chunks)


def _goes_whole(outbox: Outbox, entry: state.OutboxEntry) -> bool:
    """Return whether an entry is sent in one message, unasked: never twice (rule D3)."""
    inline, single = min(outbox.inline, outbox.chunk), min(outbox.single, outbox.largest)
    return entry.attempts == 0 and len(entry.body) <= max(inline, single)


def _must_queue(outbox: Outbox, entry: state.OutboxEntry) -> bool:
    busy = outbox.transfer is not None and outbox.transfer.key != entry.key
    return busy and not _goes_whole(outbox, entry)


def _send_chunks(
    outbox: Outbox, request: m.GrantMessage | m.HaveMessage, inputs: state.StepInputs
) -> OutboxStep:
    """Send the missing chunks, at most ``win`` beyond those the receiver has."""
    entry = next((entry for entry in outbox.entries if entry.id == request.id), None)
    if entry is None or not outbox.is_linked:
        return OutboxStep(outbox)
    worker = request.to if isinstance(request, m.GrantMessage) else None
    before = outbox.transfer if outbox.transfer and outbox.transfer.key == entry.key else None
    before = before or state.PendingTransfer(entry.key, b"")
    count = m.count_of(len(entry.body), outbox.chunk)
    transfer, next_chunks = before.asked(request, count, inputs.now)
    retry_at = inputs.now + outbox.retry.base  # all sent and no answer: offer again
    answered = replace(entry, attempts=1)
    pieces = tuple(state.SendChunk(_chunk(entry, i, outbox.chunk), worker) for i in next_chunks)
    return OutboxStep(replace(_with_entry(outbox, answered, retry_at), transfer=transfer), pieces)


def _chunk(entry: state.OutboxEntry, i: int, size: int) -> m.ChunkMessage:
    data = entry.body[i * size : (i + 1) * size]
    return m.ChunkMessage(id=entry.id, i=i, life=entry.life, seq=entry.seq, blob=data)


def _settled(outbox: Outbox, receipt: m.ReceiptMessage, inputs: state.StepInputs) -> OutboxStep:
    """Remove the entry that number and digest name; any code is final (rules D4, D7)."""
    key = (receipt.life, receipt.seq)
    entry = outbox.entry(key)
    if entry is None or entry.id != receipt.ref:
        return OutboxStep(outbox)
    return _removed(outbox, entry, receipt.code, inputs)


def _removed(
    outbox: Outbox, entry: state.OutboxEntry, code: int, inputs: state.StepInputs
) -> OutboxStep:
    rest = tuple(other for other in outbox.entries if other.key != entry.key)
    transfer = None if outbox.transfer and outbox.transfer.key == entry.key else outbox.transfer
    outbox = replace(outbox, entries=rest, transfer=transfer)
    closed_now = code == Reason.CLOSED and entry.life == outbox.numbers.life
    turn = tick(outbox, inputs)
    if code == Reason.FORK or (closed_now and outbox.hello is None):
        turn = propose_life(outbox, inputs)
    return replace(turn, notes=(state.EntrySettled(entry, code), *turn.notes))


_SILENT = frozenset(range(1, 7))  # caused by an error of this device: reported only
_FINAL_STOP = frozenset({Reason.TWO_LIVES, Reason.UPGRADE_REQUIRED, Reason.REVOKED})
_UNREADABLE = frozenset({Reason.CANNOT_OPEN, Reason.PLAIN_REFUSED})  # the bytes never change
_UNKNOWN_WAIT = 900.0


def _refused(outbox: Outbox, refusal: m.RefusalMessage, inputs: state.StepInputs) -> OutboxStep:
    """Handle a refusal: wait as requested; some refusals need a further action."""
    wait = refusal.wait / 1000
    note = state.RefusalReceived(refusal.code, wait)
    is_early = refusal.code == Reason.SAY_HELLO and outbox.welcome is None
    if refusal.code in _SILENT or is_early:
        return OutboxStep(outbox, notes=(note,))
    if refusal.code in _FINAL_STOP:
        return OutboxStep(replace(outbox, stopped=Reason(refusal.code)), notes=(note,))
    if refusal.code == Reason.SAY_HELLO:
        return replace(propose_life(outbox, inputs), notes=(note,))
    if refusal.code not in Reason.__members__.values():
        wait = max(wait, _UNKNOWN_WAIT)
    if refusal.code in _UNREADABLE and (entry := _refused_entry(outbox, refusal)) is not None:
        return _removed(outbox, entry, refusal.code, inputs)
    if outbox.hello is not None and refusal.ref == outbox.hello.ref:
        later = replace(
            outbox.hello, due=inputs.now + max(wait, outbox.retry.wait(1, inputs.draw()))
        )
        return OutboxStep(replace(outbox, hello=later), notes=(note,))
    return OutboxStep(_postpone(outbox, refusal, wait, inputs), notes=(note,))


def _postpone(
    outbox: Outbox, refusal: m.RefusalMessage, wait: float, inputs: state.StepInputs
) -> Outbox:
    entry = _refused_entry(outbox, refusal)
    if entry is None:
        return outbox
    backoff = wait or outbox.retry.wait(entry.attempts, inputs.draw())
    transfer = None if outbox.transfer and outbox.transfer.key == entry.key else outbox.transfer
    return replace(_with_entry(outbox, entry, inputs.now + backoff), transfer=transfer)


def _refused_entry(outbox: Outbox, refusal: m.RefusalMessage) -> state.OutboxEntry | None:
    names = {refusal.ref, refusal.id} - {None}
    transfer = outbox.transfer
    offered = transfer.key if transfer is not None and transfer.offer_ref in names else None
    return next((one for one in outbox.entries if one.id in names or one.key == offered), None)


def _with_entry(outbox: Outbox, entry: state.OutboxEntry, due: float) -> Outbox:
    entries = tuple(entry if other.key == entry.key else other for other in outbox.entries)
    dues = {key: when for key, when in outbox.due if outbox.entry(key) is not None}
    return replace(outbox, entries=entries, due=tuple({**dues, entry.key: due}.items()))


def _due(outbox: Outbox, key: state.Key) -> float:
    return dict(outbox.due).get(key, float("-inf"))
