"""The one shape of a source: link -> bounded framer -> pure decoder -> normaliser -> store.

A *feed* owns the link and the framer: it blocks for a moment and returns whole frames. A *decoder*
is a function of one frame: no I/O, no clock, no memory; the same one reads live bytes, a recording
and a fuzzer's. What it returns are *samples*, in the words of the interface; ``normaliser`` turns
them into readings, in ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class RawFrame(NamedTuple):
    """One whole message as it came, checksum verified where the interface has one.

    Attributes:
        payload: Its bytes.
        at: Unix seconds by this machine's clock when it was complete; may be 1970.
    """

    payload: bytes
    at: float


class Rejected(Exception):  # noqa: N818 - a verdict on input, never a failure of ours
    """What a decoder raises on a frame that cannot be meant.

    Attributes:
        reason: A constant few words: it becomes the name of a counter.
    """

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.reason = reason


UNDECODABLE = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)
"""What else hostile bytes may provoke in a decoder, for instance one that a user wrote."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One value as an interface tells it.

    Attributes:
        name: The interface's own: an OBIS code, a measurand, a counter.
        time: Unix seconds, UTC: the start of the interval where ``seconds`` is given.
        value: In ``unit``.
        unit: As the interface writes it.
        device: Whose value it is, where one interface speaks for several; never a serial number
            in clear.
        flags: Bits of ``series.Flag``.
        seconds: Length of the interval that the value spans; None for a moment.
    """

    name: str
    time: float
    value: float
    unit: str
    device: str = ""
    flags: int = 0
    seconds: float | None = None


Decoder = Callable[[RawFrame], list[SourceSample]]
"""Reads one frame; raises ``Rejected`` and nothing else on purpose."""


class Framer(Protocol):
    """Cuts a stream of bytes into frames, in bounded memory, whatever the bytes are."""

    @property
    def rejected(self) -> Counter[str]:
        """What was dropped, by reason."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes; yield the frames they complete."""

    def forget(self) -> None:
        """Drop what is unfinished: the link broke."""


class FramedLink(Protocol):
    """A link and its framer: what blocks."""

    @property
    def rejected(self) -> Counter[str]:
        """What was dropped before it was a frame, by reason."""

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds for input; return the frames that are complete.

        Raises:
            OSError: The link is lost; ``close`` it and open another.
            EOFError: There is no more, ever.
        """

    def close(self) -> None:
        """Let go of the link."""
