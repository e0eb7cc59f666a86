"""Schedule uploads of large bodies: grants, the queue of offers, and time-outs.

An offer that finds no room is queued and granted when there is room; the device need not repeat
it. Nothing here is durable: a device that receives no reply offers again.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages, transfer
from edge_sdk.protocol.envelope import Sealed, ref

KEEP = 30.0  # s without a new chunk, after which a slot passes to a waiting device
TURN = 120.0  # s after which even a slow upload yields its slot to a waiting device
PATIENCE = 1800.0  # s that an offer stays queued without a repeat: twice the longest time-out
MESSAGES = 200  # chunks in flight; a broker may queue 1,000 messages for the aggregator
IN_FLIGHT = MESSAGES * messages.CHUNK_LIMIT  # bytes
LONGEST_WAIT = 900.0  # s ± 50 %, longest retry delay sent to a refused device

_TYPICAL = 2.0  # s that an upload takes, until one is measured
_SLOWEST_GAP = 6.0  # s without chunks before they are requested; below the device's own 10 s


@dataclass(frozen=True, slots=True)
class UploadCapacity:
    """Capacity for uploads in flight."""

    # granted chunks that have not arrived, of all devices together, bytes
    in_flight: int = IN_FLIGHT
    messages: int = MESSAGES  # the same in chunks
    memory: int = 256 * 1024 * 1024  # memory reserved for incomplete bodies, bytes
    chunks: int = transfer.MOST_IN_FLIGHT  # largest window of one upload, chunks
    waiting: int = 16_384  # length of the queue of offers, at most one per device; about 1 kB each


@dataclass(slots=True)
class Upload:
    """Upload of one device."""

    device: str
    machine: transfer.Receiving  # receiver with the chunks that have arrived
    offer: messages.OfferMessage
    window: int  # largest number of chunks in flight
    began: float  # time of the first grant
    # time at which it got its present slot; None once it lost it
    granted: float | None = field(init=False)
    # true if its first chunk measures the response time
    is_timed: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Begin with the slot of the first grant."""
        self.granted = self.began

    @property
    def in_flight(self) -> int:
        """Return the number of chunks that may be in flight now."""
        return 0 if self.granted is None else min(self.window, self.machine.missing)

    def gives_way(self, now: float) -> bool:
        """Return whether it yields its slot to a waiting device."""
        if self.granted is None:
            return False
        return now >= self.gives_way_at

    @property
    def gives_way_at(self) -> float:
        """Return the time at which it yields its slot without further chunks."""
        if self.granted is None:
            return float("inf")
        return min(max(self.machine.arrived, self.granted) + KEEP, self.granted + TURN)

    def progress(self, now: float) -> messages.HaveMessage | None:
        """Return the progress report for the device, if one is due."""
        if self.granted is None:
            return None
        report = self.machine.report(now)
        if report is None:
            return None
        return messages.HaveMessage(ref(self.offer.digest), report.having, report.window)

    def whole(self) -> Sealed:
        """Return the complete body as a sealed message; raise Refused, BAD_DIGEST, if it is not the signed one."""
        offer = self.offer
        return Sealed(offer.of, self.device, self.machine.body(), offer.digest, offer.sig)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queued offer, and the time of its last repeat."""

    offer: messages.OfferMessage
    repeated_at: float


class AnswerTime:
    """Estimator of the time from a grant to its first chunk (RFC 6298).

    >>> times = AnswerTime()
    >>> times.gap
    6.0
    >>> times.add(1.0)
    >>> times.gap
    3.0
    """

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """Add one measurement, in seconds."""
        if not self._mean:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    @property
    def gap(self) -> float:
        """Return the time after which chunks count as lost, in seconds."""
        if not self._mean:
            return _SLOWEST_GAP
        return min(max(transfer.FIRST_GAP, self._mean + 4 * self._deviation), _SLOWEST_GAP)


class Uploads:
    """At most one upload and one queued offer per device; the oldest offer is served first.

    Chunks are kept in memory only: after a restart an upload begins again.
    """

    def __init__(self, room: UploadCapacity, rng: random.Random) -> None:
        """Start without uploads; no result depends on the random jitter of waits and timers."""
        self._room = room
        self._rng = rng
        self._active: dict[str, Upload] = {}
        self._queue: OrderedDict[str, Waiting] = OrderedDict()
        self._typical = _TYPICAL
        self._answers = AnswerTime()

    def resize(self, room: UploadCapacity) -> None:
        """Change the capacity; running uploads continue."""
        self._room = room

    def __len__(self) -> int:
        return len(self._active)

    @property
    def granted(self) -> int:
        return sum(upload.granted is not None for upload in self._active.values())

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> tuple[int, int]:
        """Return the chunks that may be in flight now, and their bytes."""
        going = [(upload.in_flight, upload.offer.chunk) for upload in self._active.values()]
        return sum(count for count, _ in going), sum(count * chunk for count, chunk in going)

    # --- offers

    def offered(
        self, device: str, offer: messages.OfferMessage, now: float
    ) -> messages.GrantMessage | None:
        """Grant or queue an offer; a newer offer replaces an older one.

        Returns:
            The grant; None while the offer is queued, and where all chunks follow it unasked.

        Raises:
            Refused: BUSY if the queue is full; TOO_LARGE or MALFORMED for impossible sizes.
        """
        running = self._active.get(device)
        if running is not None and not _is_same(running.offer, offer):
            self._forget(device)
            running = None
        if offer.size > messages.BODY_LIMIT:
            raise Refused(Reason.TOO_LARGE, f"{offer.size} bytes")
        transfer.check_sizes(offer.digest, offer.size, offer.chunk)
        is_running = running is not None and running.granted is not None
        if is_running or (not self._queue and self._fits(device, offer)):
            grant = self.grant(device, offer, now)
            is_ahead = running is None and offer.ahead == messages.count_of(offer.size, offer.chunk)
            self._active[device].is_timed &= not is_ahead
            return None if is_ahead else grant
        if device not in self._queue and len(self._queue) >= self._room.waiting:
            raise Refused(Reason.BUSY, f"{len(self._queue)} offers are waiting")
        self._queue[device] = Waiting(offer, now)
        return None

    def next_waiting(self, now: float) -> tuple[str, messages.OfferMessage] | None:
        """Remove the oldest offer from the queue if there is room for it; ``grant`` it next."""
        if self._queue:
            self._recall(now)
        while self._queue:
            device, waiting = next(iter(self._queue.items()))
            is_over = now - waiting.repeated_at > PATIENCE
            if not is_over and not self._fits(device, waiting.offer):
                return None
            del self._queue[device]
            if not is_over:
                return device, waiting.offer
        return None

    def grant(self, device: str, offer: messages.OfferMessage, now: float) -> messages.GrantMessage:
        """Assign a slot; return the chunks that have arrived and the window."""
        self._queue.pop(device, None)
        upload = self._active.get(device)
        if upload is None:
            upload = self._begun(device, offer, now)
        else:
            upload.is_timed = False  # ambiguous which grant a chunk answers
            upload.granted = now if upload.granted is None else upload.granted
        upload.machine.report(now)  # the grant counts as a report
        machine = upload.machine
        return messages.GrantMessage(
            ref(offer.digest), machine.having, machine.window, int(1000 * KEEP)
        )

    def leave(self, device: str) -> None:
        """Release the slot of a departed device; its chunks are kept for a while."""
        self._queue.pop(device, None)
        if device in self._active:
            self._active[device].granted = None

    def wait(self) -> int:
        """Return the retry delay while the queue is full, in milliseconds."""
        seconds = len(self._queue) * self._typical / max(1, self.granted)
        return int(1000 * min(max(1.0, seconds), LONGEST_WAIT) * self._rng.uniform(0.5, 1.5))

    # --- chunks

    def is_queued(self, device: str, chunk: messages.ChunkMessage) -> bool:
        waiting = self._queue.get(device)
        return waiting is not None and ref(waiting.offer.digest) == chunk.id

    def expects(self, device: str, chunk: messages.ChunkMessage) -> bool:
        upload = self._active.get(device)
        return upload is not None and upload.machine.id == chunk.id

    def add(
        self, device: str, chunk: messages.ChunkMessage, now: float
    ) -> Sealed | messages.HaveMessage | None:
        """Add an expected chunk; return the whole body after the last one, or a due report.

        Raises:
            Refused: BAD_CHUNK; BAD_DIGEST for a body that was not signed, which is then dropped.
        """
        upload = self._active[device]
        is_new = upload.machine.add(chunk.id, chunk.i, chunk.blob, now)
        if is_new and upload.is_timed and upload.granted is not None:
            self._answers.add(now - upload.granted)
            upload.is_timed = False
        if not upload.machine.is_complete:
            if upload.granted is None and not self._queue and self._fits(device, upload.offer):
                upload.granted = now
            return upload.progress(now)
        try:
            whole = upload.whole()
        except Refused:
            self.drop(device)
            raise
        self._typical += 0.1 * (now - upload.began - self._typical)
        self.drop(device)
        return whole

    def abort(self, device: str, transfer: bytes | None) -> None:
        """Drop a body whose device cancels its upload or offer."""
        upload, waiting = self._active.get(device), self._queue.get(device)
        if upload is not None and upload.machine.id == transfer:
            self._forget(device)
        if waiting is not None and ref(waiting.offer.digest) == transfer:
            del self._queue[device]

    def drop(self, device: str) -> None:
        self._forget(device)
        self._queue.pop(device, None)

    # --- time

    def due(self, now: float) -> list[tuple[str, messages.HaveMessage]]:
        """Return the due chunk requests, by device; timed-out uploads are dropped."""
        for device in [d for d, u in self._active.items() if u.machine.is_expired(now)]:
            self._forget(device)
        return [
            (device, have)
            for device, upload in sorted(self._active.items())
            if (have := upload.progress(now)) is not None
        ]

    @property
    def next_due(self) -> float | None:
        """Return the next time at which ``due`` or ``next_waiting`` has a result."""
        return min(self._dues(), default=None)

    def _dues(self) -> Iterator[float]:
        for upload in self._active.values():
            if upload.granted is None:
                yield upload.machine.arrived + transfer.IDLE
                continue
            yield upload.machine.next_due
            if self._queue:
                yield upload.gives_way_at

    # --- helpers

    def _begun(self, device: str, offer: messages.OfferMessage, now: float) -> Upload:
        window = self._window(offer)
        machine = transfer.Receiving(
            offer.digest,
            offer.size,
            offer.chunk,
            now=now,
            rng=self._rng,
            pace=transfer.Pace(window, self._answers.gap),
        )
        upload = self._active[device] = Upload(device, machine, offer, window, now)
        return upload

    def _window(self, offer: messages.OfferMessage) -> int:
        room = self._room
        return max(1, min(room.chunks, room.messages, room.in_flight // offer.chunk))

    def _fits(self, device: str, offer: messages.OfferMessage) -> bool:
        """Return whether a body fits, after dropping bodies without a slot if necessary."""
        upload, room = self._active.get(device), self._room
        wanted = min(self._window(offer), messages.count_of(offer.size, offer.chunk))
        if upload is not None:
            wanted = min(upload.window, upload.machine.missing)
        chunks, size = self.in_flight
        is_full = chunks + wanted > room.messages or size + wanted * offer.chunk > room.in_flight
        if chunks and is_full:
            return False
        return upload is not None or self._makes_room(offer.size)

    def _makes_room(self, size: int) -> bool:
        """Drop bodies without a slot, oldest first, until ``size`` bytes are free."""
        reserved = sum(upload.offer.size for upload in self._active.values())
        stalled = [upload for upload in self._active.values() if upload.granted is None]
        if reserved - sum(upload.offer.size for upload in stalled) + size > self._room.memory:
            return False
        for upload in sorted(stalled, key=lambda one: one.machine.arrived):
            if reserved + size <= self._room.memory:
                break
            reserved -= upload.offer.size
            self._forget(upload.device)
        return True

    def _recall(self, now: float) -> None:
        for upload in [u for u in self._active.values() if u.gives_way(now)]:
            is_slow = now - upload.machine.arrived < KEEP
            upload.granted = None
            if is_slow and upload.device not in self._queue:
                self._queue[upload.device] = Waiting(upload.offer, now)

    def _forget(self, device: str) -> None:
        self._active.pop(device, None)


def _is_same(running: messages.OfferMessage, offer: messages.OfferMessage) -> bool:
    return (running.digest, running.size, running.chunk) == (offer.digest, offer.size, offer.chunk)
