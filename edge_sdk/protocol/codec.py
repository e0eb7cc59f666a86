"""Encode and decode messages, tensors and stored state; the only importer of msgpack.

``decode`` never passes a peer's bytes to a generic decoder: a ``Cursor`` reads them under the
limits of `PROTOCOL.md` section 5, and ``schema`` builds the dataclass. msgpack itself only writes,
and reads back bytes that this machine wrote (``unpack_leaves``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.schema import SchemaError, build, key_of
from edge_sdk.errors import Reason, Refused, WireError
from edge_sdk.protocol.block_quantisation import dequantise, quantise
from edge_sdk.protocol.messages import BODY_LIMIT, HEADER_LIMIT, KINDS, ProtocolMessage
from edge_sdk.protocol.msgpack_reader import Cursor, malformed

M = TypeVar("M", bound=ProtocolMessage)
Array = NDArray[Any]

KEYS_LIMIT: Final = 40
DEPTH_LIMIT: Final = 3  # the header itself, an array in it, a pair in that


# --- messages -------------------------------------------------------------------------------------


def encode(message: ProtocolMessage) -> bytes:
    """Encode a message's body ``[header, blob]`` in canonical form.

    Keys ascend bytewise, integers and lengths are shortest, floats are float64, and a field that
    equals its default is left out.

    Raises:
        Refused: MALFORMED if a field is outside the range that ``decode`` accepts: an invalid
            message is never sent.

    >>> from edge_sdk.protocol.messages import TimeMessage
    >>> encode(TimeMessage(serial=1, t=200)).hex(" ")
    '92 82 a6 73 65 72 69 61 6c 01 a1 74 cc c8 c4 00'
    """
    blob = getattr(message, "blob", b"")
    header = {
        key: value
        for key, f in _fields_of(type(message)).items()
        if not _is_default(f, value := getattr(message, f.name))
    }
    _built(type(message), header, blob)
    packed: bytes = _msgpack().packb([_ordered(header), bytes(blob)], use_bin_type=True)
    return packed


@overload
def decode(what: type[M], body: bytes, *, on_unknown: Callable[[str], None] = ...) -> M: ...
@overload
def decode(
    what: str, body: bytes, *, on_unknown: Callable[[str], None] = ...
) -> ProtocolMessage: ...
def decode(
    what: type[M] | str,
    body: bytes,
    *,
    on_unknown: Callable[[str], None] = lambda _key: None,
) -> M | ProtocolMessage:
    """Decode a clear body as a message of the expected kind.

    Args:
        what: The message class, or the name of its kind.
        body: Bytes whose sender is authenticated.
        on_unknown: Function called with every key that this version does not know and skips, so
            that the caller can count them.

    Raises:
        Refused: UNKNOWN_KIND; TOO_LARGE; MALFORMED for an error of form, type or range;
            UNKNOWN_FIELD for an unknown key that starts with an upper-case letter.
    """
    cls = _class_of(what) if isinstance(what, str) else what
    header, blob = read_body(body)
    known = _fields_of(cls)
    for key in header.keys() - known.keys():
        if key[:1].isupper():
            raise Refused(Reason.UNKNOWN_FIELD, key[:64])
        on_unknown(key)
    return _built(cls, header, blob)


def read_body(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a clear body into its untyped header and its blob, under the limits.

    Raises:
        Refused: TOO_LARGE or MALFORMED.
    """
    if len(body) > BODY_LIMIT:
        raise Refused(Reason.TOO_LARGE, f"body of {len(body)} bytes")
    cursor = Cursor(body, end=1 + HEADER_LIMIT)
    if cursor.array() != 2:
        raise malformed("a body is [header, blob]")
    header = cursor.pairs(DEPTH_LIMIT - 1, KEYS_LIMIT)
    cursor.reveal()
    blob = cursor.binary(BODY_LIMIT)
    if not cursor.is_done:
        raise malformed("bytes after the body")
    return header, blob


def _class_of(kind: str) -> type[ProtocolMessage]:
    if kind not in KINDS:
        raise Refused(Reason.UNKNOWN_KIND, kind[:16])
    return KINDS[kind]


_FIELDS: Final[dict[object, Mapping[str, Field[Any]]]] = {}


def _fields_of(cls: type[Any]) -> Mapping[str, Field[Any]]:
    if cls not in _FIELDS:
        _FIELDS[cls] = {key_of(f.name): f for f in fields(cls) if f.name != "blob"}
    return _FIELDS[cls]


def _built(cls: type[M], header: Mapping[str, Any], blob: bytes) -> M:
    has_blob = "blob" in cls.__slots__
    if blob and not has_blob:
        raise malformed(f"{cls.kind} carries no blob")
    mapping = {**header, "blob": blob} if has_blob else header
    try:
        return build(cls, mapping, where=cls.kind, unknown="ignore")
    except SchemaError as misfit:
        raise malformed(str(misfit)) from misfit


def _is_default(f: Field[Any], value: object) -> bool:
    if f.default_factory is not MISSING:
        return bool(value == f.default_factory())
    return f.default is not MISSING and value == f.default


def _ordered(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _ordered_vals(mapping[key]) if isinstance(mapping[key], Mapping) else mapping[key]
        for key in sorted(mapping, key=str.encode)
    }


def _ordered_vals(vals: Mapping[str, float]) -> dict[str, float]:
    return {key: float(vals[key]) for key in sorted(vals, key=str.encode)}


def _msgpack() -> ModuleType:
    import msgpack  # type: ignore[import-untyped]  # noqa: PLC0415 - loads with the first message

    engine: ModuleType = msgpack
    return engine


# --- tensors --------------------------------------------------------------------------------------

ENCODINGS: Final = ("f4", "f2", "i1", "b1", "b2", "tk", "q8", "q4")
_BLOCK: Final = 1024  # scalars that share one scale in i1
_HALF_MAX: Final = 65504.0
_TWO_BITS: Final = np.array([0.0, 1.0, np.nan, -1.0])  # code 10 is invalid


def pack_tensor(vector: Array, enc: str) -> bytes:
    """Encode one vector, little-endian, in one of the protocol's encodings.

    Args:
        vector: Shape ``(P,)``, finite. For ``b1`` all ±1; for ``b2`` all -1, 0 or +1. ``tk`` keeps
            exactly the non-zero scalars: the caller sets the others to zero.
        enc: One of ``ENCODINGS``. ``f2`` saturates at ±65,504, ``i1`` rounds to 1/127 of the
            largest of each 1,024 scalars, ``q8`` and ``q4`` to 1/127 and 1/7 of the largest of each
            64; ``f4`` of float32 input is exact.

    Raises:
        Refused: NOT_FINITE (also when float32 overflows); WRONG_ENCODING for an unknown name or
            values that the encoding cannot represent.

    >>> pack_tensor(np.array([0.5, -1.25]), "f4").hex()
    '0000003f0000a0bf'
    >>> pack_tensor(np.array([1.0, -1.0, 1.0]), "b1").hex()
    '05'
    """
    if enc not in _PACKERS:
        raise Refused(Reason.WRONG_ENCODING, f"{enc[:16]!r}; known: {', '.join(ENCODINGS)}")
    values = np.asarray(vector, np.float64)
    if values.ndim != 1:
        raise Refused(Reason.WRONG_SIZE, f"a vector has one dimension, not {values.ndim}")
    return _PACKERS[enc](_finite(values))


def unpack_tensor(blob: bytes, enc: str, size: int) -> NDArray[np.float64]:
    """Decode a vector as float64, shape ``(size,)``.

    Raises:
        Refused: WRONG_ENCODING for an unknown name or invalid bits; WRONG_SIZE when the length is
            not exactly that of ``enc`` and ``size``; NOT_FINITE.

    >>> unpack_tensor(bytes.fromhex("0000003f0000a0bf"), "f4", 2)
    array([ 0.5 , -1.25])
    """
    if enc not in _UNPACKERS:
        raise Refused(Reason.WRONG_ENCODING, f"{enc[:16]!r}; known: {', '.join(ENCODINGS)}")
    with np.errstate(invalid="ignore"):  # a signalling NaN is refused below, not warned about
        values = _UNPACKERS[enc](blob, size)
    return _finite(values)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        raise Refused(Reason.NOT_FINITE, f"{np.count_nonzero(~np.isfinite(values))} scalars")
    return values


def _sized(blob: bytes, expected: int) -> bytes:
    if len(blob) != expected:
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected {expected}")
    return blob


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        singles = values.astype("<f4")
    _finite(singles.astype(np.float64))
    return singles


def _pack_f4(values: NDArray[np.float64]) -> bytes:
    return _single(values).tobytes()


def _unpack_f4(blob: bytes, size: int) -> NDArray[np.float64]:
    return np.frombuffer(_sized(blob, 4 * size), "<f4").astype(np.float64)


def _pack_f2(values: NDArray[np.float64]) -> bytes:
    return np.clip(values, -_HALF_MAX, _HALF_MAX).astype("<f2").tobytes()


def _unpack_f2(blob: bytes, size: int) -> NDArray[np.float64]:
    return np.frombuffer(_sized(blob, 2 * size), "<f2").astype(np.float64)


def _pack_i1(values: NDArray[np.float64]) -> bytes:
    starts = range(0, len(values), _BLOCK)
    tops = np.array([np.abs(values[i : i + _BLOCK]).max() for i in starts])
    scales = _single(tops / 127)
    each = np.repeat(scales.astype(np.float64), _BLOCK)[: len(values)]
    steps = np.divide(values, each, out=np.zeros_like(values), where=each > 0)
    return scales.tobytes() + np.clip(np.rint(steps), -127, 127).astype(np.int8).tobytes()


def _unpack_i1(blob: bytes, size: int) -> NDArray[np.float64]:
    blocks = -(-size // _BLOCK)
    _sized(blob, 4 * blocks + size)
    scales = np.frombuffer(blob, "<f4", blocks).astype(np.float64)
    steps = np.frombuffer(blob, np.int8, size, 4 * blocks)
    if (steps == -128).any() or (scales < 0).any():
        raise Refused(Reason.WRONG_ENCODING, "i1: a step of -128 or a negative scale")
    return np.repeat(_finite(scales), _BLOCK)[:size] * steps.astype(np.float64)


def _pack_b1(values: NDArray[np.float64]) -> bytes:
    if not np.isin(values, (-1.0, 1.0)).all():
        raise Refused(Reason.WRONG_ENCODING, "b1 encodes only -1 and +1")
    return np.packbits(values > 0, bitorder="little").tobytes()


def _unpack_b1(blob: bytes, size: int) -> NDArray[np.float64]:
    bits = np.unpackbits(np.frombuffer(_sized(blob, -(-size // 8)), np.uint8), bitorder="little")
    if bits[size:].any():
        raise Refused(Reason.WRONG_ENCODING, "b1: spare bits must be 0")
    return bits[:size].astype(np.float64) * 2.0 - 1.0


def _pack_b2(values: NDArray[np.float64]) -> bytes:
    if not np.isin(values, (-1.0, 0.0, 1.0)).all():
        raise Refused(Reason.WRONG_ENCODING, "b2 encodes only -1, 0 and +1")
    pairs = np.stack([values != 0, values < 0], axis=1)  # low bit: not zero; high bit: negative
    return np.packbits(pairs.ravel(), bitorder="little").tobytes()


def _unpack_b2(blob: bytes, size: int) -> NDArray[np.float64]:
    raw = np.frombuffer(_sized(blob, -(-size // 4)), np.uint8)
    bits = np.unpackbits(raw, bitorder="little")
    codes = bits[0::2] + 2 * bits[1::2]
    if codes[size:].any() or (codes == 2).any():
        raise Refused(Reason.WRONG_ENCODING, "b2: code 10, or spare bits that are not 0")
    values: NDArray[np.float64] = _TWO_BITS[codes[:size]]
    return values


def _pack_tk(values: NDArray[np.float64]) -> bytes:
    where = np.flatnonzero(values)
    head = np.array([len(where)], "<u4").tobytes() + where.astype("<u4").tobytes()
    return head + _single(values[where]).tobytes()


def _unpack_tk(blob: bytes, size: int) -> NDArray[np.float64]:
    if len(blob) < 4:
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected at least 4")
    kept = int.from_bytes(blob[:4], "little")
    if kept > size:
        raise Refused(Reason.WRONG_SIZE, f"{kept} scalars of {size}")
    _sized(blob, 4 + 8 * kept)
    where = np.frombuffer(blob, "<u4", kept, 4).astype(np.int64)
    if kept and (where[-1] >= size or (np.diff(where) <= 0).any()):
        raise Refused(Reason.WRONG_ENCODING, "tk: indices must rise and lie in the vector")
    out = np.zeros(size)
    out[where] = np.frombuffer(blob, "<f4", kept, 4 + 4 * kept)
    return out


_PACKERS: Final[Mapping[str, Callable[[NDArray[np.float64]], bytes]]] = {
    "f4": _pack_f4,
    "f2": _pack_f2,
    "i1": _pack_i1,
    "b1": _pack_b1,
    "b2": _pack_b2,
    "tk": _pack_tk,
    "q8": partial(quantise, enc="q8"),
    "q4": partial(quantise, enc="q4"),
}
_UNPACKERS: Final[Mapping[str, Callable[[bytes, int], NDArray[np.float64]]]] = {
    "f4": _unpack_f4,
    "f2": _unpack_f2,
    "i1": _unpack_i1,
    "b1": _unpack_b1,
    "b2": _unpack_b2,
    "tk": _unpack_tk,
    "q8": lambda blob, size: dequantise(blob, "q8", size),
    "q4": lambda blob, size: dequantise(blob, "q4", size),
}


# --- leaves ---------------------------------------------------------------------------------------

Leaf = Any
"""A number, text, bytes, bool, None, numpy array, or a list or str-keyed mapping of leaves."""

_ARRAY_CODE: Final = 1
_LEAVES_MARK: Final = b"gfl1"


class DamagedLeavesError(WireError):
    """An error: saved state whose bytes have changed since they were written."""


def pack_leaves(leaves: Mapping[str, Leaf]) -> bytes:
    """Encode a state's leaves for this machine's own store, preceded by a digest.

    Arrays keep dtype, shape and every bit; a tuple is read back as a list, a numpy scalar as a
    Python number.

    Raises:
        TypeError: A leaf of another type (objects are never pickled).

    >>> kept = unpack_leaves(pack_leaves({"round": 3, "w": np.zeros((2, 2), np.float32)}))
    >>> kept["round"], kept["w"].shape, kept["w"].dtype
    (3, (2, 2), dtype('float32'))
    """
    packed = _msgpack().packb(dict(leaves), default=_pack_leaf, use_bin_type=True)
    return b"".join((_LEAVES_MARK, hashlib.sha256(packed).digest(), packed))


def unpack_leaves(data: bytes) -> dict[str, Leaf]:
    """Decode the bytes of ``pack_leaves``; arrays are fresh and writable.

    Raises:
        DamagedLeavesError: The digest does not match: a torn write, or foreign bytes.
    """
    packed = data[len(_LEAVES_MARK) + 32 :]
    if data[: len(_LEAVES_MARK) + 32] != _LEAVES_MARK + hashlib.sha256(packed).digest():
        raise DamagedLeavesError("saved state is damaged: its digest does not match")
    unpacked: dict[str, Leaf] = _msgpack().unpackb(
        packed, ext_hook=_unpack_leaf, strict_map_key=True
    )
    return unpacked


def _pack_leaf(leaf: object) -> object:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        raw = _msgpack().packb([leaf.dtype.str, list(leaf.shape), leaf.tobytes()])
        return _msgpack().ExtType(_ARRAY_CODE, raw)
    if isinstance(leaf, (np.bool_, np.integer, np.floating)):
        return leaf.item()
    if isinstance(leaf, Mapping):
        return dict(leaf)
    raise TypeError(f"cannot save a {type(leaf).__name__} as a leaf")


def _unpack_leaf(_code: int, raw: bytes) -> Array:
    dtype, shape, data = _msgpack().unpackb(raw)
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()


def vector_digest(vector: NDArray[np.floating[Any]]) -> str:
    """Return SHA-256 of a vector as float64, little-endian; independent of the dtype.

    >>> vector_digest(np.ones(2, np.float32)) == vector_digest(np.ones(2))
    True
    """
    return hashlib.sha256(np.asarray(vector, "<f8").tobytes()).hexdigest()
