"""Record every release that a device sent and every receipt that it received, one line each.

A simulator or a test writes the trace at the link, outside the code under test. A release is
recorded before its first byte is sent; a receipt before the device processes it. After a ``kill
-9`` the trace therefore contains at least all releases that were sent, and at least all receipts
that the device may have acted on. ``delivery_audit`` compares it with the aggregator's database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edge_sdk.errors import Refused
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.envelope import AGGREGATOR, KeyOf, digest, ref, unseal
from edge_sdk.protocol.messages import ChunkMessage, OfferMessage, ReceiptMessage, UpdateMessage

Number = tuple[str, int, int]
"""``(device, life, seq)``: the permanent identity of one release."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One release that was sent, whole or as an offer; a repeat is another line."""

    device: str
    life: int  # ledger session of the release
    seq: int  # number of the release within the session
    digest: str  # SHA-256 of the body, 64 hex digits
    run: int  # run that the release answers
    round: int  # round that the release answers
    spent: int  # number of releases the device had charged
    # ``codec.vector_digest`` of the release's vector; empty for an offer, which carries none
    vector: str = ""
    at: float = 0.0  # Unix seconds by the observer's clock

    @property
    def number(self) -> Number:
        return self.device, self.life, self.seq


@dataclass(frozen=True, slots=True)
class Receipted:
    """One receipt that was received, with the aggregator's own signature."""

    device: str  # id of the receiving device
    life: int  # as in ``Sent``
    seq: int  # as in ``Sent``
    ref: str  # first 16 bytes of the digest it is for, 32 hex digits
    code: int  # 0, or the reason why the release does not count
    at: float = 0.0  # Unix seconds by the observer's clock

    @property
    def number(self) -> Number:
        return self.device, self.life, self.seq


Line = Sent | Receipted


class PublishedBodies:
    """Reader of one device's publications, which reassembles the chunks of an offered body."""

    def __init__(self, key_of: KeyOf) -> None:
        """Start without an offer; ``key_of`` returns the device's own public key."""
        self._key_of = key_of
        self._offered: dict[bytes, tuple[Sent, int]] = {}
        self._pieces: dict[bytes, dict[int, bytes]] = {}

    def left(self, topic: str, payload: bytes, at: float) -> Sent | None:
        """Read a message before it is published; return None unless it completes a release.

        An offer is recorded without its vector; the last missing chunk is recorded with it.

        Args:
            at: Unix seconds.
        """
        where = topics.parse(topic)
        if where is None or where.direction != "up" or where.kind not in _RELEASES:
            return None
        try:
            proved = unseal(
                payload,
                kind=where.kind,
                sender=where.id,
                recipient=AGGREGATOR,
                fleet=where.fleet,
                key_of=self._key_of,
            )
            message = codec.decode(where.kind, proved.body)
        except Refused:  # corrupted on purpose: not a release
            return None
        if isinstance(message, ChunkMessage):
            return self._assembled(message, at)
        if isinstance(message, UpdateMessage):
            return _sent(where.id, message, digest(proved.body), at)
        return self._offer_of(where.id, message, at) if isinstance(message, OfferMessage) else None

    def _offer_of(self, device: str, message: OfferMessage, at: float) -> Sent | None:
        if message.of != "update":
            return None
        name = message.digest.hex()
        sent = Sent(
            device,
            message.life,
            message.seq,
            name,
            message.run,
            message.round,
            message.spent,
            at=at,
        )
        self._offered = {ref(message.digest): (sent, message.size)}  # one transfer at a time
        self._pieces = {i: kept for i, kept in self._pieces.items() if i in self._offered}
        return sent

    def _assembled(self, message: ChunkMessage, at: float) -> Sent | None:
        offered = self._offered.get(message.id)
        if offered is None:
            return None
        sent, size = offered
        pieces = self._pieces.setdefault(message.id, {})
        pieces[message.i] = message.blob
        if sum(map(len, pieces.values())) != size:
            return None
        body = b"".join(blob for _, blob in sorted(self._pieces.pop(message.id).items()))
        return _sent(sent.device, codec.decode(UpdateMessage, body), digest(body), at)


_RELEASES = frozenset({"update", "offer", "chunk"})


def _sent(device: str, message: UpdateMessage, whole: bytes, at: float) -> Sent:
    numbers = message.life, message.seq, whole.hex(), message.run, message.round, message.spent
    return Sent(device, *numbers, _vector(message), at)


def came(topic: str, payload: bytes, *, key_of: KeyOf, at: float) -> Receipted | None:
    """Read a message that a device received; return None for everything but a verified receipt.

    A command's receipt has life 0 and goes from device to aggregator; it is not included.
    """
    where = topics.parse(topic)
    if where is None or where.direction != "down" or where.kind != "receipt":
        return None
    try:
        proved = unseal(
            payload,
            kind="receipt",
            sender=AGGREGATOR,
            recipient=where.id,
            fleet=where.fleet,
            key_of=key_of,
        )
        message = codec.decode(ReceiptMessage, proved.body)
    except Refused:
        return None
    return Receipted(where.id, message.life, message.seq, message.ref.hex(), message.code, at)


def _vector(update: UpdateMessage) -> str:
    if update.enc != "f4":
        return ""
    try:
        return codec.vector_digest(codec.unpack_tensor(update.blob, "f4", len(update.blob) // 4))
    except Refused:
        return ""


def written(line: Line) -> str:
    kind = "sent" if isinstance(line, Sent) else "receipted"
    return json.dumps({"kind": kind, **asdict(line)}, separators=(",", ":")) + "\n"


def read(lines: Iterable[str]) -> Iterator[Line]:
    """Read records back; a line truncated by a crash is skipped.

    >>> line = Receipted("m", 1, 2, "00" * 16, 0)
    >>> list(read([written(line), written(line)[:20]])) == [line]
    True
    """
    for text in lines:
        if not text.endswith("\n"):
            continue
        table: dict[str, Any] = json.loads(text)
        kind = table.pop("kind")
        yield Sent(**table) if kind == "sent" else Receipted(**table)
