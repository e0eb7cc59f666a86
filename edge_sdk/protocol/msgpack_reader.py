"""Read and write single msgpack values under fixed limits, for envelope and codec.

With a generic decoder the sender chooses type and size of the result. A cursor is called with the
expected type and the largest size, and refuses any other value.
"""

from __future__ import annotations

import struct

from edge_sdk.errors import Reason, Refused

_WHOLE = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}
_FLOAT = {0xCA: ">f", 0xCB: ">d"}


def malformed(detail: str) -> Refused:
    """Return the refusal for bytes that violate the protocol."""
    return Refused(Reason.MALFORMED, detail)


class Cursor:
    r"""A position in a byte string, with typed reads that advance it.

    Every read raises ``Refused(MALFORMED)`` when the next value is of another type, longer than
    allowed, or longer than the remaining bytes. No read allocates more than the bytes it was given.

    >>> cursor = Cursor(bytes.fromhex("93 2a a2 6869 c4 01 ff"))
    >>> cursor.array(), cursor.whole(), cursor.text(2), cursor.binary(1), cursor.is_done
    (3, 42, 'hi', b'\xff', True)
    """

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, *, end: int | None = None) -> None:
        """Start at the first byte; ``end`` hides the bytes after it."""
        self._data = data
        self._at = 0
        self._end = len(data) if end is None else min(end, len(data))

    @property
    def is_done(self) -> bool:
        return self._at == self._end

    def reveal(self) -> None:
        """Extend the cursor to the true end of the bytes."""
        self._end = len(self._data)

    def array(self) -> int:
        return self._count(0x90, 0xF0, _ARRAY, "an array", 1)

    def map(self) -> int:
        """Read a map's head and return its number of pairs."""
        return self._count(0x80, 0xF0, _MAP, "a map", 2)

    def whole(self) -> int:
        """Read an unsigned integer of any width."""
        tag = self._tag()
        if tag < 0x80:
            return tag
        if tag in _WHOLE:
            return int.from_bytes(self._take(_WHOLE[tag]), "big")
        raise malformed(f"expected an unsigned int, got tag 0x{tag:02x}")

    def text(self, longest: int) -> str:
        """Read a str of at most ``longest`` bytes of UTF-8."""
        raw = self._sized(0xA0, 0xE0, _TEXT, "a str", longest)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise malformed("a str that is not UTF-8") from None

    def binary(self, longest: int) -> bytes:
        """Read a bin of at most ``longest`` bytes."""
        return self._sized(None, 0, _BINARY, "a bin", longest)

    def value(self, depth: int) -> object:
        """Read any value a header may hold; at most ``depth`` containers may be nested in it.

        Maps become dicts with str keys, arrays lists. Repeated keys, nil and extensions are
        refused, as is a container when ``depth`` is 0.
        """
        tag = self._peek()
        if tag < 0x80 or tag in _WHOLE:
            return self.whole()
        if tag >= 0xE0 or tag in _SIGNED:
            return self._negative()
        if tag & 0xE0 == 0xA0 or tag in _TEXT:
            return self.text(self._end)
        if tag in _BINARY:
            return self.binary(self._end)
        if tag in (0xC2, 0xC3):
            return self._tag() == 0xC3
        return self._float() if tag in _FLOAT else self._container(tag, depth)

    def pairs(self, depth: int, most: int) -> dict[str, object]:
        """Read a map of unique str keys, at most ``most`` of them."""
        count = self.map()
        if count > most:
            raise malformed(f"{count} keys, at most {most}")
        out: dict[str, object] = {}
        for _ in range(count):
            key = self.text(64)
            if key in out:
                raise malformed(f"key {key!r} appears twice")
            out[key] = self.value(depth)
        return out

    def _container(self, tag: int, depth: int) -> object:
        if depth < 1:
            raise malformed(f"nested too deep, or tag 0x{tag:02x}")
        if tag & 0xF0 == 0x90 or tag in _ARRAY:
            return [self.value(depth - 1) for _ in range(self.array())]
        if tag & 0xF0 == 0x80 or tag in _MAP:
            return self.pairs(depth - 1, 64)
        raise malformed(f"tag 0x{tag:02x} is not allowed in a message")

    def _negative(self) -> int:
        tag = self._tag()
        raw = bytes([tag]) if tag >= 0xE0 else self._take(_SIGNED[tag])
        return int.from_bytes(raw, "big", signed=True)

    def _float(self) -> float:
        form = _FLOAT[self._tag()]
        value: float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _count(self, fix: int, mask: int, wide: dict[int, int], what: str, each: int) -> int:
        tag = self._tag()
        if tag & mask == fix:
            count = tag & ~mask
        elif tag in wide:
            count = int.from_bytes(self._take(wide[tag]), "big")
        else:
            raise malformed(f"expected {what}, got tag 0x{tag:02x}")
        if count * each > self._end - self._at:
            raise malformed(f"{what} of {count}, with {self._end - self._at} bytes left")
        return count

    def _sized(
        self, fix: int | None, mask: int, wide: dict[int, int], what: str, longest: int
    ) -> bytes:
        tag = self._tag()
        if fix is not None and tag & mask == fix:
            size = tag & ~mask
        elif tag in wide:
            size = int.from_bytes(self._take(wide[tag]), "big")
        else:
            raise malformed(f"expected {what}, got tag 0x{tag:02x}")
        if size > longest:
            raise malformed(f"{what} of {size} bytes, at most {longest}")
        return self._take(size)

    def _peek(self) -> int:
        if self._at >= self._end:
            raise malformed("the message ends too early")
        return self._data[self._at]

    def _tag(self) -> int:
        tag = self._peek()
        self._at += 1
        return tag

    def _take(self, size: int) -> bytes:
        if size > self._end - self._at:
            raise malformed("the message ends too early")
        self._at += size
        return self._data[self._at - size : self._at]


def text(value: str) -> bytes:
    """Write a str of at most 255 bytes in its shortest form.

    >>> text("hi").hex()
    'a26869'
    """
    raw = value.encode()
    return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else bytes([0xD9, len(raw)])) + raw


def binary(value: bytes) -> bytes:
    """Write a bin in its shortest form."""
    size = len(value)
    if size < 0x100:
        return bytes([0xC4, size]) + value
    if size < 0x10000:
        return b"\xc5" + size.to_bytes(2, "big") + value
    return b"\xc6" + size.to_bytes(4, "big") + value
