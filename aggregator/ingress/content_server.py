"""Serve chunks of models and bundles, to one device or as a broadcast to all."""

from __future__ import annotations

from collections import Counter

from aggregator.ingress.broadcast_chunks import Crowds
from aggregator.ingress.downloads import Downloads
from aggregator.ingress.replies import Reply, ReplySealer
from aggregator.store.types import Store
from edge_sdk.wire.protocol import codec, envelope, topics
from edge_sdk.wire.protocol.envelope import ALL
from edge_sdk.wire.protocol.messages import ChunkMessage, HaveMessage, PartMessage


class ContentServer:
    """Downloads in progress. In memory only: a device asks again after a restart."""

    def __init__(
        self, store: Store, *, sealer: ReplySealer, window: int, counts: Counter[str]
    ) -> None:
        """Start without downloads, and with the slots of the run that is announced to all.

        Args:
            store: Source of contents and of the common model's retained slots.
            sealer: Sealer of replies.
            window: Largest number of chunks in flight to one device.
            counts: Counter of SLOTS_AGAIN.
        """
        self._store = store
        self._sealer = sealer
        self._counts = counts
        self._downloads = Downloads(store.content, window)
        self._crowds = Crowds()
        self._audiences = {ALL: None}

    def missing(self, device: str, have: HaveMessage, now: float, room: int) -> tuple[Reply, ...]:
        """Return the chunks of a body that a device is missing, at most ``room`` bytes.

        Raises:
            Refused: NOT_FOUND for an unknown or expired body; MALFORMED.
        """
        chunks = self._downloads.wanted(device, have, now, room)
        pieces = (self._piece(device, chunk, now) for chunk in chunks)
        return tuple(answer for answer in pieces if answer is not None)

    def stop(self, device: str, ref: bytes | None) -> None:
        """Cancel a device's download of a body."""
        self._downloads.stop(device, ref)

    def drop(self, device: str) -> None:
        """Delete the download of a device; the device asks again."""
        self._downloads.drop(device)

    def forget(self, now: float) -> None:
        """Delete downloads that have timed out."""
        self._downloads.forget(now)

    def _piece(self, device: str, chunk: ChunkMessage, now: float) -> Reply | None:
        """Return one chunk, or its retained slot where many devices request it."""
        piece = chunk.id, chunk.i
        slot = self._slot(chunk) if self._crowds.grows(device, piece, now) else None
        if slot is None:
            return self._sealer.seal(device, chunk)
        if not self._crowds.is_waiting(piece, now):
            return None
        self._counts["SLOTS_AGAIN"] += 1
        return slot

    def _slot(self, chunk: ChunkMessage) -> Reply | None:
        """Return the retained slot of this chunk, if it belongs to the present common model."""
        for audience in self._audiences:
            topic = topics.part(self._sealer.fleet, chunk.i, audience)
            payload = self._store.announced(topic)
            if not payload:
                continue
            part = codec.decode(PartMessage, envelope.unproved(payload))
            if (part.id, part.blob) == (chunk.id, chunk.blob):
                return Reply(topic, payload, retain=True)
        return None

    def serve(self, audience: str) -> None:
        """Broadcast the slots of a run to its audience as well."""
        self._audiences[audience] = None
