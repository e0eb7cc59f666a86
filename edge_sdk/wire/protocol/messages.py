"""What is said: one frozen dataclass per message kind, one sentence per field.

Field names are the header keys of the wire (``from_`` is ``from``). Times are server time in Unix
milliseconds, durations milliseconds, sizes bytes. A field with a default may be left out on the
wire. ``blob`` is not a header key but the body's second element. Every number has a bound, far
inside what SQLite, a double and a date can hold, so that no sum of a few of them overflows.
Types narrow what ``codec.decode`` accepts; what is *wise* to accept is for ``admit`` to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from edge_sdk.wire.protocol.array_fragments import DIMENSIONS, check
from edge_sdk.wire.schema import Between, Length
from edge_sdk.wire.small_order import weakness

WIRE = 1
"""Major version of the protocol: topic level 1 and the envelope's first element."""

CLEAR = 0x92  # first byte of a clear body: an array of two
SEALED = 0x94  # first byte of a sealed body: an array of four

LARGEST = 2**53 - 1  # the largest counter: a double holds it exactly, a signed 64-bit column too
RELEASES_LIMIT = 2**31 - 1  # times the draws of one release, a 64-bit column still holds it
TIME_LIMIT = 253_402_300_799_999  # ms: the end of the year 9999, the last that a date can have
SPAN_LIMIT = 31 * 86_400_000  # ms: the longest duration
WAIT_LIMIT = 86_400_000  # ms: the longest wait that a refusal may ask for
FLOAT_LIMIT = 3.4028234663852886e38  # the largest float32

LIFE_LEAP = 2**20  # lives that one message may skip: more hellos than a device ever says
RELEASES_LEAP = 2**24  # releases that one message may add: one every thirty seconds for 16 years
COMMAND_LEAP = 2**24  # commands that one may skip: sixteen restores of a backup
EPOCH_LEAP = 2**16  # starts of an exchange that one message may skip
STEP_LEAP = 2**24  # exchanges that a neighbour may be ahead
SERIAL_LEAP = 2**40  # announcements that one may skip: a restore of a backup leaps by 2^20
HEADER_LIMIT = 4096
CHUNK_LIMIT = 32768
CHUNK_FLOOR = 8192
BODY_LIMIT = 8 * 1024 * 1024
CHUNKS_LIMIT = 256
SCALARS_LIMIT = 2_097_152
NEIGHBOURS_LIMIT = 24

Whole = Annotated[int, Between(0, LARGEST)]
Ordinal = Annotated[int, Between(1, LARGEST)]
Releases = Annotated[int, Between(0, RELEASES_LIMIT)]
Moment = Annotated[int, Between(0, TIME_LIMIT)]
Span = Annotated[int, Between(0, SPAN_LIMIT)]
Wait = Annotated[int, Between(0, WAIT_LIMIT)]
Real = Annotated[float, Between(-FLOAT_LIMIT, FLOAT_LIMIT)]
U32 = Annotated[int, Between(0, 2**32 - 1)]
Code = Annotated[int, Between(0, 65535)]
Major = Annotated[int, Between(1, 255)]
ChunkSize = Annotated[int, Between(1, CHUNK_LIMIT)]
BodySize = Annotated[int, Between(1, BODY_LIMIT)]
Index = Annotated[int, Between(0, CHUNKS_LIMIT - 1)]
Window = Annotated[int, Between(1, CHUNKS_LIMIT)]
Share = Annotated[float, Between(0.0, 1.0)]
Ref = Annotated[bytes, Length(16, 16)]
Digest = Annotated[bytes, Length(32, 32)]
PublicKey = Annotated[bytes, Length(32, 32)]
Proof = Annotated[bytes, Length(72, 72)]
Piece = Annotated[bytes, Length(0, CHUNK_LIMIT)]
Bitmap = Annotated[bytes, Length(0, CHUNKS_LIMIT // 8)]
Text = Annotated[str, Length(0, 64)]
Word = Annotated[str, Length(1, 16)]
Release = Annotated[str, Length(1, 32)]
Words = Annotated[tuple[Word, ...], Length(0, 32)]
Scalars = Annotated[Mapping[Text, Real], Length(0, 32)]
Claims = Annotated[Mapping[Text, float], Length(0, 32)]  # judged by admission, which can say why
Slice = Annotated[int, Between(1, CHUNK_LIMIT // 4)]
Offset = Annotated[int, Between(0, SCALARS_LIMIT - 1)]
Pair = tuple[Whole, Whole]
Dimensions = Annotated[tuple[Annotated[int, Between(1, 1_048_576)], ...], Length(0, DIMENSIONS)]


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """Whether a device is there. Retained; the broker publishes it with ``lost`` as the will."""

    kind: ClassVar[str] = "status"
    state: Literal["online", "sleeping", "draining", "offline", "lost"]  # lost: by the will only
    life: Whole  # last confirmed life; 0 before the first welcome
    conn: U32  # session counter, persisted, one more per connection; the larger (life, conn) wins


@dataclass(frozen=True, slots=True)
class HelloMessage:
    """A device proposes a ledger session. Sent once per process start and repeated unchanged."""

    kind: ClassVar[str] = "hello"
    life: Ordinal  # number proposed for the session, saved before it is said
    nonce: Ref  # 16 random bytes that bind the answer to this very hello
    spent: Releases  # releases charged so far
    lost: bool  # whether the device's store is new
    open: Annotated[tuple[tuple[Ordinal, Ordinal], ...], Length(0, 8)]  # (life, seq) in the outbox
    wire: tuple[Major, Major]  # lowest and highest major version the device speaks
    caps: Words  # optional abilities, such as f2
    sdk: Release  # version of the device's software
    conn: U32  # the same counter as in status


@dataclass(frozen=True, slots=True)
class WelcomeMessage:
    """The aggregator confirms a life, once per hello; its signature makes ``time`` trustworthy."""

    kind: ClassVar[str] = "welcome"
    hello: Ref  # which hello is answered
    life: Ordinal  # the life, confirmed
    spent: Releases  # the aggregator's own count of releases: the device continues from the larger
    time: Moment  # server time now
    wire: Major  # major version chosen
    caps: Words  # abilities that may be used; what is missing here must not be sent
    run: Whole  # current training run; 0 before the first
    inline: Annotated[int, Between(0, CHUNK_LIMIT)]  # largest body sent unasked; 0 = always offer
    window: Window  # chunks the aggregator can have in flight towards it
    quota: Whole  # bytes a day the device may use, both directions
    hold: Annotated[int, Between(1, 8)]  # most entries that may wait for a receipt
    cmd: Whole  # highest command number issued to this device


@dataclass(frozen=True, slots=True)
class FloorMessage:
    """The proposed life is used up: propose a larger one, with a new nonce."""

    kind: ClassVar[str] = "floor"
    hello: Ref  # which hello is answered
    life: Whole  # propose more than this


@dataclass(frozen=True, slots=True)
class KeysMessage:
    """The aggregator's keys in force, signed by the root. Retained; a new list revokes the old."""

    kind: ClassVar[str] = "keys"
    serial: Ordinal  # rises with every announcement, for ever
    sign: Annotated[tuple[PublicKey, ...], Length(1, 8)]  # Ed25519 keys that may sign
    open: Annotated[tuple[PublicKey, ...], Length(0, 8)]  # X25519 keys bodies may be sealed to
    from_: Annotated[tuple[Moment, ...], Length(1, 8)]  # start of validity of each ``sign`` key
    until: Annotated[tuple[Moment, ...], Length(1, 8)]  # end of validity of each ``sign`` key
    min_wire: Major  # no device may speak an older major version

    def __post_init__(self) -> None:
        """Refuse lists that do not belong together."""
        if not len(self.sign) == len(self.from_) == len(self.until):
            raise ValueError("sign, from and until must have the same length")
        for key in self.sign:
            if found := weakness(key):
                raise ValueError(f"sign: the key {key.hex()} {found}")


@dataclass(frozen=True, slots=True)
class BundleMessage:
    """The fleet's model bundle and what the run does with it, signed by the root. Retained."""

    kind: ClassVar[str] = "bundle"
    serial: Ordinal  # rises with every announcement, for ever
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
    url: Annotated[str, Length(1, 512)] | None = None  # where else the archive lies


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """The manifest of the common model: it opens the round it names. Retained."""

    kind: ClassVar[str] = "model"
    serial: Ordinal  # rises with every announcement, for ever
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
    deltas: Annotated[tuple[Pair, ...], Length(0, 8)] = ()  # (base version, first slot) of patches


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A question to one device: work on this and answer with an update. Said until answered.

    With a ``shape``, and where its contract says so, it is perishable: said once, with some rows of
    one array, and answered by a signal or not at all.
    """

    kind: ClassVar[str] = "task"
    run: Ordinal  # training run
    round: Whole  # the round to answer; for one device it only rises
    base: Whole  # version of the model that its vectors are of
    ask: Word  # which question of the method's contract
    spec: Ref  # layout digest of every vector of it
    attempt: Whole = 0  # how often the round was begun anew
    step: Whole = 0  # a turn inside the round: the larger (round, attempt, step) is the newer task
    digest: Digest | None = None  # SHA-256 of the content body; unset: it brings no vectors
    size: BodySize | None = None  # bytes of the content body
    chunk: ChunkSize | None = None  # bytes of one chunk of it; the last is shorter
    vals: Scalars = field(default_factory=dict)  # the numbers of the task, as the contract names
    peers: Annotated[tuple[Text, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # your neighbours' ids
    keys: Annotated[tuple[PublicKey, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # and their keys
    weights: Annotated[tuple[Real, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # unset: by degrees
    enc: Annotated[str, Length(0, 2)] = ""  # of a perishable array: f4, f2, or i4 for window ids
    shape: Dimensions = ()  # of that whole array; unset: it brings none
    off: U32 = 0  # number of the first row that is in the blob
    num: U32 = 0  # how many rows are
    blob: bytes = b""  # the content body where it is small, else it is asked for; or the rows

    def __post_init__(self) -> None:
        """Refuse a content, a neighbourhood or rows that are not wholly described."""
        if len(self.keys) != len(self.peers) or len(self.weights) not in (0, len(self.peers)):
            raise ValueError("peers, keys and weights have the same length")
        if any(weakness(key) for key in self.keys):
            raise ValueError("keys: one of them is no sound Ed25519 public key")
        if len({self.digest is None, self.size is None, self.chunk is None}) > 1:
            raise ValueError("digest, size and chunk belong together")
        if self.shape and self.digest is not None:
            raise ValueError("a task brings a content or rows, not both")
        check(self.enc, self.shape, self.off, self.num, self.blob if self.shape else b"")
        if not self.shape and self.blob and len(self.blob) != self.size:
            raise ValueError("the blob is the whole content body, or nothing")

    @property
    def turn(self) -> tuple[int, int, int]:
        """What orders the tasks of one run: round, attempt, step."""
        return self.round, self.attempt, self.step


@dataclass(frozen=True, slots=True)
class ContentBody:
    """The body that a ``model`` or ``task`` names. Its parts or chunks are sent, never itself.

    A task with several vectors has them one after the other, as its contract lists them.
    """

    kind: ClassVar[str] = "content"
    run: Ordinal  # training run
    version: Whole  # the model's version
    part: Word  # which vector this is: shared
    spec: Ref  # its layout digest
    enc: Word  # its tensor encoding
    blob: bytes = b""  # the vector, or several


@dataclass(frozen=True, slots=True)
class PartMessage:
    """One chunk of the common model's content, retained in slot ``i``."""

    kind: ClassVar[str] = "part"
    id: Ref  # first 16 bytes of the content's digest
    i: Index  # slot number, from 0
    blob: Piece = b""  # bytes [i * chunk, …) of the content body


@dataclass(frozen=True, slots=True)
class OfferMessage:
    """A large body is ready, and so is every body sent before: may it be sent, or is it settled?"""

    kind: ClassVar[str] = "offer"
    of: Word  # kind of the offered message
    digest: Digest  # SHA-256 of the offered body
    size: BodySize  # its bytes
    chunk: ChunkSize  # bytes of one chunk; the last is shorter
    sig: Proof  # the proof of the whole offered message
    run: Ordinal  # as in the offered header, like all that follow
    round: Whole  # round the body answers
    base: Whole  # model version it started from
    spec: Ref  # layout digest of its vector
    life: Ordinal  # its number, first half
    seq: Ordinal  # its number, second half
    spent: Releases  # releases charged, this one included


@dataclass(frozen=True, slots=True)
class GrantMessage:
    """Send the chunks that are missing; a repeated grant is a progress report."""

    kind: ClassVar[str] = "grant"
    id: Ref  # first 16 bytes of the offered digest
    have: Bitmap  # bit i of byte i // 8, least significant first: chunk i has arrived
    win: Window  # chunks that may be on their way
    keep: Span  # how long the reservation lasts without a new chunk
    to: Word | None = None  # worker whose topic the chunks go to


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """One piece of an offered or requested body."""

    kind: ClassVar[str] = "chunk"
    id: Ref  # first 16 bytes of the whole body's digest
    i: Index  # which chunk, from 0
    life: Ordinal | None = None  # number of the update it belongs to (from a device)
    seq: Ordinal | None = None  # likewise
    blob: Piece = b""  # bytes [i * chunk, …) of the body


@dataclass(frozen=True, slots=True)
class HaveMessage:
    """A receiver tells what it has, and so asks for the rest; from a device, a request."""

    kind: ClassVar[str] = "have"
    id: Ref  # first 16 bytes of the digest of what is wanted
    have: Bitmap  # as in grant; empty = nothing yet
    win: Window  # chunks that may be on their way


@dataclass(frozen=True, slots=True)
class ReceiptMessage:
    """Recorded, after the commit. Settles one entry for good, whatever the code says."""

    kind: ClassVar[str] = "receipt"
    life: Whole  # number of the entry; 0 for a command
    seq: Ordinal  # likewise; the command's number for a command
    ref: Ref  # first 16 bytes of the entry's digest: a receipt for other bytes settles nothing
    code: Code  # 0, or the final reason
    run: Whole  # run it was counted in; 0 where none was
    round: Whole  # round it was counted in; 0 where none was


@dataclass(frozen=True, slots=True)
class RefusalMessage:
    """Nothing was recorded: report it, wait, try again. Carries ``ref`` or ``id``."""

    kind: ClassVar[str] = "refusal"
    code: Code  # why
    wait: Wait  # not before this long
    ref: Ref | None = None  # first 16 bytes of the refused message's digest
    id: Ref | None = None  # or the transfer that is refused


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """One client's answer to a round: numbered, kept until its receipt, counted once."""

    kind: ClassVar[str] = "update"
    run: Ordinal  # training run
    round: Whole  # the round it answers
    base: Whole  # model version the training started from
    life: Ordinal  # ledger session, never used again for other bytes
    seq: Ordinal  # 1, 2, 3 … within a life; gaps mean nothing
    spent: Releases  # releases charged, this one included
    spec: Ref  # layout digest of the vector
    part: Word  # what the vector is: delta (received minus trained), weights, grad, sign, q
    enc: Word  # tensor encoding of the blob
    n: Whole  # training samples, as claimed
    vals: Claims = field(default_factory=dict)  # the numbers of the answer, as the contract names
    check: Annotated[bytes, Length(8, 8)] | None = None  # hash of a vector both ends mirror
    flags: U32 | None = None  # 1 personal layers were reset, 2 clock not synchronised
    blob: bytes = b""  # the vector


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """A slice of what one device lets a neighbour mix in; repeated until that neighbour settles."""

    kind: ClassVar[str] = "peer"
    run: Whole  # training run; 0 where nobody announced one
    epoch: Ordinal  # which start of the exchange: the higher one is in force, everywhere
    step: Whole  # the exchange within it
    part: Literal["theta", "tracker"]  # the model, or the estimate of everybody's gradient
    degree: Annotated[int, Between(1, NEIGHBOURS_LIMIT)]  # how many neighbours the sender has
    spec: Ref  # layout digest of the whole vector
    enc: Literal["f4"]  # its tensor encoding: both ends compute on with these very bits
    off: Offset  # first scalar of this slice: a multiple of 8,192
    num: Slice  # how many there are: 8,192, or what is left
    blob: Piece = b""  # the slice


@dataclass(frozen=True, slots=True)
class SettleMessage:
    """Whether a link counts in one exchange. The device whose id sorts first says so."""

    kind: ClassVar[str] = "settle"
    run: Whole  # training run
    epoch: Ordinal  # as in the exchange it settles
    step: Whole  # likewise
    used: bool  # both mix, or neither does; from the other end only false: gone on without you


@dataclass(frozen=True, slots=True)
class SignalMessage:
    """Some rows of an answer that perishes with its turn: not numbered, not kept, not receipted."""

    kind: ClassVar[str] = "signal"
    run: Ordinal  # training run
    round: Whole  # the round it belongs to; 0 for one that belongs to none
    ask: Word  # the question it answers, as the contract names it
    attempt: Whole = 0  # how often the round was begun anew
    step: Whole = 0  # the turn inside the round; for ``serve`` the number of the window
    enc: Annotated[str, Length(0, 2)] = ""  # encoding of the scalars: f4 or f2
    shape: Dimensions = ()  # of the whole array; unset: it brings none
    off: U32 = 0  # number of the first row that is in the blob
    num: U32 = 0  # how many rows are
    vals: Scalars = field(default_factory=dict)  # the numbers of the answer, as the contract names
    blob: Piece = b""  # the rows

    def __post_init__(self) -> None:
        """Refuse rows that are none."""
        check(self.enc, self.shape, self.off, self.num, self.blob)


@dataclass(frozen=True, slots=True)
class CommandMessage:
    """An operator's word to one device, repeated after each hello until receipted."""

    kind: ClassVar[str] = "command"
    num: Ordinal  # rises per device; the highest done is remembered
    op: Word  # stop, resume, reenrol, report, budget, hello, wipe
    args: Scalars = field(default_factory=dict)  # numbers the command needs
    until: Moment | None = None  # useless after this server time


@dataclass(frozen=True, slots=True)
class MetricsMessage:
    """Counters since the process started. Nothing measured, nothing learnt."""

    kind: ClassVar[str] = "metrics"
    up: Whole  # seconds since the start
    sent: Whole  # updates sent
    resent: Whole  # offers repeated
    refused: Whole  # updates refused for good
    bytes_up: Whole  # payload bytes published
    bytes_down: Whole  # payload bytes received
    outbox: Whole  # entries without a receipt
    flash: Whole  # kilobytes of the store
    rss: Whole  # kilobytes of memory
    step: Whole | None = None  # exchanges with neighbours so far, where there are any
    mixed: Whole | None = None  # links that counted in them
    missed: Whole | None = None  # links that did not


@dataclass(frozen=True, slots=True)
class TimeMessage:
    """Server time, every minute. May be replayed, so it only ever raises a clock's floor."""

    kind: ClassVar[str] = "time"
    serial: Ordinal  # rises with every announcement, for ever
    t: Moment  # server time now


Message = (
    StatusMessage
    | HelloMessage
    | WelcomeMessage
    | FloorMessage
    | KeysMessage
    | BundleMessage
    | ModelMessage
    | TaskMessage
    | ContentBody
    | PartMessage
    | OfferMessage
    | GrantMessage
    | ChunkMessage
    | HaveMessage
    | ReceiptMessage
    | RefusalMessage
    | UpdateMessage
    | SignalMessage
    | PeerMessage
    | SettleMessage
    | CommandMessage
    | MetricsMessage
    | TimeMessage
)

KINDS: Mapping[str, type[Message]] = MappingProxyType(
    {
        cls.kind: cls
        for cls in (
            StatusMessage,
            HelloMessage,
            WelcomeMessage,
            FloorMessage,
            KeysMessage,
            BundleMessage,
            ModelMessage,
            TaskMessage,
            PartMessage,
            OfferMessage,
            GrantMessage,
            ChunkMessage,
            HaveMessage,
            ReceiptMessage,
            RefusalMessage,
            UpdateMessage,
            SignalMessage,
            PeerMessage,
            SettleMessage,
            CommandMessage,
            MetricsMessage,
            TimeMessage,
        )
    }
)
"""Every kind that is built, by the word the envelope carries. ``content`` travels only in parts."""

FROM_DEVICES = frozenset(
    {
        StatusMessage.kind,
        HelloMessage.kind,
        OfferMessage.kind,
        HaveMessage.kind,
        UpdateMessage.kind,
        SignalMessage.kind,
        MetricsMessage.kind,
        ChunkMessage.kind,
        ReceiptMessage.kind,
        RefusalMessage.kind,
        PeerMessage.kind,
        SettleMessage.kind,
    }
)
"""Kinds that a device may send; each field of them has a row in ``docs/privacy.md``."""

RESERVED = frozenset(
    (
        "rekey",
        "state",
        "batch",
        "feat",
        "zgrad",
        "zfeat",
        "hgrad",
        "skip",
        "hvp",
        "topology",
    )
)
"""Kinds that are named but not built: refused as UNKNOWN_KIND, and not free for other meanings."""
