"""Define the messages to all devices: keys, bundle, common model with its parts, time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from edge_sdk.wire.protocol.messages.fields import (
    CHUNK_LIMIT,
    SINGLE_LIMIT,
    AuthorityCertificate,
    BodySize,
    Checkpoint,
    ChunkSize,
    Digest,
    Index,
    LogProof,
    Major,
    Moment,
    Ordinal,
    Pair,
    Piece,
    PublicKey,
    Ref,
    Release,
    Scalars,
    Share,
    Span,
    Text,
    Whole,
    Window,
    Word,
    Words,
)
from edge_sdk.wire.schema import Between, Length
from edge_sdk.wire.small_order import weakness

KeyList = Annotated[tuple[PublicKey, ...], Length(0, 8)]
AuthorityList = Annotated[tuple[AuthorityCertificate, ...], Length(0, 2)]


@dataclass(frozen=True, slots=True)
class KeysMessage:
    """Announce the aggregator's valid keys, signed by the root. Retained; replaces the old list."""

    kind: ClassVar[str] = "keys"
    serial: Ordinal  # rises with every announcement
    sign: Annotated[tuple[PublicKey, ...], Length(1, 8)]  # Ed25519 keys that may sign
    open: Annotated[tuple[PublicKey, ...], Length(0, 8)]  # X25519 keys bodies may be sealed to
    from_: Annotated[tuple[Moment, ...], Length(1, 8)]  # start of validity of each ``sign`` key
    until: Annotated[tuple[Moment, ...], Length(1, 8)]  # end of validity of each ``sign`` key
    min_wire: Major  # lowest major version that a device may use
    roots: KeyList = ()  # Ed25519 keys of the root from now on, which have signed this list too
    root_min: Annotated[int, Between(1, 8)] = 1  # number of them that have to sign
    bundle: KeyList = ()  # Ed25519 keys any of which may sign ``bundle`` and ``rollout`` too
    model: KeyList = ()  # those of ``sign`` that alone may sign models and their log; none: all
    ca: AuthorityList = ()  # authorities of TLS certificates, DER, the one that issues first

    def __post_init__(self) -> None:
        """Refuse lists of different lengths, unsafe keys, and roles without a key."""
        for key in (*self.roots, *self.bundle):
            if found := weakness(key):
                raise ValueError(f"the key {key.hex()} {found}")
        if len(set(self.roots)) != len(self.roots) or (
            self.roots and self.root_min > len(self.roots)
        ):
            raise ValueError("roots: expected at least root_min different keys")
        if not set(self.model) <= set(self.sign):
            raise ValueError("model: expected keys of sign")
        if not len(self.sign) == len(self.from_) == len(self.until):
            raise ValueError("sign, from and until must have the same length")
        for key in self.sign:
            if found := weakness(key):
                raise ValueError(f"sign: the key {key.hex()} {found}")


@dataclass(frozen=True, slots=True)
class BundleMessage:
    """Announce the fleet's model bundle and the run's settings, signed by the root. Retained."""

    kind: ClassVar[str] = "bundle"
    serial: Ordinal  # rises with every announcement
    name: Text  # the bundle's name
    version: Annotated[int, Between(1, 2**31 - 1)]  # the bundle's own version
    digest: Digest  # SHA-256 of the archive; its first 16 bytes are the ``id`` to ask for
    size: BodySize  # bytes of the archive
    spec: Ref  # layout digest of the shared vector
    sdk: Release  # oldest device software that can run it
    method: Word  # name of the learning method
    run: Ordinal  # training run this starts or continues
    shared: Annotated[tuple[Text, ...], Length(0, 32)]  # name prefixes of the shared layers
    seal: Words = ()  # kinds that must be sealed
    encs: Words = ("f4",)  # tensor encodings allowed in updates
    url: Annotated[str, Length(1, 512)] | None = None  # second location of the archive
    expires: Moment | None = None  # server time from which a device refuses it


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """Announce the common model; opens the round it names. Retained."""

    kind: ClassVar[str] = "model"
    serial: Ordinal  # rises with every announcement
    run: Ordinal  # training run
    round: Whole  # the round that is open
    version: Whole  # the model's version; rises only when a round moved it
    phase: Literal["train", "pause", "stop"]  # whether updates are wanted
    part: Word  # which vector the content is: shared
    spec: Ref  # layout digest of that vector
    enc: Word  # its tensor encoding
    digest: Digest  # SHA-256 of the content body; its first 16 bytes are the ``id`` of the parts
    size: BodySize  # bytes of the content body
    chunk: ChunkSize  # bytes of one part; the last is shorter
    until: Moment  # end of the round, server time
    spread: Span  # take part after a uniform wait of at most this long
    inline: Annotated[int, Between(0, CHUNK_LIMIT)]  # largest body sent unasked; 0 = always offer
    share: Share  # probability with which a device takes part
    vals: Scalars = field(default_factory=dict)  # the numbers of the task, as the contract names
    cohort: Ref | None = None  # salt of the draw that ``share`` decides
    deltas: Annotated[tuple[Pair, ...], Length(0, 8)] = ()  # (base version, first slot) of a step
    ahead: Window | None = None  # most chunks of an update sent with its first offer, ungranted
    single: Annotated[int, Between(1, SINGLE_LIMIT)] | None = None  # update in one message, unasked
    note: Checkpoint | None = None  # signed checkpoint of the log, with this manifest as last leaf
    path: LogProof = b""  # hashes that prove it
    step: Digest | None = None  # SHA-256 of the content body of a step from the version before
    step_size: BodySize | None = None  # bytes of the step's content body
    expires: Moment | None = None  # server time from which a device refuses it


@dataclass(frozen=True, slots=True)
class PartMessage:
    """One chunk of the common model's content, retained in slot ``i``."""

    kind: ClassVar[str] = "part"
    id: Ref  # first 16 bytes of the content's digest
    i: Index  # slot number, from 0
    blob: Piece = b""  # bytes [i * chunk, …) of the content body


@dataclass(frozen=True, slots=True)
class TimeMessage:
    """Server time, at intervals. May be replayed, so it only raises a clock's lower bound."""

    kind: ClassVar[str] = "time"
    serial: Ordinal  # rises with every announcement
    t: Moment  # server time now
