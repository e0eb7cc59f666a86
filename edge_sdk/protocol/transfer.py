"""Receive a large body in chunks, in either direction: a machine without socket or clock.

The receiver drives. It reports which chunks it has and how many may be in flight; the sender sends
the missing ones, and a chunk that a broker acknowledged and lost is simply still missing. The
machine is independent of the message types: it takes and returns indices, bitmaps and bytes.
Rules: wire protocol, section "Chunked bodies".
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m

MOST_IN_FLIGHT: Final = 8  # chunks
FIRST_GAP: Final = 2.0  # s without a chunk before the receiver asks again; doubles
LONGEST_GAP: Final = 60.0  # s
IDLE: Final = 120.0  # s without a chunk: the receiver frees the memory


def id_of(digest: bytes) -> bytes:
    """Return the name of a transfer: the first half of the body's SHA-256."""
    return digest[:16]


def bitmap(indices: Iterable[int], count: int) -> bytes:
    """Encode a set of chunk numbers: bit i of byte i // 8, least significant bit first.

    >>> bitmap([0, 1, 8], 9).hex(), bitmap([7], 9).hex()
    ('0301', '8000')
    """
    mask = 0
    for i in indices:
        mask |= 1 << i
    return _pack(mask, count)


def indices(having: bytes, count: int) -> tuple[int, ...]:
    """Decode a bitmap; the empty one means no chunk.

    Raises:
        Refused: MALFORMED, if its length does not fit ``count`` or a bit beyond it is set.

    >>> indices(bytes.fromhex("0301"), 9), indices(b"", 9)
    ((0, 1, 8), ())
    >>> indices(bytes.fromhex("0302"), 9)
    Traceback (most recent call last):
    edge_sdk.errors.Refused: MALFORMED: bitmap of 2 bytes does not fit 9 chunks
    """
    mask = mask_of(having, count)
    return tuple(i for i in range(count) if mask >> i & 1)


def _pack(mask: int, count: int) -> bytes:
    return mask.to_bytes(m.count_of(count, 8), "little")


def mask_of(having: bytes, count: int) -> int:
    """Return a bitmap as a number, as ``indices`` reads it."""
    mask = int.from_bytes(having, "little")
    if (having and len(having) != m.count_of(count, 8)) or mask >> count:
        raise Refused(
            Reason.MALFORMED, f"bitmap of {len(having)} bytes does not fit {count} chunks"
        )
    return mask


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A report of the receiver: the fields of a ``grant`` or a ``have``."""

    having: bytes  # bitmap; empty = nothing yet
    window: int  # chunks that may be in flight


class Pace(NamedTuple):
    """The pace of a transfer, as its receiver sets it."""

    # chunks in flight at first, and at most: it halves at a gap and grows by one per clean window
    window: int = MOST_IN_FLIGHT
    gap: float = FIRST_GAP  # seconds without a chunk before the receiver asks again; doubles


class Receiving:
    r"""The receiving half of a transfer: a set of chunks, and a timer to request the rest.

    Args:
        digest: SHA-256 of the whole body, from a signed offer or manifest (32 bytes).
        size: Size of the body in bytes; the memory is reserved at once.
        chunk: Size of every chunk but the last, in bytes.
        now: Seconds on any monotonic clock, the same for every call.
        rng: Randomness that spreads the gap timer by ±50 %.
        pace: Largest window, and when to ask again.

    Raises:
        Refused: TOO_LARGE, or MALFORMED for invalid sizes.

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
        pace: Pace | None = None,
    ) -> None:
        check_sizes(digest, size, chunk)
        self.digest = digest
        self.size = size
        self.chunk = chunk
        self.count = m.count_of(size, chunk)
        self._rng = rng
        self._most, gap = pace or Pace()
        self._window = max(1, self._most)
        self._bytes = bytearray(size)
        self._mask = 0
        self._fresh = 0  # new chunks since the last report
        self._clean = 0  # new chunks since the last gap or growth
        self._first_gap = self._gap = gap
        self._arrived = now
        self._ask_at = now  # at once: the first report is the grant
        self._has_reported = False
        self._allowed = 0  # chunks that the sender has sent or may send, by the last report

    @property
    def id(self) -> bytes:
        """Return the name of the transfer, 16 bytes."""
        return id_of(self.digest)

    @property
    def is_complete(self) -> bool:
        """Return whether every chunk has arrived; ``body`` then verifies the digest."""
        return self._mask == (1 << self.count) - 1

    @property
    def having(self) -> bytes:
        """Return the bitmap of the chunks received; empty if there are none."""
        return _pack(self._mask, self.count) if self._mask else b""

    @property
    def window(self) -> int:
        return self._window

    @property
    def missing(self) -> int:
        return self.count - self._mask.bit_count()

    @property
    def arrived(self) -> float:
        """Return when the last new chunk arrived; before the first, when the machine was made."""
        return self._arrived

    def add(self, transfer: bytes, index: int, data: bytes, now: float) -> bool:
        """Insert a chunk; return False if it was present already (the copy is ignored).

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
        """Return the report due now, if any: progress every half window, or a gap on a timeout.

        Progress is reported as long as it lets the sender send more.
        """
        if self.is_complete:
            return None
        if self._fresh >= max(1, self._window // 2) and self._allowed < self.count:
            self._fresh = 0
            return self._reported()
        if now < self._ask_at:
            return None
        return self._ask_again(now)

    def body(self) -> bytes:
        """Return the whole body, once complete.

        Raises:
            Refused: BAD_DIGEST: every chunk is present, but the digest does not match the offer.
                The set is then empty again. NOT_FOUND: chunks are missing.
        """
        if not self.is_complete:
            raise Refused(Reason.NOT_FOUND, "chunks are missing")
        whole = bytes(self._bytes)
        if hashlib.sha256(whole).digest() != self.digest:
            self._mask = self._fresh = self._clean = 0
            raise Refused(Reason.BAD_DIGEST, f"{self.size} bytes do not match the offered digest")
        return whole

    def is_expired(self, now: float) -> bool:
        """Return whether no new chunk came for 120 s, so that the memory can be freed."""
        return now - self._arrived >= IDLE

    @property
    def next_due(self) -> float:
        """Return when to call ``report`` or ``is_expired`` again, if no chunk arrives."""
        return min(self._ask_at, self._arrived + IDLE)

    def _ask_again(self, now: float) -> TransferReport:
        if self._has_reported:  # the first report is no gap
            self._window = max(1, self._window // 2)
            self._gap = min(self._gap * 2, LONGEST_GAP)
        self._has_reported = True
        self._clean = self._fresh = 0
        self._ask_at = now + self._spread(self._gap)
        return self._reported()

    def _reported(self) -> TransferReport:
        self._allowed = self._mask.bit_count() + self._window
        return TransferReport(self.having, self._window)

    def _grow(self) -> None:
        self._clean += 1
        if self._clean >= self._window and self._window < self._most:
            self._window, self._clean = self._window + 1, 0

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.5, 1.5)


def check_sizes(digest: bytes, size: int, chunk: int) -> None:
    """Refuse a transfer whose sizes are invalid or beyond the limits.

    Raises:
        Refused: TOO_LARGE or MALFORMED.

    >>> check_sizes(bytes(32), 20_000, 8_192)
    """
    if len(digest) != 32 or size < 1 or not m.SMALLEST_CHUNK <= chunk <= m.CHUNK_LIMIT:
        raise Refused(Reason.MALFORMED, f"a transfer of {size} bytes in chunks of {chunk}")
    if size > m.BODY_LIMIT or m.count_of(size, chunk) > m.CHUNKS_LIMIT:
        raise Refused(Reason.TOO_LARGE, f"{size} bytes in {m.count_of(size, chunk)} chunks")
