"""Large bodies on their way in: who is served, who waits in the queue, and until when.

An offer that finds no room waits here, and is granted when room is there: the device need not
come back. Nothing of this outlives the process; a device that hears nothing offers again.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.envelope import Sealed, ref
from edge_sdk.wire.protocol.messages import (
    BODY_LIMIT,
    CHUNK_LIMIT,
    ChunkMessage,
    GrantMessage,
    HaveMessage,
    OfferMessage,
)
from edge_sdk.wire.protocol.transfer import (
    FIRST_GAP,
    IDLE,
    MOST_IN_FLIGHT,
    Receiving,
    check_sizes,
    count_of,
)

KEEP = 30.0  # s without a new chunk, after which a place goes to a device that waits
TURN = 120.0  # s after which even a slow upload gives way to a device that waits
PATIENCE = 1800.0  # s that an offer waits without being repeated: twice the longest time-out
MESSAGES = 200  # chunks on their way; a broker may keep 1,000 messages for us
IN_FLIGHT = MESSAGES * CHUNK_LIMIT  # bytes
LONGEST_WAIT = 900.0  # s ± 50 % that a refused device is told to wait, at most

_TYPICAL = 2.0  # seconds an upload takes, before the first was seen
_SLOWEST_GAP = 6.0  # s of silence before chunks are asked for; below the device's own 10 s


@dataclass(frozen=True, slots=True)
class UploadCapacity:
    """How much may be on its way at once.

    Attributes:
        in_flight: Bytes of granted chunks that have not arrived, of all devices together.
        messages: The same in chunks.
        memory: Bytes reserved for bodies that are being put together.
        chunks: Largest window of one upload.
        waiting: Offers in the queue, at most one a device; about 1 kB each.
    """

    in_flight: int = IN_FLIGHT
    messages: int = MESSAGES
    memory: int = 256 * 1024 * 1024
    chunks: int = MOST_IN_FLIGHT
    waiting: int = 16_384


@dataclass(slots=True)
class Upload:
    """One device's body on its way.

    Attributes:
        device: Whose.
        machine: The chunks that are here.
        offer: What is being sent.
        window: Chunks that may be on their way at most.
        began: When it was granted first.
        granted: When it got the place that it has; None once it lost it.
        is_timed: Whether its first chunk tells how long an answer takes.
    """

    device: str
    machine: Receiving
    offer: OfferMessage
    window: int
    began: float
    granted: float | None
    is_timed: bool = True

    @property
    def in_flight(self) -> int:
        """Chunks that may be on their way now."""
        return 0 if self.granted is None else min(self.window, self.machine.missing)

    def gives_way(self, now: float) -> bool:
        """Whether its place goes to a device that waits."""
        if self.granted is None:
            return False
        return now >= self.gives_way_at

    @property
    def gives_way_at(self) -> float:
        """When its place goes to a device that waits, if nothing more arrives."""
        if self.granted is None:
            return float("inf")
        return min(max(self.machine.arrived, self.granted) + KEEP, self.granted + TURN)

    def progress(self, now: float) -> HaveMessage | None:
        """Return what to tell the device of what is here, if it is time to tell."""
        if self.granted is None:
            return None
        report = self.machine.report(now)
        if report is None:
            return None
        return HaveMessage(ref(self.offer.digest), report.having, report.window)

    def whole(self) -> Sealed:
        """Return the body as it would have come in one piece.

        Raises:
            Refused: BAD_DIGEST if it is not what was signed.
        """
        offer = self.offer
        return Sealed(offer.of, self.device, self.machine.body(), offer.digest, offer.sig)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An offer in the queue, and when it was heard last."""

    offer: OfferMessage
    heard: float


class AnswerTime:
    """How long devices take to answer a grant: RFC 6298's estimator of round trips.

    >>> times = AnswerTime()
    >>> times.gap
    6.0
    >>> times.add(1.0)
    >>> times.gap
    3.0
    """

    def __init__(self) -> None:
        """Know nothing."""
        self._mean = self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """Take one measurement in."""
        if not self._mean:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    @property
    def gap(self) -> float:
        """Seconds of silence after which chunks count as lost; long until an answer was seen."""
        if not self._mean:
            return _SLOWEST_GAP
        return min(max(FIRST_GAP, self._mean + 4 * self._deviation), _SLOWEST_GAP)


class Uploads:
    """At most one upload and one place in the queue a device; the oldest offer is served first.

    Chunk sets live in memory only: after a restart the next offer begins with nothing.
    """

    def __init__(self, room: UploadCapacity, rng: random.Random) -> None:
        """Begin with nobody.

        Args:
            room: What fits.
            rng: Spreads waits and timers; no result depends on it.
        """
        self._room = room
        self._rng = rng
        self._active: dict[str, Upload] = {}
        self._queue: OrderedDict[str, Waiting] = OrderedDict()
        self._typical = _TYPICAL
        self._answers = AnswerTime()

    def resize(self, room: UploadCapacity) -> None:
        """Let so many in from now on; who is being served stays."""
        self._room = room

    def __len__(self) -> int:
        """How many bodies are being put together, those that lost their place included."""
        return len(self._active)

    @property
    def granted(self) -> int:
        """How many devices have a place."""
        return sum(upload.granted is not None for upload in self._active.values())

    @property
    def waiting(self) -> int:
        """How many offers wait in the queue."""
        return len(self._queue)

    @property
    def in_flight(self) -> tuple[int, int]:
        """Chunks that may be on their way now, and their bytes."""
        going = [(upload.in_flight, upload.offer.chunk) for upload in self._active.values()]
        return sum(count for count, _ in going), sum(count * chunk for count, chunk in going)

    # --- offers

    def offered(self, device: str, offer: OfferMessage, now: float) -> GrantMessage | None:
        """Serve an offer, or let it wait; a newer one replaces the older.

        Returns:
            What may come now; None while it waits in the queue.

        Raises:
            Refused: BUSY if the queue is full; TOO_LARGE or MALFORMED for impossible sizes.
        """
        running = self._active.get(device)
        if running is not None and not _is_same(running.offer, offer):
            self._forget(device)
            running = None
        if offer.size > BODY_LIMIT:
            raise Refused(Reason.TOO_LARGE, f"{offer.size} bytes")
        check_sizes(offer.digest, offer.size, offer.chunk)
        if running is not None and running.granted is not None:
            return self.grant(device, offer, now)
        if not self._queue and self._fits(device, offer):
            return self.grant(device, offer, now)
        if device not in self._queue and len(self._queue) >= self._room.waiting:
            raise Refused(Reason.BUSY, f"{len(self._queue)} offers are waiting")
        self._queue[device] = Waiting(offer, now)
        return None

    def next_waiting(self, now: float) -> tuple[str, OfferMessage] | None:
        """Take the oldest offer out of the queue if there is room for it; ``grant`` it next."""
        if self._queue:
            self._recall(now)
        while self._queue:
            device, waiting = next(iter(self._queue.items()))
            is_over = now - waiting.heard > PATIENCE
            if not is_over and not self._fits(device, waiting.offer):
                return None
            del self._queue[device]
            if not is_over:
                return device, waiting.offer
        return None

    def grant(self, device: str, offer: OfferMessage, now: float) -> GrantMessage:
        """Give a device a place: say what is here of its body, and how much may come."""
        self._queue.pop(device, None)
        upload = self._active.get(device)
        if upload is None:
            upload = self._begun(device, offer, now)
        else:
            upload.is_timed = False  # which grant a chunk answers is not known
            upload.granted = now if upload.granted is None else upload.granted
        upload.machine.report(now)  # the grant is one: the next is due later
        machine = upload.machine
        return GrantMessage(ref(offer.digest), machine.having, machine.window, int(1000 * KEEP))

    def leave(self, device: str) -> None:
        """Take back the place of a device that is gone; what came of its body stays a while."""
        self._queue.pop(device, None)
        if device in self._active:
            self._active[device].granted = None

    def wait(self) -> int:
        """Return how long a device should wait for which the queue is full, in milliseconds."""
        seconds = len(self._queue) * self._typical / max(1, self.granted)
        return int(1000 * min(max(1.0, seconds), LONGEST_WAIT) * self._rng.uniform(0.5, 1.5))

    # --- chunks

    def expects(self, device: str, chunk: ChunkMessage) -> bool:
        """Whether a chunk is of the body that this device was granted."""
        upload = self._active.get(device)
        return upload is not None and upload.machine.id == chunk.id

    def add(self, device: str, chunk: ChunkMessage, now: float) -> Sealed | HaveMessage | None:
        """Take an expected chunk; return the whole body with the last one, or what to tell.

        Raises:
            Refused: BAD_CHUNK; BAD_DIGEST for a body that nobody signed, which is then forgotten.
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
        """A device gives up the body that it was sending, or offered."""
        upload, waiting = self._active.get(device), self._queue.get(device)
        if upload is not None and upload.machine.id == transfer:
            self._forget(device)
        if waiting is not None and ref(waiting.offer.digest) == transfer:
            del self._queue[device]

    def drop(self, device: str) -> None:
        """Give a device's memory and its place in the queue back."""
        self._forget(device)
        self._queue.pop(device, None)

    # --- time

    def due(self, now: float) -> list[tuple[str, HaveMessage]]:
        """Return what to ask whom for now; uploads that went silent are dropped."""
        for device in [d for d, u in self._active.items() if u.machine.is_expired(now)]:
            self._forget(device)
        return [
            (device, have)
            for device, upload in sorted(self._active.items())
            if (have := upload.progress(now)) is not None
        ]

    @property
    def next_due(self) -> float | None:
        """When ``due`` or ``next_waiting`` should be asked again, on the clock they are asked."""
        return min(self._dues(), default=None)

    def _dues(self) -> Iterator[float]:
        for upload in self._active.values():
            if upload.granted is None:
                yield upload.machine.arrived + IDLE
                continue
            yield upload.machine.next_due
            if self._queue:
                yield upload.gives_way_at

    # --- how

    def _begun(self, device: str, offer: OfferMessage, now: float) -> Upload:
        """Reserve memory for a body, and begin to put it together."""
        window = self._window(offer)
        machine = Receiving(
            offer.digest,
            offer.size,
            offer.chunk,
            now=now,
            rng=self._rng,
            window=window,
            most=window,
            gap=self._answers.gap,
        )
        upload = self._active[device] = Upload(device, machine, offer, window, now, now)
        return upload

    def _window(self, offer: OfferMessage) -> int:
        """Return the largest window of one upload: all that is free may be less."""
        room = self._room
        return max(1, min(room.chunks, room.messages, room.in_flight // offer.chunk))

    def _fits(self, device: str, offer: OfferMessage) -> bool:
        """Whether there is room for a device's body, once bodies without a place make way."""
        upload, room = self._active.get(device), self._room
        wanted = min(self._window(offer), count_of(offer.size, offer.chunk))
        if upload is not None:
            wanted = min(upload.window, upload.machine.missing)
        chunks, size = self.in_flight
        is_full = chunks + wanted > room.messages or size + wanted * offer.chunk > room.in_flight
        if chunks and is_full:
            return False
        return upload is not None or self._makes_room(offer.size)

    def _makes_room(self, size: int) -> bool:
        """Forget bodies without a place, the oldest first, until so many bytes are free."""
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
        """Take places back; who is only slow goes to the end of the queue."""
        for upload in [u for u in self._active.values() if u.gives_way(now)]:
            is_slow = now - upload.machine.arrived < KEEP
            upload.granted = None
            if is_slow and upload.device not in self._queue:
                self._queue[upload.device] = Waiting(upload.offer, now)

    def _forget(self, device: str) -> None:
        self._active.pop(device, None)


def _is_same(running: OfferMessage, offer: OfferMessage) -> bool:
    """Whether a repeated offer continues the set; another chunk size starts a new one."""
    return (running.digest, running.size, running.chunk) == (
        offer.digest,
        offer.size,
        offer.chunk,
    )
