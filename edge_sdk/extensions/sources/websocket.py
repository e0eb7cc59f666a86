"""Decode one direction of a WebSocket, from forwarded bytes into complete text messages.

The decoder is passive and uses bounded memory. Unknown bytes end the decoding, not the connection.
(RFC 6455 section 5; RFC 7692 for compressed messages.)
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

LONGEST = 1 << 18
"""Largest size in bytes of a message that is decoded."""

_TEXT, _CONTINUED = 1, 0
_CLOSE = 8


class WebSocketError(Exception):
    """The bytes are not a WebSocket stream that can be decoded."""


@dataclass(slots=True)
class MessageStream:
    """One direction of a connection, after the handshake.

    >>> ear = MessageStream()
    >>> list(ear.feed(bytes([0x81, 0x02]) + b"h")), list(ear.feed(b"i"))
    ([], ['hi'])
    """

    is_deflated: bool = False  # true if messages may be compressed
    forgets: bool = False  # true if every compressed message begins anew (``no_context_takeover``)
    counts: Counter[str] = field(default_factory=Counter)  # ignored messages, counted by reason
    longest: int = LONGEST  # largest size in bytes of a message that is decoded
    _buffer: bytearray = field(default_factory=bytearray)
    _message: bytearray = field(default_factory=bytearray)
    _is_text: bool = False
    _is_packed: bool = False
    _to_skip: int = 0
    _unpacker: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[str]:
        """Append forwarded bytes; yield the text messages that they complete.

        Raises:
            WebSocketError: No further bytes can be decoded.
        """
        if self._to_skip:
            skipped = min(self._to_skip, len(data))
            self._to_skip -= skipped
            data = data[skipped:]
        self._buffer += data
        while (found := self._frame()) is not None:
            first, payload = found
            message = self._take(first, payload)
            if message is not None:
                yield message

    def _frame(self) -> tuple[int, bytes | None] | None:
        """Remove one frame from the buffer; its payload is None if it was too long to keep."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        length, at = second & 0x7F, 2
        if length >= 126:
            at = 4 if length == 126 else 10
            if len(buffer) < at:
                return None
            length = int.from_bytes(buffer[2:at])
        at += 4 if second & 0x80 else 0
        if length > self.longest:
            self.counts["message too long"] += 1
            self._to_skip = max(0, at + length - len(buffer))
            del buffer[: at + length]
            return first, None
        if len(buffer) < at + length:
            return None
        payload = bytes(buffer[at : at + length])
        if second & 0x80:
            payload = _unmasked(payload, bytes(buffer[at - 4 : at]))
        del buffer[: at + length]
        return first, payload

    def _take(self, first: int, payload: bytes | None) -> str | None:
        kind = first & 0x0F
        if kind >= _CLOSE:
            return None
        if first & 0x30 or (first & 0x40 and not self.is_deflated):
            raise WebSocketError("an extension that was not negotiated")
        if kind != _CONTINUED:
            self._message.clear()
            self._is_text, self._is_packed = kind == _TEXT, bool(first & 0x40)
        if payload is None or len(self._message) + len(payload) > self.longest:
            if self._is_packed and not self.forgets:
                raise WebSocketError("a compressed message above the size limit")
            self._is_text = False
            self._message.clear()
            return None
        self._message += payload
        if not first & 0x80:
            return None
        return self._finished()

    def _finished(self) -> str | None:
        raw = bytes(self._message)
        self._message.clear()
        if self._is_packed:
            raw = self._unpacked(raw)
        if not self._is_text:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.counts["not UTF-8"] += 1
            return None

    def _unpacked(self, raw: bytes) -> bytes:
        if self._unpacker is None or self.forgets:
            self._unpacker = zlib.decompressobj(-15)
        try:
            text = self._unpacker.decompress(raw + b"\0\0\xff\xff", self.longest)
        except zlib.error as error:
            raise WebSocketError("invalid deflate data") from error
        if self._unpacker.unconsumed_tail:
            raise WebSocketError("a compressed message above the size limit")
        return text


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    """Remove the client's mask.

    >>> _unmasked(bytes([0x7F, 0x9F]), bytes([0x37, 0xFA, 0x21, 0x3D]))
    b'He'
    """
    size = len(payload)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(size)
