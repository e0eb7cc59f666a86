"""A large body in chunks, either direction: two machines that never touch a socket or a clock.

The receiver drives. It says which chunks it has and how many may be on their way; the sender sends
what is missing, and a chunk a broker acknowledged and lost is simply still missing. Neither machine
knows the messages that carry its words: they take and give indices, bitmaps and bytes.
Rules: wire protocol, section "Chunked bodies".
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edge_sdk.wire.errors import Reason, Refused

CHUNK: Final = 32_768  # bytes, the default and the largest
SMALLEST_CHUNK: Final = 8_192  # bytes; a link that takes less cannot carry uploads
MOST_CHUNKS: Final = 256
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_IN_FLIGHT: Final = 8  # chunks
FIRST_GAP: Final = 2.0  # s of silence before the receiver asks again; doubles
LONGEST_GAP: Final = 60.0  # s
IDLE: Final = 120.0  # s without a chunk: the receiver gives the memory back
SILENCE: Final = 10.0  # s without a word: the sender offers again


def count_of(size: int, chunk: int) -> int:
    """How many chunks a body of ``size`` bytes makes.

    >>> count_of(32_769, 32_768)
    2
    """
    return -(-size // chunk)


def id_of(digest: bytes) -> bytes:
    """The name of a transfer: the first half of the body's SHA-256."""
    return digest[:16]


def bitmap(indices: Iterable[int], count: int) -> bytes:
    """Write a set of chunk numbers: bit i of byte i // 8, least significant bit first.

    >>> bitmap([0, 1, 8], 9).hex(), bitmap([7], 9).hex()
    ('0301', '8000')
    """
    mask = 0
    for i in indices:
        mask |= 1 << i
    return _pack(mask, count)


def indices(having: bytes, count: int) -> tuple[int, ...]:
    """Read a bitmap; the empty one means nothing yet.

    Raises:
        Refused: MALFORMED, if it is not as long as ``count`` needs or claims a chunk beyond it.

    >>> indices(bytes.fromhex("0301"), 9), indices(b"", 9)
    ((0, 1, 8), ())
    >>> indices(bytes.fromhex("0302"), 9)
    Traceback (most recent call last):
    edge_sdk.wire.errors.Refused: MALFORMED: bitmap of 2 bytes does not fit 9 chunks
    """
    mask = _unpack(having, count)
    return tuple(i for i in range(count) if mask >> i & 1)


def _pack(mask: int, count: int) -> bytes:
    return mask.to_bytes(count_of(count, 8), "little")


def _unpack(having: bytes, count: int) -> int:
    mask = int.from_bytes(having, "little")
    if (having and len(having) != count_of(count, 8)) or mask >> count:
        raise Refused(
            Reason.MALFORMED, f"bitmap of {len(having)} bytes does not fit {count} chunks"
        )
    return mask


def chunk_size(max_payload: int) -> int:
    """The chunk a link can carry, from the largest payload its broker takes.

    Raises:
        Refused: UNUSABLE_LINK, if that is below the smallest chunk.

    >>> chunk_size(65_536), chunk_size(20_480)
    (32768, 19968)
    """
    chunk = min(CHUNK, max_payload - 512)  # 512 B for the chunk's own envelope
    if chunk < SMALLEST_CHUNK:
        raise Refused(Reason.UNUSABLE_LINK, f"the broker takes {max_payload} bytes at a time")
    return chunk


class Sending:
    """The half that has the body.

    Attributes:
        digest: SHA-256 of the body (32 bytes); ``id`` is its first half.
        count: Chunks in all.

    >>> sending = Sending(bytes(20_000), 8_192, now=0.0)
    >>> sending.heard(b"", window=2, now=0.0)
    >>> sending.due(limit=20, now=0.0), sending.due(limit=20, now=0.0)
    ((0, 1), ())
    >>> sending.heard(bitmap([1], 3), window=2, now=1.0)
    >>> sending.due(limit=20, now=1.0)  # 0 may still be on its way, so one more fits
    (2,)
    >>> sending.heard(bitmap([1], 3), window=1, now=3.0)
    >>> sending.due(limit=20, now=3.0)  # asked again with nothing new: what was in flight is lost
    (0,)
    """

    def __init__(self, body: bytes, chunk: int = CHUNK, *, now: float = 0.0) -> None:
        self.body = body
        self.chunk = chunk
        self.digest = hashlib.sha256(body).digest()
        self.count = count_of(len(body), chunk)
        self._has = 0  # chunks the receiver has, as a mask
        self._flying = 0  # chunks sent since, as a mask
        self._window = 0
        self._heard = now

    @property
    def id(self) -> bytes:
        """Name of the transfer, 16 bytes."""
        return id_of(self.digest)

    @property
    def is_complete(self) -> bool:
        """Whether the receiver said that it has every chunk; its receipt is still to come."""
        return self._has == (1 << self.count) - 1

    def heard(self, having: bytes, window: int, now: float) -> None:
        """Take a grant or a progress report: what the receiver has and how much may fly.

        A report with nothing new, or with a smaller window, tells of a gap: everything that was
        on its way counts as lost. One that has less than before comes from a receiver that
        forgot; it starts again from there.

        Raises:
            Refused: MALFORMED, if the bitmap does not fit.
        """
        mask = _unpack(having, self.count)
        is_gap = not mask & ~self._has or window < self._window
        self._flying = 0 if is_gap else self._flying & ~mask
        self._has, self._window, self._heard = mask, max(1, window), now

    def due(self, limit: int, now: float) -> tuple[int, ...]:
        """Which chunks to publish now; they count as on their way from here on.

        Args:
            limit: Most to give, for instance ``Transport.room()``.
            now: Seconds on any monotonic clock, the same for every call.
        """
        limit = min(limit, self._window - self._flying.bit_count())
        missing = (i for i in range(self.count) if not (self._has | self._flying) >> i & 1)
        chosen = tuple(i for i, _ in zip(missing, range(max(0, limit)), strict=False))
        for i in chosen:
            self._flying |= 1 << i
        if chosen:
            self._heard = max(self._heard, now)
        return chosen

    def unsent(self, index: int) -> None:
        """The link had no room for this chunk after all."""
        self._flying &= ~(1 << index)

    def piece(self, index: int) -> bytes:
        """Chunk ``index``: exactly ``chunk`` bytes, the last one shorter.

        Raises:
            IndexError: There is no such chunk.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"chunk {index} of {self.count}")
        return self.body[index * self.chunk : (index + 1) * self.chunk]

    def is_stalled(self, now: float) -> bool:
        """Whether nothing was heard for 10 s after the last chunk went: time to offer again."""
        return now - self._heard >= SILENCE

    def forget_grant(self) -> None:
        """The link or the receiver is gone: nothing may fly until a new grant."""
        self._flying = self._window = 0


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What the receiver has to say: the fields of a ``grant`` or a ``have``."""

    having: bytes  # bitmap; empty = nothing yet
    window: int  # chunks that may be on their way


class Receiving:
    r"""The half that wants the body: a set of chunks, and the patience to ask for the rest.

    Args:
        digest: SHA-256 of the whole body, from a signed offer or manifest (32 bytes).
        size: Bytes in all; they are reserved here and now.
        chunk: Bytes in every chunk but the last.
        now: Seconds on any monotonic clock, the same for every call.
        rng: Spreads the gap timer by ±50 %.
        window: Chunks on their way at first; it halves at a gap and grows by one per clean window.
        most: Where it stops growing.
        gap: Seconds of silence before the receiver asks again; doubles.

    Raises:
        Refused: TOO_LARGE, or MALFORMED for sizes that make no sense.

    >>> import hashlib
    >>> body = bytes(8_192) + b"tail"
    >>> machine = Receiving(
    ...     hashlib.sha256(body).digest(), len(body), 8_192, now=0.0, rng=random.Random(1)
    ... )
    >>> machine.report(0.0)  # the grant, or the first request
    TransferReport(having=b'', window=8)
    >>> machine.add(machine.id, 1, b"tail", now=0.1), machine.add(machine.id, 1, b"tail", now=0.2)
    (True, False)
    >>> machine.report(0.2), machine.report(3.3)  # 2 s ± 50 % after the last arrival
    (None, TransferReport(having=b'\x02', window=4))
    >>> machine.add(machine.id, 0, bytes(8_192), now=3.4), machine.body() == body
    (True, True)
    """

    def __init__(
        self,
        digest: bytes,
        size: int,
        chunk: int,
        *,
        now: float,
        rng: random.Random,
        window: int = MOST_IN_FLIGHT,
        most: int = MOST_IN_FLIGHT,
        gap: float = FIRST_GAP,
    ) -> None:
        check_sizes(digest, size, chunk)
        self.digest = digest
        self.size = size
        self.chunk = chunk
        self.count = count_of(size, chunk)
        self._rng = rng
        self._most = most
        self._window = max(1, min(window, most))
        self._bytes = bytearray(size)
        self._mask = 0
        self._fresh = 0  # new chunks since the last report
        self._clean = 0  # new chunks since the last gap or growth
        self._first_gap = self._gap = gap
        self._arrived = now
        self._ask_at = now  # at once: the first report is the grant
        self._has_asked = False

    @property
    def id(self) -> bytes:
        """Name of the transfer, 16 bytes."""
        return id_of(self.digest)

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is here; ``body`` then tells whether they are the right ones."""
        return self._mask == (1 << self.count) - 1

    @property
    def having(self) -> bytes:
        """The bitmap of what is here; empty if nothing is."""
        return _pack(self._mask, self.count) if self._mask else b""

    @property
    def window(self) -> int:
        """How many chunks may be on their way now."""
        return self._window

    @property
    def missing(self) -> int:
        """How many chunks have not arrived."""
        return self.count - self._mask.bit_count()

    @property
    def arrived(self) -> float:
        """When the last new chunk came; before the first, when the machine was made."""
        return self._arrived

    def add(self, transfer: bytes, index: int, data: bytes, now: float) -> bool:
        """Insert a chunk; False if it was here already (the copy is not looked at).

        Raises:
            Refused: BAD_CHUNK: of another transfer, out of range, or not of its length.
        """
        if transfer != self.id or not 0 <= index < self.count:
            raise Refused(Reason.BAD_CHUNK, f"chunk {index} does not belong here")
        start = index * self.chunk
        if len(data) != min(self.chunk, self.size - start):
            raise Refused(Reason.BAD_CHUNK, f"chunk {index} of {len(data)} bytes")
        if self._mask >> index & 1:
            return False
        self._bytes[start : start + len(data)] = data
        self._mask |= 1 << index
        self._fresh += 1
        self._arrived, self._gap = now, self._first_gap
        self._ask_at = now + self._spread(self._gap)
        self._grow()
        return True

    def report(self, now: float) -> TransferReport | None:
        """What to say now, if anything: progress every half window, or a gap after silence."""
        if self.is_complete:
            return None
        if self._fresh >= max(1, self._window // 2):
            self._fresh = 0
            return TransferReport(self.having, self._window)
        if now < self._ask_at:
            return None
        return self._ask_again(now)

    def body(self) -> bytes:
        """The whole body, once complete.

        Raises:
            Refused: BAD_DIGEST: every chunk is here and they are not what was offered. The set is
                then empty again. NOT_FOUND: chunks are missing.
        """
        if not self.is_complete:
            raise Refused(Reason.NOT_FOUND, "chunks are missing")
        whole = bytes(self._bytes)
        if hashlib.sha256(whole).digest() != self.digest:
            self._mask = self._fresh = self._clean = 0
            raise Refused(Reason.BAD_DIGEST, f"{self.size} bytes are not what was offered")
        return whole

    def is_expired(self, now: float) -> bool:
        """Whether nothing new came for 120 s: give the memory back."""
        return now - self._arrived >= IDLE

    @property
    def next_due(self) -> float:
        """When ``report`` or ``is_expired`` should be asked again, if nothing arrives."""
        return min(self._ask_at, self._arrived + IDLE)

    def _ask_again(self, now: float) -> TransferReport:
        if self._has_asked:  # the first report is no gap
            self._window = max(1, self._window // 2)
            self._gap = min(self._gap * 2, LONGEST_GAP)
        self._has_asked = True
        self._clean = self._fresh = 0
        self._ask_at = now + self._spread(self._gap)
        return TransferReport(self.having, self._window)

    def _grow(self) -> None:
        self._clean += 1
        if self._clean >= self._window and self._window < self._most:
            self._window, self._clean = self._window + 1, 0

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.5, 1.5)


def check_sizes(digest: bytes, size: int, chunk: int) -> None:
    """Refuse a transfer whose sizes make no sense or are beyond the limits.

    Raises:
        Refused: TOO_LARGE or MALFORMED.

    >>> check_sizes(bytes(32), 20_000, 8_192)
    """
    if len(digest) != 32 or size < 1 or not SMALLEST_CHUNK <= chunk <= CHUNK:
        raise Refused(Reason.MALFORMED, f"a transfer of {size} bytes in chunks of {chunk}")
    if size > MOST_BYTES or count_of(size, chunk) > MOST_CHUNKS:
        raise Refused(Reason.TOO_LARGE, f"{size} bytes in {count_of(size, chunk)} chunks")
