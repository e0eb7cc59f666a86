"""Define the parts of an outbox: counters, entries, pending messages, effects and notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.codec import ENCODINGS, encode
from edge_sdk.protocol.envelope import AGGREGATOR, digest, prove, ref
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.messages import (
    ChunkMessage,
    GrantMessage,
    HaveMessage,
    HelloMessage,
    OfferMessage,
    UpdateMessage,
)

CAPS = tuple(enc for enc in ("b1", "b2", "q8", "q4") if enc in ENCODINGS)
"""Optional abilities of a device: tensor encodings of signs, and quantised ones."""

Key = tuple[int, int]
"""``(life, seq)``: the number of an outbox entry."""


@dataclass(frozen=True, slots=True)
class UplinkCounters:
    """Counters that are never reused; saved before a message with them is sent."""

    life: int = 0  # highest ledger session ever proposed
    seq: int = 0  # last sequence number assigned within it
    spent: int = 0  # number of releases charged so far
    lost: bool = True  # whether the store is new and the aggregator's welcome is still missing


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

    @classmethod
    def sealed(
        cls,
        message: UpdateMessage,
        *,
        fleet: str,
        sender: str,
        signer: Signer,
        encrypt: Callable[[bytes], bytes] = bytes,
    ) -> OutboxEntry:
        """Encode and sign an update; ``encrypt`` returns the body that is sent from a clear one."""
        body = encrypt(encode(message))
        proof = prove(
            digest(body),
            kind=message.kind,
            sender=sender,
            recipient=AGGREGATOR,
            fleet=fleet,
            signer=signer,
        )
        return cls(
            life=message.life,
            seq=message.seq,
            body=body,
            proof=proof,
            run=message.run,
            round=message.round,
            base=message.base,
            spec=message.spec,
            spent=message.spent,
        )

    @property
    def key(self) -> Key:
        return self.life, self.seq

    @cached_property
    def digest(self) -> bytes:
        """Return the SHA-256 of the body."""
        return digest(self.body)

    @property
    def id(self) -> bytes:
        """Return the 16 bytes that name the body in grants, chunks and receipts."""
        return ref(self.digest)

    def offer(self, chunk: int, *, ahead: int | None = None) -> OfferMessage:
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
            ahead=ahead,
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
    """External inputs of one step: a uniform draw, a nonce, the present time, a hello's content."""

    draw: Callable[[], float]
    nonce: Callable[[], bytes]  # 16 unpredictable bytes
    now: float
    stated: Mapping[str, bytes] = field(default_factory=dict)  # further fields of a hello


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
    offer_ref: bytes  # reference of the offer: a refusal may name it
    have: frozenset[int] = frozenset()
    sent: tuple[int, ...] = ()  # in sending order, without the chunks that arrived
    sent_at: float = float("-inf")  # when chunks were sent last

    def in_flight(self, have: frozenset[int]) -> tuple[int, ...]:
        """Return chunks that may still arrive; a chunk is lost once a later one has arrived.

        A report without a new chunk after the receiver's timeout means that no chunk is in flight. An
        earlier one crossed with the chunks and changes nothing.
        """
        if have <= self.have:
            return ()
        arrived = [n for n, i in enumerate(self.sent) if i in have]
        last = arrived[-1] if arrived else -1
        return tuple(i for n, i in enumerate(self.sent) if n > last and i not in have)

    def asked(
        self, request: GrantMessage | HaveMessage, count: int, now: float
    ) -> tuple[PendingTransfer, tuple[int, ...]]:
        """Return the transfer after a report, and the chunks to send: at most ``win`` beyond those that arrived.

        Args:
            count: Number of chunks of the body.

        Raises:
            Refused: MALFORMED: a bitmap of the wrong size.
        """
        from edge_sdk.protocol.transfer import FIRST_GAP, indices  # noqa: PLC0415 - with the first grant

        have = frozenset(indices(request.have, count))
        is_early = now - self.sent_at < FIRST_GAP / 2  # no receiver reports a gap sooner
        in_flight = self.sent if is_early and have == self.have else self.in_flight(have)
        missing = [i for i in range(count) if i not in have and i not in in_flight]
        chosen = tuple(missing[: max(0, request.win - len(in_flight))])
        at = now if chosen else self.sent_at
        return replace(self, have=have, sent=(*in_flight, *chosen), sent_at=at), chosen


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
    """A note: an entry is settled permanently; ``code`` 0 means it counts."""

    entry: OutboxEntry
    code: int


@dataclass(frozen=True, slots=True)
class RefusalReceived:
    """A note: a refusal that an operator should see."""

    code: int
    wait: float


OutgoingMessage = HelloMessage | OfferMessage | SendWhole | SendChunk
Note = EntrySettled | RefusalReceived
