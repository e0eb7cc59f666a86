"""Serve chunks of models and bundles, to one device or as a broadcast to all."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from aggregator.ingress.replies import Reply, ReplySealer
from aggregator.store.store import Store
from aggregator.store.types import DownloadBody
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, envelope, messages, topics
from edge_sdk.protocol.envelope import ALL
from edge_sdk.protocol.messages import ChunkMessage, HaveMessage, PartMessage
from edge_sdk.protocol.transfer import IDLE, id_of, mask_of

MOST = 20  # requests answered individually within ``WITHIN``; further ones get a broadcast
WITHIN = 10.0  # s
_KEPT = 4  # contents in memory: the current and the previous model and bundle
REMEMBERED = 1_024  # chunks; a body has at most 256

Piece = tuple[bytes, int]  # id of a body, and the index of one of its chunks


@dataclass(slots=True)
class _Asked:
    """Recent requests for one chunk, by device, and the time of its last broadcast."""

    devices: dict[str, float] = field(default_factory=dict)
    broadcast_at: float = float("-inf")


class Crowds:
    """Recent chunk requests, and the decision to broadcast.

    >>> crowds, piece = Crowds(), (b"model", 3)
    >>> sum(crowds.grows(f"meter-{n}", piece, now=0.0) for n in range(25))
    5
    >>> crowds.is_waiting(piece, now=1.0), crowds.is_waiting(piece, now=2.0)
    (True, False)
    >>> crowds.grows("meter-0", piece, now=20.0)  # the others have it by now
    False
    """

    def __init__(self) -> None:
        self._asked: OrderedDict[Piece, _Asked] = OrderedDict()

    def grows(self, device: str, piece: Piece, now: float) -> bool:
        """Record a request; return True if the chunk should be broadcast."""
        asked = self._asked.setdefault(piece, _Asked())
        self._asked.move_to_end(piece)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked.devices = {d: at for d, at in asked.devices.items() if now - at < WITHIN}
        asked.devices[device] = now
        return len(asked.devices) > MOST

    def is_waiting(self, piece: Piece, now: float) -> bool:
        """Return whether the chunk should be broadcast now; if so, record the broadcast."""
        asked = self._asked.setdefault(piece, _Asked())
        if now - asked.broadcast_at < WITHIN:
            return False
        asked.broadcast_at = now
        return True


class Sending:
    """The sending half of a transfer, whose receiver drives: a machine without socket or clock.

    >>> from edge_sdk.protocol.transfer import bitmap
    >>> sending = Sending(bytes(20_000), 8_192)
    >>> sending.heard(b"", window=2)
    >>> sending.due(limit=20), sending.due(limit=20)
    ((0, 1), ())
    >>> sending.heard(bitmap([1], 3), window=2)
    >>> sending.due(limit=20)  # 0 may still be on its way, so one more fits
    (2,)
    >>> sending.heard(bitmap([1], 3), window=1)
    >>> sending.due(limit=20)  # asked again with nothing new: what was in flight is lost
    (0,)
    """

    def __init__(self, body: bytes, chunk: int = messages.CHUNK_LIMIT) -> None:
        self.body, self.chunk, self.count = body, chunk, messages.count_of(len(body), chunk)
        self.id = id_of(hashlib.sha256(body).digest())
        self._has = 0  # chunks the receiver has, as a mask
        self._in_flight = 0  # chunks sent since, as a mask
        self._window = 0

    @property
    def is_complete(self) -> bool:
        """Return whether the receiver reported every chunk; its receipt is still to come."""
        return self._has == (1 << self.count) - 1

    def heard(self, having: bytes, window: int) -> None:
        """Process a grant or a progress report, which states the received chunks and the window.

        A report without a new chunk, or with a smaller window, signals a gap: every chunk in flight
        counts as lost. A report with fewer chunks than before comes from a receiver that restarted;
        the sender continues from that report.

        Raises:
            Refused: MALFORMED, if the bitmap does not fit.
        """
        mask = mask_of(having, self.count)
        is_gap = not mask & ~self._has or window < self._window
        self._in_flight = 0 if is_gap else self._in_flight & ~mask
        self._has, self._window = mask, max(1, window)

    def due(self, limit: int) -> tuple[int, ...]:
        """Return at most ``limit`` chunks to publish now; they count as in flight from here on."""
        limit = min(limit, self._window - self._in_flight.bit_count())
        missing = (i for i in range(self.count) if not (self._has | self._in_flight) >> i & 1)
        chosen = tuple(i for i, _ in zip(missing, range(max(0, limit)), strict=False))
        for i in chosen:
            self._in_flight |= 1 << i
        return chosen

    def piece(self, index: int) -> bytes:
        """Return chunk ``index``: exactly ``chunk`` bytes, the last one shorter."""
        if not 0 <= index < self.count:
            raise IndexError(f"chunk {index} of {self.count}")
        return self.body[index * self.chunk : (index + 1) * self.chunk]


@dataclass(frozen=True, slots=True)
class _Pull:
    """Download of one device, and the time of its last request."""

    sending: Sending
    at: float


class ContentServer:
    """Downloads in progress. In memory only: a device asks again after a restart."""

    def __init__(
        self, store: Store, *, sealer: ReplySealer, window: int, counts: Counter[str]
    ) -> None:
        """Start without downloads, and with the slots of the run that is announced to all.

        Args:
            store: Source of contents and of the common model's retained slots.
            window: Largest number of chunks in flight to one device.
        """
        self._store, self._sealer, self._counts = store, sealer, counts
        self._window = window
        self._pulls: dict[
            str, _Pull
        ] = {}  # at most one a device; a new request replaces the old one
        self._contents: OrderedDict[bytes, DownloadBody] = OrderedDict()
        self._crowds = Crowds()
        self._audiences = {ALL: None}

    def missing(self, device: str, have: HaveMessage, now: float, room: int) -> tuple[Reply, ...]:
        """Return a body's missing chunks, at most ``room`` bytes; raise Refused, NOT_FOUND or MALFORMED."""
        content = self._content(have.id)
        pull = self._pulls.get(device)
        is_same = pull is not None and pull.sending.id == have.id
        sending = pull.sending if pull and is_same else Sending(content.body, content.chunk)
        sending.heard(have.have, min(have.win, self._window))
        self._pulls[device] = _Pull(sending, now)
        if sending.is_complete:
            self.stop(device, have.id)
        chunks = [
            ChunkMessage(have.id, i, blob=sending.piece(i))
            for i in sending.due(min(self._window, room // content.chunk))
        ]
        pieces = (self._piece(device, chunk, now) for chunk in chunks)
        return tuple(answer for answer in pieces if answer is not None)

    def stop(self, device: str, ref: bytes | None) -> None:
        """Cancel a device's download of a body."""
        pull = self._pulls.get(device)
        if pull and pull.sending.id == ref:
            del self._pulls[device]

    def drop(self, device: str) -> None:
        """Delete the download of a device; the device asks again."""
        self._pulls.pop(device, None)

    def forget(self, now: float) -> None:
        """Delete the downloads of which nothing was requested for a while."""
        for device in [d for d, pull in self._pulls.items() if now - pull.at > IDLE]:
            del self._pulls[device]

    def _content(self, ref: bytes) -> DownloadBody:
        """Return a content; all downloads of it share its bytes."""
        if ref not in self._contents:
            found = self._store.contents.get(ref)
            if found is None:
                raise Refused(Reason.NOT_FOUND, ref.hex())
            self._contents[ref] = found
            while len(self._contents) > _KEPT:
                self._contents.popitem(last=False)
        return self._contents[ref]

    def _piece(self, device: str, chunk: ChunkMessage, now: float) -> Reply | None:
        piece = chunk.id, chunk.i
        slot = self._slot(chunk) if self._crowds.grows(device, piece, now) else None
        if slot is None:
            return self._sealer.seal(device, chunk)
        if not self._crowds.is_waiting(piece, now):
            return None
        self._counts["SLOTS_AGAIN"] += 1
        return slot

    def _slot(self, chunk: ChunkMessage) -> Reply | None:
        for audience in self._audiences:
            topic = topics.part(self._sealer.bodies.fleet, chunk.i, audience)
            payload = self._store.announcements.get(topic)
            if not payload:
                continue
            part = codec.decode(PartMessage, envelope.unproved(payload))
            if (part.id, part.blob) == (chunk.id, chunk.blob):
                return Reply(topic, payload, retain=True)
        return None

    def serve(self, audience: str) -> None:
        self._audiences[audience] = None
