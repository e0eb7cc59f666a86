"""Results of a handled message: sealed replies, journal entries and membership changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aggregator.ingress.device_keys import EXEMPT, DeviceKeys
from aggregator.store.sequence_ledger import Key, LedgerRow
from aggregator.store.types import JournalEntry
from edge_sdk.wire.contract import method
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol import codec, envelope, topics
from edge_sdk.wire.protocol.encrypted_body import BodyContext, encrypted_body
from edge_sdk.wire.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.wire.protocol.messages import (
    ChunkMessage,
    HaveMessage,
    HelloMessage,
    Message,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
)

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
    """Result of a message, which may now be acknowledged to the broker.

    Attributes:
        answers: Replies to publish after the commit.
        entries: Journalled updates for the round engine; at most one.
        member: Membership change, if any.
        greeted: Device that sent an accepted hello; its open task is sent again.
        rekeyed: Device whose accepted hello announced another encryption key than before.
        signal: A complete transient signal, if any.
        run: Number of the run of the signal.
    """

    answers: tuple[Reply, ...] = ()
    entries: tuple[JournalEntry, ...] = ()
    member: method.Member | None = None
    greeted: str | None = None
    rekeyed: str | None = None
    signal: method.Signal | None = None
    run: int = 0


@dataclass(frozen=True, slots=True)
class ReplySealer:
    """Sealer of the aggregator's messages to one fleet.

    Attributes:
        fleet: Id of the fleet, from the configuration; no message contains it.
        signer: The aggregator's online key.
        encryption: The devices' encryption keys.
    """

    fleet: str
    signer: Signer
    encryption: DeviceKeys

    def seal(self, device: str, message: Message, key: bytes = b"") -> Reply:
        """Encrypt a message for one device if its key is known, and sign it.

        Where keys are required, a device without a key is asked for a hello instead.

        Args:
            device: Id of the device.
            message: The message.
            key: X25519 key of the hello that is answered; empty: the recorded one.
        """
        public = key or self.encryption.of(device)
        is_clear = public is None and message.kind not in EXEMPT
        if is_clear and self.encryption.are_required:
            message = RefusalMessage(Reason.SAY_HELLO, 0)
        body = codec.encode(message)
        if public is not None:
            context = BodyContext(self.fleet, message.kind, AGGREGATOR, device)
            body = encrypted_body(body, public, context)
        payload = envelope.seal(
            body,
            kind=message.kind,
            sender=AGGREGATOR,
            recipient=device,
            fleet=self.fleet,
            signer=self.signer,
        )
        return Reply(topics.down(self.fleet, device, message.kind), payload)

    def refuse(self, device: str, refusal: RefusalMessage, refused: Message | None) -> Reply:
        """Seal a refusal; that of a hello is encrypted to the key which the hello announces.

        A hello refused with CANNOT_OPEN announces a key to which nothing can be encrypted.
        """
        is_usable = isinstance(refused, HelloMessage) and refusal.code != Reason.CANNOT_OPEN
        key = refused.key if isinstance(refused, HelloMessage) and is_usable else b""
        return self.seal(device, refusal, key)

    def receipt(self, device: str, key: Key, row: LedgerRow) -> Reply:
        """Seal the receipt of a settled number."""
        return self.seal(device, receipt(key, row))


def receipt(key: Key, row: LedgerRow) -> ReceiptMessage:
    """Return the receipt of a settled number; run and round are set only if it counts.

    Example:
        >>> said = receipt((2, 7), LedgerRow(bytes(32), Reason.LATE, run=1, round=4))
        >>> said.life, said.seq, said.run, said.round
        (2, 7, 0, 0)
        >>> receipt((2, 7), LedgerRow(bytes(32), Reason.ACCEPTED, run=1, round=4)).round
        4
    """
    life, seq = key
    is_counted = row.code == Reason.ACCEPTED
    return ReceiptMessage(
        life=life,
        seq=seq,
        ref=envelope.ref(row.digest),
        code=row.code,
        run=row.run if is_counted else 0,
        round=row.round if is_counted else 0,
    )


def subject(sealed: Sealed | None, message: Message | None) -> tuple[bytes | None, bytes | None]:
    """Return the reference of a refused message, and the id of a refused transfer."""
    if isinstance(message, OfferMessage):
        return None, envelope.ref(message.digest)
    if isinstance(message, (ChunkMessage, HaveMessage)):
        return None, message.id
    return (sealed.ref if sealed else None), None


def pause(reason: Reason) -> int:
    """Return the retry delay for a refused device, in milliseconds.

    >>> pause(Reason.SAY_HELLO), pause(Reason.NO_SPACE), pause(Reason.MALFORMED)
    (0, 60000, 1000)
    """
    return _WAITS.get(reason, LATER)
