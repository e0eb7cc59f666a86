"""Read protobuf bytes field by field, within bounds, as far as a graph file needs it.

A device without an onnxruntime wheel has no protobuf wheel either. Reading costs no more memory
than the bytes themselves: strings and messages come back as views of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from edge_sdk.runtime import GraphError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDEST = 10  # bytes of a 64-bit varint

Field = tuple[int, int | memoryview]


def fields(data: memoryview) -> Iterator[Field]:
    """Yield every field as ``(number, value)``: an unsigned int for a number, a view for the rest.

    A fixed32 or fixed64 comes as its 4 or 8 bytes. Repeated fields come repeatedly, in order.

    Raises:
        GraphError: The bytes end inside a field, or hold an unsupported kind of field.

    >>> [(number, bytes(value) if number == 2 else value)
    ...  for number, value in fields(memoryview(bytes.fromhex("08ac02 1202 6869")))]
    [(1, 300), (2, b'hi')]
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = _length(data, at, kind)
        if length > end - at:
            raise GraphError("the file ends inside a field")
        yield key >> 3, data[at : at + length]
        at += length


def _length(data: memoryview, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(data, at)
    if kind in (_FIXED32, _FIXED64):
        return (4 if kind == _FIXED32 else 8), at
    raise GraphError(f"a field of kind {kind}, which graphs do not have")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _WIDEST]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (2**64 - 1), at + place + 1
    raise GraphError("a varint longer than its limit")


def number(value: int | memoryview) -> int:
    """Return a field as a whole number: protobuf's ``int64`` is two's complement.

    Raises:
        GraphError: The field holds bytes.

    >>> number(2**64 - 1)
    -1
    """
    if not isinstance(value, int):
        raise GraphError("expected a number, got a length-delimited field")
    return value - 2**64 if value >= 2**63 else value


def view(value: int | memoryview) -> memoryview:
    """Return a field as bytes."""
    if isinstance(value, int):
        raise GraphError("expected a length-delimited field, got a number")
    return value


def text(value: int | memoryview) -> str:
    """Return a field as UTF-8 text.

    Raises:
        GraphError: The field is not UTF-8 text.
    """
    try:
        return bytes(view(value)).decode()
    except UnicodeDecodeError:
        raise GraphError("a name that is not UTF-8") from None


def numbers(value: int | memoryview) -> list[int]:
    """Return a repeated integer field, packed or one at a time.

    >>> numbers(7), numbers(memoryview(bytes.fromhex("01ac02")))
    ([7], [1, 300])
    """
    if isinstance(value, int):
        return [number(value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(number(one))
    return found


def real(value: int | memoryview) -> float:
    """Return a fixed32 field as a float.

    Raises:
        GraphError: The field is not four bytes long.
    """
    raw = view(value)
    if len(raw) != 4:
        raise GraphError("a float of other than four bytes")
    return float(struct.unpack("<f", raw)[0])
