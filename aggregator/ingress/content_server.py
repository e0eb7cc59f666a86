"""Chunks of common bodies for who misses them: to each its own, or one slot for a whole crowd."""

from __future__ import annotations

from collections import Counter

from aggregator.ingress.broadcast_chunks import Crowds
from aggregator.ingress.downloads import Downloads
from aggregator.ingress.replies import Reply, Voice
from aggregator.store.types import Store
from edge_sdk.wire.protocol import codec, envelope, topics
from edge_sdk.wire.protocol.messages import ChunkMessage, HaveMessage, PartMessage


class ContentServer:
    """Who pulls what. In memory only: whoever is forgotten asks again."""

    def __init__(self, store: Store, *, voice: Voice, window: int, counts: Counter[str]) -> None:
        """Begin with nobody.

        Args:
            store: Has the contents, and the slots of the common model.
            voice: Says single chunks.
            window: Most chunks on their way to one device.
            counts: SLOTS_AGAIN is counted here.
        """
        self._store = store
        self._voice = voice
        self._counts = counts
        self._downloads = Downloads(store.content, window)
        self._crowds = Crowds()

    def missing(self, device: str, have: HaveMessage, now: float, room: int) -> tuple[Reply, ...]:
        """Return the chunks of a common body that a device is missing: at most ``room`` bytes.

        Raises:
            Refused: NOT_FOUND for a body that is not, or no longer, ours; MALFORMED.
        """
        chunks = self._downloads.wanted(device, have, now, room)
        said = (self._piece(device, chunk, now) for chunk in chunks)
        return tuple(answer for answer in said if answer is not None)

    def stop(self, device: str, ref: bytes | None) -> None:
        """A device wants no more of a body."""
        self._downloads.stop(device, ref)

    def drop(self, device: str) -> None:
        """Forget the download of a device; it asks again."""
        self._downloads.drop(device)

    def forget(self, now: float) -> None:
        """Forget the downloads of devices that went silent."""
        self._downloads.forget(now)

    def _piece(self, device: str, chunk: ChunkMessage, now: float) -> Reply | None:
        """Send one chunk; what a crowd misses is published once more in its slot instead."""
        piece = chunk.id, chunk.i
        slot = self._slot(chunk) if self._crowds.grows(device, piece, now) else None
        if slot is None:
            return self._voice.say(device, chunk)
        if not self._crowds.is_waiting(piece, now):
            return None
        self._counts["SLOTS_AGAIN"] += 1
        return slot

    def _slot(self, chunk: ChunkMessage) -> Reply | None:
        """Return the retained slot with this very chunk, if it is of the present common model."""
        topic = topics.part(self._voice.fleet, chunk.i)
        payload = self._store.announced(topic)
        if not payload:
            return None
        part = codec.decode(PartMessage, envelope.unproved(payload))
        is_it = (part.id, part.blob) == (chunk.id, chunk.blob)
        return Reply(topic, payload, retain=True) if is_it else None
