"""Define the stages of a source: link -> bounded framer -> pure decoder -> normaliser -> store.

A *feed* owns the link and the framer: it blocks briefly and returns whole frames. A *decoder* is a
function of one frame, without I/O, clock or memory; the same one reads live bytes, a recording and
a fuzzer's output. It returns *samples* with the names and units of the interface; ``normaliser``
converts them into readings of canonical streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class RawFrame(NamedTuple):
    """One complete message as received, checksum verified where the interface has one.

    Attributes:
        payload: Bytes of the message.
        at: Unix seconds of this machine's clock at its completion; may be 1970.
    """

    payload: bytes
    at: float


class Rejected(Exception):  # noqa: N818 - a verdict on input, never an internal failure
    """A frame that a decoder refuses.

    Attributes:
        reason: A short constant text: it becomes the name of a counter.
    """

    def __init__(self, reason: str) -> None:
        """Set the reason."""
        super().__init__(reason)
        self.reason = reason


UNDECODABLE = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)
"""Other exceptions that hostile bytes may raise in a decoder, such as a user-defined one."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One value as the interface sent it.

    Attributes:
        name: Name on the interface: an OBIS code, a measurand, a counter.
        time: Unix seconds, UTC: the start of the interval where ``seconds`` is given.
        value: Value in ``unit``.
        unit: Unit as the interface writes it.
        device: Origin of the value where one interface serves several devices; never a serial
            number in clear.
        flags: Bits of ``series.Flag``.
        seconds: Length of the interval that the value covers; None for an instant.
    """

    name: str
    time: float
    value: float
    unit: str
    device: str = ""
    flags: int = 0
    seconds: float | None = None


Decoder = Callable[[RawFrame], list[SourceSample]]
"""Decodes one frame; deliberately raises ``Rejected`` only."""


class Framer(Protocol):
    """Splits a stream of any bytes into frames, in bounded memory."""

    @property
    def rejected(self) -> Counter[str]:
        """Dropped input, counted by reason."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Append bytes; yield the frames that they complete."""

    def forget(self) -> None:
        """Discard the unfinished frame after the link broke."""


class FramedLink(Protocol):
    """A link and its framer; the blocking part of a source."""

    @property
    def rejected(self) -> Counter[str]:
        """Input dropped before it was a frame, counted by reason."""

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds for input; return the complete frames.

        Raises:
            OSError: The link is lost; ``close`` it and open another.
            EOFError: The input has ended.
        """

    def close(self) -> None:
        """Close the link."""
