"""Define a task for one device, the content that it names, and a transient answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from edge_sdk.wire.protocol.array_fragments import check_fragment
from edge_sdk.wire.protocol.messages.fields import (
    NEIGHBOURS_LIMIT,
    U32,
    BodySize,
    ChunkSize,
    DeviceKey,
    Digest,
    Dimensions,
    EncryptionKey,
    Ordinal,
    Piece,
    Real,
    Ref,
    Scalars,
    Text,
    Whole,
    Word,
)
from edge_sdk.wire.public_key import weakness
from edge_sdk.wire.schema import Length


@dataclass(frozen=True, slots=True)
class TaskMessage:
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
            raise ValueError("open: expected 32 bytes or none for each of the peers, or no list")
        if any(weakness(key) for key in self.keys):
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
        """Return the key that orders the tasks of one run: round, attempt, step."""
        return self.round, self.attempt, self.step


@dataclass(frozen=True, slots=True)
class ContentBody:
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
class SignalMessage:
    """Rows of a transient answer: not numbered, not stored, not receipted."""

    kind: ClassVar[str] = "signal"
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
        """Refuse invalid rows."""
        check_fragment(self.enc, self.shape, self.off, self.num, self.blob)
