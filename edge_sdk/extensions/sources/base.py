"""Define the stages of a source: link -> bounded framer -> pure decoder -> normaliser -> store.

A *feed* owns the link and the framer: it blocks briefly and returns whole frames. A *decoder* is a
function of one frame, without I/O, clock or memory; the same one reads live bytes, a recording and
a fuzzer's output. It returns *samples* with the names and units of the interface; ``normaliser``
converts them into readings of canonical streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from edge_sdk.app.lean_dataclass import dataclass


class RawFrame(NamedTuple):
    """One complete message as received, checksum verified where the interface has one."""

    payload: bytes
    at: float  # Unix seconds of this machine's clock at its completion; may be 1970
    origin: str = ""  # name of its file, where it has one


class Rejected(Exception):  # noqa: N818 - a verdict on input, never an internal failure
    """A frame that a decoder refuses."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason  # a short constant text: it becomes the name of a counter


GZIP = b"\x1f\x8b"
"""First bytes of a file packed with gzip."""

UNDECODABLE = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)
"""Other exceptions that hostile bytes may raise in a decoder, such as a user-defined one."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One value as the interface sent it."""

    name: str  # name on the interface: an OBIS code, a measurand, a counter
    time: float  # Unix seconds, UTC: the start of the interval where ``seconds`` is given
    value: float  # value in ``unit``
    unit: str  # unit as the interface writes it
    # origin of the value where one interface serves several devices; never a serial number in clear
    device: str = ""
    flags: int = 0  # bits of ``series.Flag``
    # length of the interval that the value covers; None for an instant
    seconds: float | None = None
    # reason why there is no usable value, a short constant text; ``value`` is then NaN
    fault: str = ""
    rank: int = 0  # preference among several series of one energy of one device: the lowest counts
    variant: str = ""  # text that distinguishes it from others of the same name, such as ``Inlet``
    # prefix of the devices whose sum it repeats, as that of a main meter; or empty
    covers: str = ""


NOT_MAPPED, OTHERS = "not mapped", "others"
_NAMES = 64  # names from outside that are counted one by one


def tally(counts: Counter[str], name: str, reason: str) -> None:
    r"""Count unused parts of a message by name and reason, in bounded memory.

    >>> unused = Counter()
    >>> for name in ("0-0:96.14.0", "0-0:96.14.0", "\x1b[2J"):
    ...     tally(unused, name, NOT_MAPPED)
    >>> dict(unused)
    {'0-0:96.14.0: not mapped': 2, '?[2J: not mapped': 1}
    """
    shown = "".join(x if x.isprintable() else "?" for x in name[:120])
    text = f"{shown}: {reason}"
    counts[text if text in counts or len(counts) < _NAMES else OTHERS] += 1


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
        """

    def close(self) -> None:
        """Close the link."""
