"""Define the messages between two neighbours."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between
from edge_sdk.protocol.messages import (
    NEIGHBOURS_LIMIT,
    Offset,
    Ordinal,
    Piece,
    ProtocolMessage,
    Ref,
    Slice,
    Whole,
)


@dataclass(frozen=True, slots=True)
class PeerMessage(ProtocolMessage):
    """A slice of the vector that a neighbour may mix in; repeated until that neighbour settles."""

    kind: ClassVar[str] = "peer"
    from_device = True
    run: Whole  # training run; 0 where none was announced
    epoch: Ordinal  # which start of the exchange: the higher one is in force, everywhere
    step: Whole  # the exchange within it
    part: Literal["theta", "tracker"]  # the model, or the estimate of the average gradient
    degree: Annotated[int, Between(1, NEIGHBOURS_LIMIT)]  # how many neighbours the sender has
    spec: Ref  # layout digest of the whole vector
    enc: Literal["f4"]  # tensor encoding: both ends compute with these very bits
    off: Offset  # first scalar of this slice: a multiple of 8,192
    num: Slice  # number of scalars: 8,192, or the remainder
    blob: Piece = b""  # the slice


@dataclass(frozen=True, slots=True)
class SettleMessage(ProtocolMessage):
    """Settle whether a link counts in one exchange; sent by the device whose id sorts first."""

    kind: ClassVar[str] = "settle"
    from_device = True
    run: Whole  # training run
    epoch: Ordinal  # epoch of the exchange it settles
    step: Whole  # step of the exchange it settles
    used: bool  # both ends mix, or neither; the other end sends only false: it continued without
