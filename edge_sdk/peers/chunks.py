"""A neighbour's vectors as they come: cut into slices, in any order, perhaps twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.codec import pack_tensor, unpack_tensor
from edge_sdk.wire.protocol.messages import CHUNK_LIMIT, PeerMessage

SLICE = CHUNK_LIMIT // 4
"""Scalars in one slice; the last of a vector has what is left."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PeerChunks:
    """What has come of one neighbour's parts in one exchange.

    Attributes:
        size: Scalars of each part.
        got: Slices by part and offset.
        degree: How many neighbours the sender said it has; 0 before anything came.
    """

    size: int
    got: Mapping[tuple[str, int], Floats] = field(default_factory=dict)
    degree: int = 0

    def with_(self, peer: PeerMessage) -> PeerChunks:
        """Return what there is with this slice; one that is there already stays.

        Raises:
            Refused: BAD_CHUNK: not one of the slices that the layout is cut into; WRONG_SIZE or
                NOT_FINITE: its scalars.
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
        """Whether these parts are here as a whole."""
        return all((part, off) in self.got for part in parts for off in offsets(self.size))

    def vector(self, part: str) -> Floats:
        """Return a part that is here as a whole, shape ``(size,)``."""
        return np.concatenate([self.got[part, off] for off in offsets(self.size)])


def offsets(size: int) -> range:
    """Return where the slices of a vector begin.

    >>> list(offsets(8193)), list(offsets(8192))
    ([0, 8192], [0])
    """
    return range(0, size, SLICE)


def cut(vector: Vector) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, number of scalars and bytes of every slice of a vector."""
    for off in offsets(len(vector)):
        piece = vector[off : off + SLICE]
        yield off, len(piece), pack_tensor(piece, "f4")
