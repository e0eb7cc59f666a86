"""Encode and decode messages, tensors and stored state; the only importer of msgpack.

``decode`` never passes a peer's bytes to a generic decoder: a ``Cursor`` reads them under the
limits of `PROTOCOL.md` section 5, and ``schema`` builds the dataclass. msgpack itself only writes,
and reads back bytes that this machine wrote (``unpack_leaves``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import ModuleType
from typing import Any, Final, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.extensions import ExtensionIndex, ListedEntries
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import SchemaError, build, key_of
from edge_sdk.errors import Reason, Refused, WireError
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
    what: type[M] | str, body: bytes, *, on_unknown: Callable[[str], None] = lambda _key: None
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

UpdateEncoding = Literal["f4", "q8", "q4"]
"""Encoding of updates that a run may ask for; ``f4`` is float32."""

DownlinkEncoding = Literal["f4", "q8"]
"""Encoding in which devices receive new models: whole in float32, or as a step in eight bits."""

Floats = NDArray[np.float64]
_HALF_MAX: Final = 65504.0


@dataclass(frozen=True, slots=True)
class TensorEncoding:
    """One form of a vector of finite scalars on the wire."""

    pack: Callable[[Floats], bytes]
    unpack: Callable[[bytes, int], Floats]  # from the bytes, and the number of scalars
    most_longer: float = 1.0  # most times that a vector's Euclidean norm grows by it


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
    """
    if enc not in ENCODINGS:
        raise Refused(Reason.WRONG_ENCODING, f"{enc[:16]!r}; known: {', '.join(ENCODINGS)}")
    values = np.asarray(vector, np.float64)
    if values.ndim != 1:
        raise Refused(Reason.WRONG_SIZE, f"a vector has one dimension, not {values.ndim}")
    return ENCODINGS[enc].pack(finite(values))


def unpack_tensor(blob: bytes, enc: str, size: int) -> Floats:
    """Decode a vector as float64, shape ``(size,)``.

    Raises:
        Refused: WRONG_ENCODING for an unknown name or invalid bits; WRONG_SIZE when the length is
            not exactly that of ``enc`` and ``size``; NOT_FINITE.

    >>> unpack_tensor(bytes.fromhex("0000003f0000a0bf"), "f4", 2)
    array([ 0.5 , -1.25])
    """
    if enc not in ENCODINGS:
        raise Refused(Reason.WRONG_ENCODING, f"{enc[:16]!r}; known: {', '.join(ENCODINGS)}")
    with np.errstate(invalid="ignore"):  # a signalling NaN is refused below, not warned about
        values = ENCODINGS[enc].unpack(blob, size)
    return finite(values)


def finite(values: Floats) -> Floats:
    """Return scalars, or refuse them as NOT_FINITE."""
    if not np.isfinite(values).all():
        raise Refused(Reason.NOT_FINITE, f"{np.count_nonzero(~np.isfinite(values))} scalars")
    return values


def sized(blob: bytes, expected: int) -> bytes:
    """Return bytes of the expected number, or refuse them as WRONG_SIZE."""
    if len(blob) != expected:
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected {expected}")
    return blob


def single(values: Floats) -> NDArray[np.float32]:
    """Return scalars in float32; an overflow is refused as NOT_FINITE."""
    with np.errstate(over="ignore"):
        singles = values.astype("<f4")
    finite(singles.astype(np.float64))
    return singles


def _pack_f4(values: Floats) -> bytes:
    return single(values).tobytes()


def _unpack_f4(blob: bytes, size: int) -> Floats:
    return np.frombuffer(sized(blob, 4 * size), "<f4").astype(np.float64)


def _pack_f2(values: Floats) -> bytes:
    return np.clip(values, -_HALF_MAX, _HALF_MAX).astype("<f2").tobytes()


def _unpack_f2(blob: bytes, size: int) -> Floats:
    return np.frombuffer(sized(blob, 2 * size), "<f2").astype(np.float64)


ENCODINGS: Final = ListedEntries(
    {"f4": TensorEncoding(_pack_f4, _unpack_f4), "f2": TensorEncoding(_pack_f2, _unpack_f2)},
    ExtensionIndex("edge_sdk").loaders("encodings"),
)
"""Encodings by name."""


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
