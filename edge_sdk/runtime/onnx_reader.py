"""Read an exported graph without onnx: nodes, constants, feeds and results.

Unsupported content is refused when the graph loads, never when it runs: weights kept in another
file, functions, nested graphs, other operator sets and element types.
Source: ``onnx.proto3`` of ONNX 1.17 (field numbers), IR versions 8 to 10.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import GraphError

Attribute = int | float | str | tuple[int, ...]

OPSETS: Final = range(13, 18)
"""Operator sets of the numpy engine; 13 moved axes of ``Squeeze`` to an input, 18 those of
``ReduceMean``."""
MOST_NODES: Final = 65_536
MOST_DIMENSIONS: Final = 8

_KINDS: Final[Mapping[int, str]] = {1: "<f4", 6: "<i4", 7: "<i8", 9: "?", 11: "<f8"}
_FLOAT = 1


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator of a graph; an input left out has the empty name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A named float32 input or output; a dimension that is open until it runs is None."""

    name: str
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """A decoded file, with its nodes in an executable order."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def read_onnx(data: bytes) -> OnnxModel:
    """Decode an ``.onnx`` file.

    Raises:
        GraphError: It is damaged, or has content that exported graphs do not have.
    """
    graph, opset = None, 0
    for number, value in fields(memoryview(data)):
        if number == 7:
            if graph is not None:  # another reader would run both
                raise GraphError("the file has several graphs")
            graph = view(value)
        elif number == 8:
            version = _opset(view(value))
            if opset and version:
                raise GraphError("the file names its operator set several times")
            opset = version or opset
        elif number in (20, 25):
            raise GraphError("functions and training sections are not supported")
    if graph is None:
        raise GraphError("the file has no graph")
    if opset not in OPSETS:
        raise GraphError(f"operator set {opset}; {OPSETS[0]} to {OPSETS[-1]} are supported")
    return _graph(graph)


def _opset(data: memoryview) -> int:
    domain, version = "", 0
    for number, value in fields(data):
        if number == 1:
            domain = text(value)
        elif number == 2:
            version = integer(value)
    return 0 if domain not in ("", "ai.onnx") else version


def _graph(data: memoryview) -> OnnxModel:
    nodes: list[OnnxNode] = []
    constants: dict[str, Array] = {}
    feeds: list[TensorInfo] = []
    results: list[TensorInfo] = []
    for number, value in fields(data):
        if number == 1:
            nodes.append(_node(view(value)))
            if len(nodes) > MOST_NODES:
                raise GraphError(f"more than {MOST_NODES} nodes")
        elif number == 5:
            name, array = _tensor(view(value))
            if name in constants:
                raise GraphError(f"constant {name!r} occurs twice in the file")
            constants[name] = array
        elif number in (11, 12):
            (feeds if number == 11 else results).append(_feed(view(value)))
        elif number == 15:
            raise GraphError("sparse constants are not supported")
    given = tuple(feed for feed in feeds if feed.name not in constants)
    return OnnxModel(tuple(nodes), constants, given, tuple(results))


def _node(data: memoryview) -> OnnxNode:
    kind, inputs, outputs, attributes = "", list[str](), list[str](), dict[str, Attribute]()
    for number, value in fields(data):
        if number in (1, 2):
            (inputs if number == 1 else outputs).append(text(value))
        elif number == 4:
            kind = text(value)
        elif number == 5:
            name, found = _attribute(view(value))
            if name in attributes:
                raise GraphError(f"operator {kind or '?'}: attribute {name!r} occurs twice")
            attributes[name] = found
        elif number == 7 and text(value) not in ("", "ai.onnx"):
            raise GraphError(f"an operator of the set {text(value)!r}")
    return OnnxNode(kind, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview) -> tuple[str, Attribute]:
    name = ""
    found: Attribute | None = None
    several: list[int] = []
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:
            found = real(value)
        elif number == 3:
            found = integer(value)
        elif number == 4:
            found = text(value)
        elif number == 8:
            several += integers(value)
        elif number in (5, 6, 7, 9, 10, 11):
            raise GraphError(f"attribute {name!r}: tensors, floats and graphs are not supported")
    return name, tuple(several) if found is None else found


def _tensor(data: memoryview) -> tuple[str, Array]:
    name, kind, sizes, raw, plain = "", 0, list[int](), None, list[int]()
    for number, value in fields(data):
        if number == 1:
            sizes += integers(value)
        elif number == 2:
            kind = integer(value)
        elif number in (5, 7):
            plain += integers(value)
        elif number in (4, 10):  # packed or one at a time: the same bytes
            raw = (raw or b"") + bytes(view(value))
        elif number == 8:
            name = text(value)
        elif number == 9:
            raw = bytes(view(value))
        elif number in (13, 14) and value not in (0, b""):
            raise GraphError("constants in another file are not supported")
    return name, _array(name, kind, sizes, raw, plain)


def _array(name: str, kind: int, sizes: list[int], raw: bytes | None, plain: list[int]) -> Array:
    if kind not in _KINDS:
        raise GraphError(f"constant {name!r}: element type {kind} is not supported")
    if len(sizes) > MOST_DIMENSIONS or min(sizes, default=0) < 0:
        raise GraphError(f"constant {name!r}: an impossible shape")
    dtype = np.dtype(_KINDS[kind])
    flat = (
        np.array(plain, dtype) if raw is None else np.frombuffer(raw[: _whole(raw, dtype)], dtype)
    )
    if flat.size != math.prod(sizes) or (raw is not None and flat.nbytes != len(raw)):
        raise GraphError(f"constant {name!r}: {flat.size} values for shape {sizes}")
    array: Array = flat.reshape(sizes)
    array.flags.writeable = False
    return array


def _whole(raw: bytes, dtype: np.dtype[np.generic]) -> int:
    return len(raw) - len(raw) % dtype.itemsize


def _feed(data: memoryview) -> TensorInfo:
    name, kind, sizes = "", 0, list[int | None]()
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:
            kind, sizes = _type(view(value))
    if kind != _FLOAT:
        raise GraphError(f"{name!r}: feeds and results are float32")
    return TensorInfo(name, tuple(sizes))


def _type(data: memoryview) -> tuple[int, list[int | None]]:
    kind, sizes = 0, list[int | None]()
    for number, value in fields(data):
        if number == 1 and kind:
            raise GraphError("a feed or result has several types")
        for inner, part in fields(view(value)) if number == 1 else ():
            if inner == 1:
                kind = integer(part)
            elif inner == 2:
                sizes = [_size(view(d)) for n, d in fields(view(part)) if n == 1]
    return kind, sizes


def _size(data: memoryview) -> int | None:
    return next((integer(v) for n, v in fields(data) if n == 1), None)


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


def integer(value: int | memoryview) -> int:
    """Return a field as a whole number: protobuf's ``int64`` is two's complement.

    Raises:
        GraphError: The field holds bytes.

    >>> integer(2**64 - 1)
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


def integers(value: int | memoryview) -> list[int]:
    """Return a repeated integer field, packed or one at a time.

    >>> integers(7), integers(memoryview(bytes.fromhex("01ac02")))
    ([7], [1, 300])
    """
    if isinstance(value, int):
        return [integer(value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(integer(one))
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
