"""Define an update and its transfer: offers, grants, chunks, receipts and refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from edge_sdk.wire.protocol.messages.fields import (
    U32,
    Bitmap,
    BodySize,
    ChunkSize,
    Claims,
    Code,
    Digest,
    Index,
    Ordinal,
    Piece,
    Proof,
    Ref,
    Releases,
    Span,
    Wait,
    Whole,
    Window,
    Word,
)
from edge_sdk.wire.schema import Length


@dataclass(frozen=True, slots=True)
class OfferMessage:
    """Offer a large body or one sent before; ask whether to send it, or whether it is settled."""

    kind: ClassVar[str] = "offer"
    of: Word  # kind of the offered message
    digest: Digest  # SHA-256 of the offered body
    size: BodySize  # its bytes
    chunk: ChunkSize  # bytes of one chunk; the last is shorter
    sig: Proof  # the proof of the whole offered message
    run: Ordinal  # as in the offered header, like all fields below
    round: Whole  # round the body answers
    base: Whole  # model version it started from
    spec: Ref  # layout digest of its vector
    life: Ordinal  # life of its number
    seq: Ordinal  # sequence number within the life
    spent: Releases  # releases charged, this one included
    ahead: Window | None = None  # chunks that follow without a grant: all of them


@dataclass(frozen=True, slots=True)
class GrantMessage:
    """Request the missing chunks; a repeated grant is a progress report."""

    kind: ClassVar[str] = "grant"
    id: Ref  # first 16 bytes of the offered digest
    have: Bitmap  # bit i of byte i // 8, least significant first: chunk i has arrived
    win: Window  # chunks that may be in flight
    keep: Span  # how long the reservation lasts without a new chunk
    to: Word | None = None  # worker whose topic the chunks go to


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """One piece of an offered or requested body."""

    kind: ClassVar[str] = "chunk"
    id: Ref  # first 16 bytes of the whole body's digest
    i: Index  # which chunk, from 0
    life: Ordinal | None = None  # life of the update it belongs to (from a device)
    seq: Ordinal | None = None  # sequence number of that update
    blob: Piece = b""  # bytes [i * chunk, …) of the body


@dataclass(frozen=True, slots=True)
class HaveMessage:
    """Report the chunks received and request the rest; from a device, a request."""

    kind: ClassVar[str] = "have"
    id: Ref  # first 16 bytes of the digest of the wanted body
    have: Bitmap  # as in grant; empty = nothing yet
    win: Window  # chunks that may be in flight


@dataclass(frozen=True, slots=True)
class ReceiptMessage:
    """Confirm a committed entry; settles it for good, whatever the code."""

    kind: ClassVar[str] = "receipt"
    life: Whole  # number of the entry; 0 for a command
    seq: Ordinal  # sequence number of the entry, or number of the command
    ref: Ref  # first 16 bytes of the entry's digest; must match the entry
    code: Code  # 0, or the final reason
    run: Whole  # run in which it was counted; 0 for none
    round: Whole  # round in which it was counted; 0 for none


@dataclass(frozen=True, slots=True)
class RefusalMessage:
    """Refuse a message, unrecorded; the sender waits and retries. Carries ``ref`` or ``id``."""

    kind: ClassVar[str] = "refusal"
    code: Code  # reason
    wait: Wait  # shortest time before the next attempt
    ref: Ref | None = None  # first 16 bytes of the refused message's digest
    id: Ref | None = None  # first 16 bytes of the digest of the refused transfer


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """One client's answer to a round: numbered, kept until its receipt, counted once."""

    kind: ClassVar[str] = "update"
    run: Ordinal  # training run
    round: Whole  # the round it answers
    base: Whole  # model version the training started from
    life: Ordinal  # ledger session, never reused for other bytes
    seq: Ordinal  # 1, 2, 3 … within a life; gaps are allowed
    spent: Releases  # releases charged, this one included
    spec: Ref  # layout digest of the vector
    part: Word  # kind of the vector: delta (received minus trained), weights, grad, sign, q
    enc: Word  # tensor encoding of the blob
    n: Whole  # training samples, as claimed
    vals: Claims = field(default_factory=dict)  # the numbers of the answer, as the contract names
    check: Annotated[bytes, Length(8, 8)] | None = None  # hash of a vector that both ends hold
    flags: U32 | None = None  # 1 personal layers were reset, 2 clock not synchronised
    blob: bytes = b""  # the vector
