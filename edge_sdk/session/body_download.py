"""Keep the chunks of one announced body, and read the model that it contains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import decode, unpack_tensor
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.model_step import applied, step_from
from edge_sdk.protocol.transfer import Receiving
from edge_sdk.session.download import Announcement, DownloadCompleted


@dataclass(slots=True)
class BodyDownload:
    """The download of one body: first from retained slots, after a delay on request."""

    manifest: Announcement
    receiving: Receiving  # the chunks received so far
    opens: float  # time at which to subscribe to the slots, spread over the fleet
    asks: float  # time from which missing chunks are requested
    announced: bytes = b""  # bytes of the message, where they are kept
    is_open: bool = field(default=False, init=False)  # true once the slots are subscribed
    # slots of the step that is downloaded instead of a whole model; none otherwise
    step_slots: range = range(0)

    @property
    def has_slots(self) -> bool:
        return isinstance(self.manifest, m.ModelMessage)

    def add(self, message: m.PartMessage | m.ChunkMessage, now: float) -> None:
        """Store a chunk; one of another body is ignored.

        Raises:
            Refused: BAD_CHUNK for a wrong index or length.
        """
        if message.id == self.receiving.id:
            self.receiving.add(message.id, message.i, message.blob, now)

    def open_slots(self) -> bool:
        """Mark the slots as subscribed; return whether they were not before."""
        is_due, self.is_open = self.has_slots and not self.is_open, self.has_slots
        return is_due

    def close_slots(self) -> None:
        self.is_open = False

    def postpone(self, until: float) -> None:
        self.asks = until

    def request(self, now: float) -> m.HaveMessage | None:
        """Return the request for missing chunks that is due now, or None."""
        report = self.receiving.report(now) if now >= self.asks else None
        if report is None:
            return None
        return m.HaveMessage(id=self.receiving.id, have=report.having, win=report.window)

    @property
    def next_due(self) -> float:
        """Time of the next action: opening the slots, or requesting chunks."""
        if not self.is_open and self.has_slots:
            return self.opens
        return max(self.asks, self.receiving.next_due)


@dataclass(slots=True)
class EarlyParts:
    """Parts of the next model that arrive before its manifest, while the slots stay subscribed."""

    size: int  # largest sum of their bytes: that of the last model
    id: bytes = b""  # name of the body that they belong to
    pieces: dict[int, m.PartMessage] = field(default_factory=dict)  # the parts by number

    def add(self, part: m.PartMessage) -> None:
        """Keep a part; those of an older body are dropped."""
        if part.id != self.id:
            self.id, self.pieces = part.id, {}
        if sum(len(one.blob) for one in self.pieces.values()) + len(part.blob) <= self.size:
            self.pieces.setdefault(part.i, part)

    def drain(self, body: bytes) -> Iterable[m.PartMessage]:
        """Return and forget the parts, if they belong to this body."""
        found = self.pieces.values() if body == self.id else ()
        self.id, self.pieces = b"", {}
        return found


class NewestModel:
    """The newest version of a run's common model that this device received; in memory only."""

    def __init__(self) -> None:
        self._held: tuple[int, Vector] | None = None

    def keep(self, version: int, w: Vector) -> None:
        self._held = version, w

    def has_base(self, manifest: m.ModelMessage) -> bool:
        return self._held is not None and self._held[0] == step_from(manifest)

    def read(self, manifest: m.ModelMessage, completed: DownloadCompleted, size: int) -> Vector:
        """Return the announced model of ``size`` scalars from its own body, or that of its step.

        Raises:
            Refused: As ``whole_model`` or ``after_step``.
        """
        if completed.is_step:
            return self.after_step(manifest, completed.body)
        return whole_model(manifest, completed.body, size)

    def after_step(self, manifest: m.ModelMessage, body: bytes) -> Vector:
        """Return the announced model from the body of its step.

        Raises:
            Refused: As ``model_step.applied``; MALFORMED without the version before.
        """
        if self._held is None or not self.has_base(manifest):
            raise Refused(Reason.MALFORMED, "the version before the step is not here")
        return applied(manifest, decode(m.ContentBody, body), self._held[1])


def whole_model(manifest: m.ModelMessage, body: bytes, size: int) -> Vector:
    """Decode the vector; the digest is verified, so a contradiction is the server's fault.

    Raises:
        Refused: MALFORMED, WRONG_SIZE or NOT_FINITE.
    """
    content = decode(m.ContentBody, body)
    found = (content.run, content.version, content.part, content.spec, content.enc)
    if found != (manifest.run, manifest.version, manifest.part, manifest.spec, manifest.enc):
        raise Refused(Reason.MALFORMED, "the content differs from its manifest")
    return unpack_tensor(content.blob, content.enc, size).astype(np.float32)
