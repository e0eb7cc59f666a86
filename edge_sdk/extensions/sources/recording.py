"""Record frames with their times in a file, and replay them for diagnosis or a test.

The file has a line ``gridfed recording 1 KIND``, then for every frame a head of 16 bytes (time as a
big-endian float64 of Unix seconds, length and CRC-32 of the payload as big-endian uint32) and the
payload. A partly written frame after a power cut is detected by its checksum, and ends the file.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from edge_sdk.extensions.sources.base import GZIP, Framer, RawFrame

_HEAD = struct.Struct(">dII")
_MAGIC = b"gridfed recording 1 "
LONGEST = 1 << 22
"""Largest size of a frame in bytes; a longer length is damage."""

_AT_ONCE = 4096
_SAMPLE = 256


def title(kind: str) -> bytes:
    """Return the first line of a recording."""
    return _MAGIC + kind.encode() + b"\n"


def record(frame: RawFrame) -> bytes:
    """Return a frame in the file format.

    >>> record(RawFrame(b"hello", 1.0)).hex()
    '3ff0000000000000000000053610a68668656c6c6f'
    """
    return _HEAD.pack(frame.at, len(frame.payload), zlib.crc32(frame.payload)) + frame.payload


def read_record(file: BinaryIO) -> RawFrame | None:
    """Read the next frame; return None at the end, with the position before a partial frame.

    Raises:
        EOFError: The following bytes can never become a frame.
    """
    place = file.tell()
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        at, length, crc = _HEAD.unpack(head)
        if length > LONGEST:
            raise EOFError("damaged recording")
        payload = file.read(length)
        if len(payload) == length:
            if zlib.crc32(payload) != crc:
                raise EOFError("damaged recording")
            return RawFrame(payload, at)
    file.seek(place)
    return None


@dataclass(slots=True)
class RecordedFeed:
    """A feed from a file: a recording, or the plain bytes of a line, split by its framer."""

    path: Path
    kind: str  # required type of the recording
    framer: Framer | None = None  # framer of plain bytes; None where the interface has none
    rejected: Counter[str] = field(default_factory=Counter)  # dropped input, counted by reason
    _file: BinaryIO | None = None
    _is_plain: bool = False

    def frames(self, patience: float) -> list[RawFrame]:  # noqa: ARG002 - a file does not wait
        """Return the next frames."""
        if self._file is None:
            self._file = self.path.open("rb")
            self._begin(self._file)
        if self._is_plain:
            return self._cut(self._file.read(_AT_ONCE))
        frame = read_record(self._file)
        if frame is None:
            if self._file.read(1):
                self.rejected["torn recording"] += 1
            raise EOFError("end of the recording")
        return [frame]

    def sample(self) -> list[RawFrame]:
        """Return the first frames, and close the file again."""
        found: list[RawFrame] = []
        try:
            while len(found) < _SAMPLE:
                found += self.frames(0.0)
        except EOFError:
            pass
        finally:
            self.close()
        return found

    def _begin(self, file: BinaryIO) -> None:
        line = file.readline(len(_MAGIC) + 64)
        if line == title(self.kind):
            return
        if line.startswith(GZIP):
            self.rejected["packed recording"] += 1
            raise EOFError(f"{self.path} is packed; unpack it first")
        if line.startswith(_MAGIC) or self.framer is None:
            self.rejected["foreign recording"] += 1
            raise EOFError(f"{self.path} is not a recording of {self.kind}")
        self._is_plain = True
        file.seek(0)

    def _cut(self, data: bytes) -> list[RawFrame]:
        if not data or self.framer is None:
            raise EOFError("end of the file")
        frames = [RawFrame(payload, 0.0) for payload in self.framer.feed(data)]
        self.rejected = self.framer.rejected
        return frames

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
