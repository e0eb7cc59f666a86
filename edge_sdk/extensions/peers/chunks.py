"""Assemble a peer's vectors from slices that arrive in any order, perhaps twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.peers.messages import PeerMessage
from edge_sdk.protocol.codec import pack_tensor, unpack_tensor
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.messages import CHUNK_LIMIT

SLICE = CHUNK_LIMIT // 4
"""Scalars in one slice; the last slice of a vector has the remainder."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PeerChunks:
    """The slices received from one peer in one exchange."""

    size: int  # scalars of each part
    # received slices by part and offset
    got: Mapping[tuple[str, int], Floats] = field(default_factory=dict)
    degree: int = 0  # number of peers that the sender reported; 0 before the first slice

    def with_(self, peer: PeerMessage) -> PeerChunks:
        """Return a copy that includes this slice; a slice received before is kept.

        Raises:
            Refused: BAD_CHUNK: not one of the slices of the layout; WRONG_SIZE or NOT_FINITE:
                invalid scalars.
        """
        if peer.off % SLICE or peer.off >= self.size:
            raise Refused(Reason.BAD_CHUNK, f"a slice from scalar {peer.off} of {self.size}")
        if peer.num != min(SLICE, self.size - peer.off):
            raise Refused(Reason.BAD_CHUNK, f"a slice of {peer.num} scalars from {peer.off}")
        if (peer.part, peer.off) in self.got:
            return self
        values = unpack_tensor(peer.blob, peer.enc, peer.num)
        got = {**self.got, (peer.part, peer.off): values}
        return replace(self, got=got, degree=peer.degree)

    def has(self, parts: tuple[str, ...]) -> bool:
        return all((part, off) in self.got for part in parts for off in offsets(self.size))

    def vector(self, part: str) -> Floats:
        """Return a complete part, shape ``(size,)``."""
        return np.concatenate([self.got[part, off] for off in offsets(self.size)])


def offsets(size: int) -> range:
    """Return the offsets of the slices of a vector.

    >>> list(offsets(8193)), list(offsets(8192))
    ([0, 8192], [0])
    """
    return range(0, size, SLICE)


def cut(vector: Vector) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, number of scalars and bytes of every slice of a vector."""
    for off in offsets(len(vector)):
        piece = vector[off : off + SLICE]
        yield off, len(piece), pack_tensor(piece, "f4")
