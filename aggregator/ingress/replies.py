"""Results of a handled message: sealed replies, journal entries and membership changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.registry import Registry
from aggregator.store.ledgers import Key, LedgerRow
from aggregator.store.store import Store
from aggregator.store.types import JournalEntry
from edge_sdk.app.clock import Clock
from edge_sdk.errors import Reason
from edge_sdk.protocol import envelope, messages, topics
from edge_sdk.protocol.contract import method
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.protocol.keys import Signer

NO_SPACE_WAIT = 60_000  # ms
LATER = 1_000  # ms
MENDED = 900_000  # ms; a retry before a fixed version runs meets the same defect

_WAITS = {
    Reason.NO_SPACE: NO_SPACE_WAIT,
    Reason.PAUSED: NO_SPACE_WAIT,
    Reason.QUOTA: NO_SPACE_WAIT,
    Reason.SAY_HELLO: 0,
    Reason.INTERNAL: MENDED,
}


class Reply(NamedTuple):
    """One message to publish; retained only if it is a slot of the common model."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True, slots=True)
class IngressResult:
    """Result of a message, which may now be acknowledged to the broker."""

    answers: tuple[Reply, ...] = ()  # replies to publish after the commit
    entries: tuple[JournalEntry, ...] = ()  # journalled updates for the round engine; at most one
    member: method.Member | None = None
    greeted: str | None = None  # device that sent an accepted hello; its open task is sent again
    # device whose accepted hello announced another encryption key than before
    rekeyed: str | None = None
    signal: method.Signal | None = None  # a complete transient signal, if any
    run: int = 0


@dataclass(frozen=True, slots=True)
class ReplySealer:
    """Sealer of the aggregator's messages to one fleet."""

    bodies: MessageBodies
    signer: Signer  # the aggregator's online key

    def seal(self, device: str, message: messages.ProtocolMessage, key: bytes = b"") -> Reply:
        """Sign a message, encrypted to the answered hello's key or the device's recorded one if there is one."""
        fleet = self.bodies.fleet  # of the configuration; no message contains it
        kind, body = self.bodies.encoded(device, message, key)
        payload = envelope.seal(
            body, kind=kind, sender=AGGREGATOR, recipient=device, fleet=fleet, signer=self.signer
        )
        return Reply(topics.down(fleet, device, kind), payload)

    def refuse(
        self,
        device: str,
        refusal: messages.RefusalMessage,
        refused: messages.ProtocolMessage | None,
    ) -> Reply:
        """Seal a refusal; that of a hello is encrypted to the key which the hello announces.

        A hello refused with CANNOT_OPEN announces a key to which nothing can be encrypted.
        """
        is_usable = (
            isinstance(refused, messages.HelloMessage) and refusal.code != Reason.CANNOT_OPEN
        )
        key = refused.key if isinstance(refused, messages.HelloMessage) and is_usable else b""
        return self.seal(device, refusal, key)

    def receipt(self, device: str, key: Key, row: LedgerRow) -> Reply:
        return self.seal(device, receipt(key, row))


def never_set_aside(_device: str, _digest: bytes) -> bool:
    """Return False: no body caused a defect before."""
    return False


@dataclass(frozen=True, slots=True)
class IngressParts:
    """Parts of the daemon that every part of the ingress uses."""

    store: Store
    registry: Registry
    sealer: ReplySealer
    clock: Clock  # wall time for welcomes, monotonic time for everything else
    # whether a body of this digest caused a defect
    is_set_aside: Callable[[str, bytes], bool] = never_set_aside
    counts: Counter[str] = field(default_factory=Counter)


def receipt(key: Key, row: LedgerRow) -> messages.ReceiptMessage:
    """Return the receipt of a settled number; run and round are set only if it counts.

    >>> said = receipt((2, 7), LedgerRow(bytes(32), Reason.LATE, run=1, round=4))
    >>> said.life, said.seq, said.run, said.round
    (2, 7, 0, 0)
    >>> receipt((2, 7), LedgerRow(bytes(32), Reason.ACCEPTED, run=1, round=4)).round
    4
    """
    life, seq = key
    is_counted = row.code == Reason.ACCEPTED
    return messages.ReceiptMessage(
        life=life,
        seq=seq,
        ref=envelope.ref(row.digest),
        code=row.code,
        run=row.run if is_counted else 0,
        round=row.round if is_counted else 0,
    )


def subject(
    sealed: Sealed | None, message: messages.ProtocolMessage | None
) -> tuple[bytes | None, bytes | None]:
    """Return the reference of a refused message, and the id of a refused transfer."""
    if isinstance(message, messages.OfferMessage):
        return None, envelope.ref(message.digest)
    if isinstance(message, (messages.ChunkMessage, messages.HaveMessage)):
        return None, message.id
    return (sealed.ref if sealed else None), None


def pause(reason: Reason) -> int:
    """Return the retry delay for a refused device, in milliseconds.

    >>> pause(Reason.SAY_HELLO), pause(Reason.NO_SPACE), pause(Reason.MALFORMED)
    (0, 60000, 1000)
    """
    return _WAITS.get(reason, LATER)
