"""Large bodies on their way in: who is being served, who has to wait, and until when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from edge_sdk.wire.envelope import Sealed, ref
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.messages import BODY_LIMIT, Chunk, Grant, Have, Offer
from edge_sdk.wire.transfer import IDLE, MOST_IN_FLIGHT, Receiving

KEEP = int(IDLE * 1000)
"""How long a grant's reservation lasts without a new chunk, in milliseconds."""

_TYPICAL = 2.0  # seconds an upload takes, before the first was seen


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be on its way at once.

    Attributes:
        uploads: Devices served at a time; with 8 chunks each this stays below a broker's queue.
        memory: Bytes reserved in all.
        chunks: Largest window of one upload.
    """

    uploads: int = 20
    memory: int = 256 * 1024 * 1024
    chunks: int = MOST_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Upload:
    """One device's body on its way."""

    device: str
    machine: Receiving
    offer: Offer
    began: float

    def progress(self, now: float) -> Have | None:
        """Return what to tell the device of what is here, if it is time to tell."""
        report = self.machine.report(now)
        if report is None:
            return None
        return Have(ref(self.offer.digest), report.having, report.window)

    def whole(self) -> Sealed:
        """Return the body as it would have come in one piece.

        Raises:
            Refused: BAD_DIGEST if it is not what was signed.
        """
        offer = self.offer
        return Sealed(offer.of, self.device, self.machine.body(), offer.digest, offer.sig)


class Uploads:
    """At most one upload a device; what does not fit waits its turn, oldest first.

    Chunk sets live in memory only: after a restart the next offer begins with nothing.
    """

    def __init__(self, room: Room, rng: random.Random) -> None:
        """Begin with nobody.

        Args:
            room: What fits.
            rng: Spreads waits and timers; no result depends on it.
        """
        self._room = room
        self._rng = rng
        self._active: dict[str, Upload] = {}
        self._waiting: dict[str, float] = {}
        self._typical = _TYPICAL

    def resize(self, room: Room) -> None:
        """Let so many in from now on; who is being served stays."""
        self._room = room

    def __len__(self) -> int:
        """How many uploads are being served."""
        return len(self._active)

    def grant(self, device: str, offer: Offer, now: float) -> Grant:
        """Serve an offer: say what is here of it, how much may come, and for how long.

        Raises:
            Refused: As ``offered`` says.
        """
        upload = self.offered(device, offer, now)
        upload.machine.report(now)  # the grant is one: the next is due later
        return Grant(ref(offer.digest), upload.machine.having, upload.machine.window, KEEP)

    def expects(self, device: str, chunk: Chunk) -> bool:
        """Whether a chunk is of the body that this device was granted."""
        upload = self._active.get(device)
        return upload is not None and upload.machine.id == chunk.id

    def add(self, device: str, chunk: Chunk, now: float) -> Sealed | Have | None:
        """Take an expected chunk; return the whole body with the last one, or what to tell.

        Raises:
            Refused: BAD_CHUNK; BAD_DIGEST for a body that nobody signed, which is then forgotten.
        """
        upload = self._active[device]
        upload.machine.add(chunk.id, chunk.i, chunk.blob, now)
        if not upload.machine.is_complete:
            return upload.progress(now)
        try:
            whole = upload.whole()
        except Refused:
            self.drop(device)
            raise
        self.done(device, now)
        return whole

    def abort(self, device: str, transfer: bytes | None) -> None:
        """A device gives up the body that it was sending."""
        upload = self._active.get(device)
        if upload is not None and upload.machine.id == transfer:
            self.drop(device)

    def offered(self, device: str, offer: Offer, now: float) -> Upload:
        """Return the upload for an offer: the running one, or a new one that replaces it.

        Raises:
            Refused: BUSY if there is no room now; TOO_LARGE or MALFORMED for impossible sizes.
        """
        running = self._active.get(device)
        if running and _is_same(running.offer, offer):
            return running
        self.drop(device)
        if offer.size > BODY_LIMIT:
            raise Refused(Reason.TOO_LARGE, f"{offer.size} bytes")
        reserved = sum(upload.offer.size for upload in self._active.values())
        is_full = len(self._active) >= self._room.uploads
        if is_full or reserved + offer.size > self._room.memory:
            self._waiting.setdefault(device, now)
            raise Refused(Reason.BUSY, f"{len(self._active)} uploads on their way")
        machine = Receiving(
            offer.digest,
            offer.size,
            offer.chunk,
            now=now,
            rng=self._rng,
            window=self._room.chunks,
            most=self._room.chunks,
        )
        self._waiting.pop(device, None)
        self._active[device] = Upload(device, machine, offer, now)
        return self._active[device]

    def wait(self, device: str) -> int:
        """Return how long a device that found no room should wait, in milliseconds."""
        queue = sorted(self._waiting, key=self._waiting.__getitem__)
        place = queue.index(device) + 1 if device in self._waiting else 1
        seconds = place * self._typical / self._room.uploads * self._rng.uniform(0.5, 1.5)
        return int(1000 * max(0.5, seconds))

    def done(self, device: str, now: float) -> None:
        """Note that a device's upload was settled, and give its memory back."""
        upload = self._active.get(device)
        if upload:
            self._typical += 0.1 * (now - upload.began - self._typical)
        self.drop(device)

    def drop(self, device: str) -> None:
        """Give a device's memory back."""
        self._active.pop(device, None)

    def due(self, now: float) -> list[tuple[str, Have]]:
        """Return what to ask whom for now; uploads that went silent are dropped."""
        for device in [d for d, u in self._active.items() if u.machine.is_expired(now)]:
            self.drop(device)
        for device in [d for d, since in self._waiting.items() if now - since > IDLE]:
            del self._waiting[device]
        return [
            (device, have)
            for device, upload in sorted(self._active.items())
            if (have := upload.progress(now)) is not None
        ]

    @property
    def next_due(self) -> float | None:
        """When ``due`` should be asked again, on the clock it is asked with."""
        return min((u.machine.next_due for u in self._active.values()), default=None)


def _is_same(running: Offer, offer: Offer) -> bool:
    """Whether a repeated offer continues the set; another chunk size starts a new one."""
    return (running.digest, running.size, running.chunk) == (
        offer.digest,
        offer.size,
        offer.chunk,
    )
