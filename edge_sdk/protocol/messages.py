"""Define the messages: one frozen dataclass per message kind, one comment per field.

Field names are the header keys of the wire (``from_`` is ``from``). Times are server time in Unix
milliseconds, durations milliseconds, sizes bytes. A field with a default may be left out on the
wire. ``blob`` is not a header key but the body's second element. Every number has a bound, far
inside what SQLite, a double and a date can hold, so that no sum of a few of them overflows.
Types limit what ``codec.decode`` accepts; the aggregator's admission applies the run's limits.

An extension declares its own kinds; its row of the index names them in a table ``messages``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from edge_sdk.app.extensions import ExtensionIndex, ListedEntries
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import public_key

WIRE = 1
"""Major version of the protocol: topic level 1 and the envelope's first element."""

CLEAR = 0x92  # first byte of a clear body: an array of two
ENCRYPTED = 0x94  # first byte of an encrypted body: an array of four

LARGEST = 2**53 - 1  # the largest counter: a double holds it exactly, a signed 64-bit column too
RELEASES_LIMIT = 2**31 - 1  # times the draws of one release, a 64-bit column still holds it
TIME_LIMIT = 253_402_300_799_999  # ms: the end of the year 9999, the last that a date can have
SPAN_LIMIT = 31 * 86_400_000  # ms: the longest duration
WAIT_LIMIT = 86_400_000  # ms: the longest wait that a refusal may ask for
FLOAT_LIMIT = 3.4028234663852886e38  # the largest float32

LIFE_LEAP = 2**20  # lives that one message may skip: more hellos than a device ever sends
RELEASES_LEAP = 2**24  # releases that one message may add: one every thirty seconds for 16 years
COMMAND_LEAP = 2**24  # commands that one may skip: sixteen restores of a backup
EPOCH_LEAP = 2**16  # starts of an exchange that one message may skip
STEP_LEAP = 2**24  # exchanges that a neighbour may be ahead
SERIAL_LEAP = 2**40  # announcements that one may skip: a restore of a backup leaps by 2^20

HEADER_LIMIT = 4096
CHUNK_LIMIT = 32768
SMALLEST_CHUNK = 8192  # bytes; a link with a smaller limit cannot carry uploads
ENVELOPE_LIMIT = 512  # bytes that an envelope adds to a chunk or body
SINGLE_LIMIT = 262_144  # largest body of an update that goes in one message
BODY_LIMIT = 8 * 1024 * 1024
CHUNKS_LIMIT = 256
SCALARS_LIMIT = 2_097_152
NEIGHBOURS_LIMIT = 24

WIDTHS = {"f4": 4, "f2": 2, "i4": 4}
"""Bytes of one scalar, little-endian: float32, IEEE half, int32."""

ARRAY_LIMIT = 64 * 1024 * 1024
"""Largest size of a whole array, in bytes: its receiver allocates it with the first fragment."""

DIMENSIONS = 4

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
DeviceKey = Annotated[bytes, Length(32, 33)]  # Ed25519, or P-256
CA_SIZE = 1024
"""Most bytes of an authority's certificate, DER."""

AuthorityCertificate = Annotated[bytes, Length(1, CA_SIZE)]
Proof = Annotated[bytes, Length(72, 72)]
Piece = Annotated[bytes, Length(0, CHUNK_LIMIT)]
Bitmap = Annotated[bytes, Length(0, CHUNKS_LIMIT // 8)]
Checkpoint = Annotated[str, Length(1, 512)]
LogProof = Annotated[bytes, Length(0, 2048)]
LogPlace = Annotated[bytes, Length(0, 16)]
LogRoot = Annotated[bytes, Length(0, 32)]
EncryptionKey = Annotated[bytes, Length(0, 32)]
RootProofs = Annotated[
    bytes, Length(0, 16 * 72)
]  # key id and signature of each key that has signed
RootPair = Annotated[bytes, Length(0, 16)]
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


class ProtocolMessage:
    """A message; its class says who sends it. The class attributes are flags of the kind."""

    __slots__ = ()
    kind: ClassVar[str]
    # a device may send it; each field of such a kind has a row in ``docs/privacy.md``
    from_device: ClassVar[bool] = False
    # a device can encrypt it to the aggregator: it has data of its readings or its model
    is_encryptable: ClassVar[bool] = False
    is_offered: ClassVar[bool] = False  # a large one may be offered, and sent in chunks
    of_root: ClassVar[bool] = False  # announcement that root signs; others are the aggregator's
    is_delegated: ClassVar[bool] = False  # of root, and also signed by keys that root has named
    of_fleet: ClassVar[bool] = False  # announcement to the whole fleet, not to a run's devices
    in_topic: ClassVar[str] = ""  # field that the last level of its topic repeats


# --- announcements ---------------------------------------------------------------------------------

KeyList = Annotated[tuple[PublicKey, ...], Length(0, 8)]
AuthorityList = Annotated[tuple[AuthorityCertificate, ...], Length(0, 2)]


@dataclass(frozen=True, slots=True)
class KeysMessage(ProtocolMessage):
    """Announce the aggregator's valid keys, signed by the root. Retained; replaces the old list."""

    kind: ClassVar[str] = "keys"
    of_root = True
    of_fleet = True
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
            if found := public_key.ed25519_weakness(key):
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
            if found := public_key.ed25519_weakness(key):
                raise ValueError(f"sign: the key {key.hex()} {found}")


@dataclass(frozen=True, slots=True)
class BundleMessage(ProtocolMessage):
    """Announce the fleet's model bundle and the run's settings, signed by the root. Retained."""

    kind: ClassVar[str] = "bundle"
    of_root = True
    is_delegated = True
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
class ModelMessage(ProtocolMessage):
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
class PartMessage(ProtocolMessage):
    """One chunk of the common model's content, retained in slot ``i``."""

    kind: ClassVar[str] = "part"
    id: Ref  # first 16 bytes of the content's digest
    i: Index  # slot number, from 0
    blob: Piece = b""  # bytes [i * chunk, …) of the content body


@dataclass(frozen=True, slots=True)
class TimeMessage(ProtocolMessage):
    """Server time, at intervals. May be replayed, so it only raises a clock's lower bound."""

    kind: ClassVar[str] = "time"
    of_fleet = True
    serial: Ordinal  # rises with every announcement
    t: Moment  # server time now


@dataclass(frozen=True, slots=True)
class StatusMessage(ProtocolMessage):
    """Presence of a device. Retained; the broker publishes it with ``lost`` as the will."""

    kind: ClassVar[str] = "status"
    from_device = True
    state: Literal["online", "sleeping", "draining", "offline", "lost"]  # lost: by the will only
    life: Whole  # last confirmed life; 0 before the first welcome
    conn: U32  # session counter, persisted, one more per connection; the larger (life, conn) wins


@dataclass(frozen=True, slots=True)
class HelloMessage(ProtocolMessage):
    """Propose a ledger session. Sent once per process start and repeated unchanged."""

    kind: ClassVar[str] = "hello"
    from_device = True
    life: Ordinal  # number proposed for the session, saved before it is sent
    nonce: Ref  # 16 random bytes that bind the answer to this very hello
    spent: Releases  # releases charged so far
    lost: bool  # whether the device's store is new
    open: Annotated[tuple[tuple[Ordinal, Ordinal], ...], Length(0, 8)]  # (life, seq) in the outbox
    wire: tuple[Major, Major]  # lowest and highest major version the device supports
    caps: Words  # optional abilities, such as f2
    sdk: Release  # version of the device's software
    conn: U32  # the same counter as in status
    log: LogPlace = b""  # run and size of the last checkpoint of the log of models: 8 + 8 bytes
    root: LogRoot = b""  # root of that checkpoint
    key: EncryptionKey = b""  # X25519 key to which messages to this device are encrypted
    refuses: RootPair = b""  # key ids of the device's root, and of the one whose keys it refuses

    def __post_init__(self) -> None:
        """Refuse a checkpoint, a key or a pair of key ids that is not as long as one."""
        if (len(self.log), len(self.root)) not in {(0, 0), (16, 32)}:
            raise ValueError("log, root: expected 16 and 32 bytes, or neither")
        if len(self.key) not in {0, 32}:
            raise ValueError("key: expected 32 bytes, or none")
        if len(self.refuses) not in {0, 16}:
            raise ValueError("refuses: expected 16 bytes, or none")


@dataclass(frozen=True, slots=True)
class WelcomeMessage(ProtocolMessage):
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
    window: Window  # chunks the aggregator can have in flight to the device
    quota: Whole  # bytes a day the device may use, both directions
    hold: Annotated[int, Between(1, 8)]  # most entries that may wait for a receipt
    cmd: Whole  # highest command number issued to this device
    runs: Words = ()  # names of the runs that the device takes part in; ``run`` is the first one's
    region: Annotated[str, Length(0, 64)] = ""  # label ``region``: whose weather the device reads
    note: Checkpoint | None = None  # signed checkpoint of the log of the run in the hello's ``log``
    path: LogProof = b""  # proof that it continues the checkpoint in the hello


@dataclass(frozen=True, slots=True)
class FloorMessage(ProtocolMessage):
    """Refusal of a used life: the device proposes a larger one, with a new nonce."""

    kind: ClassVar[str] = "floor"
    hello: Ref  # which hello is answered
    life: Whole  # the device proposes a larger one than this


@dataclass(frozen=True, slots=True)
class CommandMessage(ProtocolMessage):
    """An operator's command to one device, repeated after each hello until receipted."""

    kind: ClassVar[str] = "command"
    num: Ordinal  # rises per device; the device stores the highest number executed
    op: Word  # stop, resume, reenrol, report, budget, hello, wipe
    args: Scalars = field(default_factory=dict)  # numbers the command needs
    until: Moment | None = None  # server time after which the command expires
    root: RootProofs = b""  # signatures of the root, which reenrol and wipe need

    def __post_init__(self) -> None:
        if len(self.root) % 72:
            raise ValueError("root: expected 72 bytes for each key that has signed")


@dataclass(frozen=True, slots=True)
class MetricsMessage(ProtocolMessage):
    """Counters since the process started; no measured and no learnt values."""

    kind: ClassVar[str] = "metrics"
    from_device = True
    is_encryptable = True
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
    mixed: Whole | None = None  # links that counted in the exchanges
    missed: Whole | None = None  # links that did not count
    new: Whole | None = None  # rows recorded since the last update


@dataclass(frozen=True, slots=True)
class TaskMessage(ProtocolMessage):
    """One task for one device, to be answered with an update. Repeated until answered.

    With a ``shape``, and where its contract says so, it is transient: sent once, with some rows of
    one array, and answered by a signal or not at all.
    """

    kind: ClassVar[str] = "task"
    run: Ordinal  # training run
    round: Whole  # the round to answer; for one device it only rises
    base: Whole  # version of the model that its vectors are of
    ask: Word  # name of the ask in the method's contract
    spec: Ref  # layout digest of every vector of it
    attempt: Whole = 0  # how often the round was restarted
    step: Whole = 0  # turn inside the round: the larger (round, attempt, step) is newer
    digest: Digest | None = None  # SHA-256 of the content body; unset: it carries no vectors
    size: BodySize | None = None  # bytes of the content body
    chunk: ChunkSize | None = None  # bytes of one chunk of it; the last is shorter
    vals: Scalars = field(default_factory=dict)  # the numbers of the task, as the contract names
    peers: Annotated[tuple[Text, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # ids of the neighbours
    keys: Annotated[tuple[DeviceKey, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # the neighbours' keys
    weights: Annotated[tuple[Real, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # unset: from degrees
    open: Annotated[tuple[EncryptionKey, ...], Length(0, NEIGHBOURS_LIMIT)] = ()  # X25519 keys
    serial: Whole = 0  # of ``open``: rises
    enc: Annotated[str, Length(0, 2)] = ""  # of a transient array: f4, f2, or i4 for window ids
    shape: Dimensions = ()  # shape of that whole array; unset: it carries none
    off: U32 = 0  # number of the first row in the blob
    num: U32 = 0  # number of rows in the blob
    blob: bytes = b""  # small content body, else it is requested; or the rows

    def __post_init__(self) -> None:
        """Refuse an incomplete description of content, neighbours or rows."""
        if len(self.keys) != len(self.peers) or len(self.weights) not in (0, len(self.peers)):
            raise ValueError("peers, keys and weights have the same length")
        if len(self.open) not in (0, len(self.peers)) or not {0, 32}.issuperset(
            map(len, self.open)
        ):
            raise ValueError("open: expected an empty list, or 0 or 32 bytes for each peer")
        if any(public_key.weakness(key) for key in self.keys):
            raise ValueError("keys: one of them is not a valid public key")
        if len({self.digest is None, self.size is None, self.chunk is None}) > 1:
            raise ValueError("digest, size and chunk belong together")
        if self.shape and self.digest is not None:
            raise ValueError("a task carries content or rows, not both")
        check_fragment(self.enc, self.shape, self.off, self.num, self.blob if self.shape else b"")
        if not self.shape and self.blob and len(self.blob) != self.size:
            raise ValueError("the blob must be the whole content body, or empty")

    @property
    def turn(self) -> tuple[int, int, int]:
        return self.round, self.attempt, self.step


@dataclass(frozen=True, slots=True)
class ContentBody(ProtocolMessage):
    """The body that a ``model`` or ``task`` names. Only its parts or chunks are sent.

    A task's vectors follow one another in the order of its contract.
    """

    kind: ClassVar[str] = "content"
    run: Ordinal  # training run
    version: Whole  # the model's version
    part: Word  # kind of the vector: shared
    spec: Ref  # its layout digest
    enc: Word  # its tensor encoding
    blob: bytes = b""  # the vector, or several


@dataclass(frozen=True, slots=True)
class SignalMessage(ProtocolMessage):
    """Rows of a transient answer: not numbered, not stored, not receipted."""

    kind: ClassVar[str] = "signal"
    from_device = True
    is_encryptable = True
    run: Ordinal  # training run
    round: Whole  # the round it belongs to; 0 for none
    ask: Word  # name of the ask that it answers
    attempt: Whole = 0  # how often the round was restarted
    step: Whole = 0  # the turn inside the round; for ``serve`` the number of the window
    enc: Annotated[str, Length(0, 2)] = ""  # encoding of the scalars: f4 or f2
    shape: Dimensions = ()  # shape of the whole array; unset: it carries none
    off: U32 = 0  # number of the first row in the blob
    num: U32 = 0  # number of rows in the blob
    vals: Scalars = field(default_factory=dict)  # the numbers of the answer, as the contract names
    blob: Piece = b""  # the rows

    def __post_init__(self) -> None:
        check_fragment(self.enc, self.shape, self.off, self.num, self.blob)


@dataclass(frozen=True, slots=True)
class OfferMessage(ProtocolMessage):
    """Offer a large body or one sent before; ask whether to send it, or whether it is settled.

    Of another kind than an update ``run``, ``life`` and ``seq`` are 1, ``round``, ``base`` and ``spent`` 0.
    """

    kind: ClassVar[str] = "offer"
    from_device = True
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
class GrantMessage(ProtocolMessage):
    """Request the missing chunks; a repeated grant is a progress report."""

    kind: ClassVar[str] = "grant"
    id: Ref  # first 16 bytes of the offered digest
    have: Bitmap  # bit i of byte i // 8, least significant first: chunk i has arrived
    win: Window  # chunks that may be in flight
    keep: Span  # how long the reservation lasts without a new chunk
    to: Word | None = None  # worker whose topic the chunks go to


@dataclass(frozen=True, slots=True)
class ChunkMessage(ProtocolMessage):
    """One piece of an offered or requested body."""

    kind: ClassVar[str] = "chunk"
    from_device = True
    id: Ref  # first 16 bytes of the whole body's digest
    i: Index  # which chunk, from 0
    life: Ordinal | None = None  # life of the update it belongs to (from a device)
    seq: Ordinal | None = None  # sequence number of that update
    blob: Piece = b""  # bytes [i * chunk, …) of the body


@dataclass(frozen=True, slots=True)
class HaveMessage(ProtocolMessage):
    """Report the chunks received and request the rest; from a device, a request."""

    kind: ClassVar[str] = "have"
    from_device = True
    id: Ref  # first 16 bytes of the digest of the wanted body
    have: Bitmap  # as in grant; empty = nothing yet
    win: Window  # chunks that may be in flight


@dataclass(frozen=True, slots=True)
class ReceiptMessage(ProtocolMessage):
    """Confirm a committed entry; settles it permanently, with any code."""

    kind: ClassVar[str] = "receipt"
    from_device = True
    life: Whole  # number of the entry; 0 for a command
    seq: Ordinal  # sequence number of the entry, or number of the command
    ref: Ref  # first 16 bytes of the entry's digest; must match the entry
    code: Code  # 0, or the final reason
    run: Whole  # run in which it was counted; 0 for none
    round: Whole  # round in which it was counted; 0 for none


@dataclass(frozen=True, slots=True)
class RefusalMessage(ProtocolMessage):
    """Refusal of a message, unrecorded; the sender waits and retries. Carries ``ref`` or ``id``."""

    kind: ClassVar[str] = "refusal"
    from_device = True
    code: Code  # reason
    wait: Wait  # shortest time before the next attempt
    ref: Ref | None = None  # first 16 bytes of the refused message's digest
    id: Ref | None = None  # first 16 bytes of the digest of the refused transfer


@dataclass(frozen=True, slots=True)
class UpdateMessage(ProtocolMessage):
    """One client's answer to a round: numbered, kept until its receipt, counted once."""

    kind: ClassVar[str] = "update"
    from_device = True
    is_encryptable = True
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


# --- fragments of arrays -------------------------------------------------------------------------


def row_size(shape: Sequence[int], enc: str) -> int:
    """Return the bytes of one row, that is of all dimensions but the first.

    >>> row_size((32, 64, 32), "f4"), row_size((32,), "i4")
    (8192, 4)
    """
    return math.prod(shape[1:]) * WIDTHS[enc]


def check_fragment(enc: str, shape: Sequence[int], off: int, num: int, blob: bytes) -> None:
    """Refuse a fragment that fits no array; without a shape there must be no fragment.

    Raises:
        ValueError: An unknown encoding, an empty dimension, an array beyond ``ARRAY_LIMIT``, rows
            outside the array, or a number of bytes that is not that of whole rows.
    """
    if not shape:
        if enc or off or num or blob:
            raise ValueError("enc, off, num and blob belong to a shape")
        return
    if enc not in WIDTHS:
        raise ValueError(f"enc {enc!r}; known: {', '.join(WIDTHS)}")
    if len(shape) > DIMENSIONS or min(shape) < 1 or row_size(shape, enc) > CHUNK_LIMIT:
        raise ValueError(f"shape {tuple(shape)}: a row has at most {CHUNK_LIMIT} bytes")
    if (size := shape[0] * row_size(shape, enc)) > ARRAY_LIMIT:
        raise ValueError(f"shape {tuple(shape)}: {size} bytes, at most {ARRAY_LIMIT}")
    if num < 1 or off + num > shape[0]:
        raise ValueError(f"rows {off} to {off + num} of {shape[0]}")
    if len(blob) != num * row_size(shape, enc):
        raise ValueError("the blob is not so many whole rows")


# --- chunks of bodies ------------------------------------------------------------------------------


def count_of(size: int, chunk: int) -> int:
    """Return the number of chunks of a body of ``size`` bytes.

    >>> count_of(32_769, 32_768)
    2
    """
    return -(-size // chunk)


def chunk_size(max_payload: int) -> int:
    """Return the chunk size for a link, from the largest payload its broker accepts.

    Raises:
        Refused: UNUSABLE_LINK, if that is below the smallest chunk.

    >>> chunk_size(65_536), chunk_size(20_480)
    (32768, 19968)
    """
    chunk = min(CHUNK_LIMIT, max_payload - ENVELOPE_LIMIT)
    if chunk < SMALLEST_CHUNK:
        raise Refused(Reason.UNUSABLE_LINK, f"the broker takes {max_payload} bytes at a time")
    return chunk


# --- kinds -----------------------------------------------------------------------------------------


KINDS: ListedEntries[type[ProtocolMessage]] = ListedEntries(
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
            CommandMessage,
            MetricsMessage,
            TimeMessage,
        )
    },
    ExtensionIndex("edge_sdk").loaders("messages"),
)
"""Classes of messages by kind, the name in the envelope. ``content`` travels only in parts."""

RESERVED = frozenset(
    ["rekey", "state", "batch", "feat", "zgrad", "zfeat", "hgrad", "skip", "hvp", "topology"]
)
"""Reserved kinds: refused as UNKNOWN_KIND, and not available for other meanings."""


def takes_part(cohort: bytes, device: str, share: float) -> bool:
    """Return whether 8 bytes of SHA-256(cohort ‖ id), as a fraction of one, lie below the share.

    >>> takes_part(bytes(16), "meter-1", 1.0), takes_part(bytes(16), "meter-1", 0.0)
    (True, False)
    >>> sum(takes_part(bytes(16), f"meter-{i}", 0.25) for i in range(1000))
    240
    """
    drawn = hashlib.sha256(cohort + device.encode()).digest()
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64
