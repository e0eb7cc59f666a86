"""Write vectors as signs (``b1``, ``b2``), as their largest scalars (``tk``), or in eight bits (``i1``)."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.codec import Floats, TensorEncoding, finite, single, sized

_BLOCK: Final = 1024  # scalars that share one scale in i1
_TWO_BITS: Final = np.array([0.0, 1.0, np.nan, -1.0])  # code 10 is invalid


def _pack_i1(values: Floats) -> bytes:
    starts = range(0, len(values), _BLOCK)
    tops = np.array([np.abs(values[i : i + _BLOCK]).max() for i in starts])
    scales = single(tops / 127)
    each = np.repeat(scales.astype(np.float64), _BLOCK)[: len(values)]
    steps = np.divide(values, each, out=np.zeros_like(values), where=each > 0)
    return scales.tobytes() + np.clip(np.rint(steps), -127, 127).astype(np.int8).tobytes()


def _unpack_i1(blob: bytes, size: int) -> Floats:
    blocks = -(-size // _BLOCK)
    sized(blob, 4 * blocks + size)
    scales = np.frombuffer(blob, "<f4", blocks).astype(np.float64)
    steps = np.frombuffer(blob, np.int8, size, 4 * blocks)
    if (steps == -128).any() or (scales < 0).any():
        raise Refused(Reason.WRONG_ENCODING, "i1: a step of -128 or a negative scale")
    return np.repeat(finite(scales), _BLOCK)[:size] * steps.astype(np.float64)


def _pack_b1(values: Floats) -> bytes:
    if not np.isin(values, (-1.0, 1.0)).all():
        raise Refused(Reason.WRONG_ENCODING, "b1 encodes only -1 and +1")
    return np.packbits(values > 0, bitorder="little").tobytes()


def _unpack_b1(blob: bytes, size: int) -> Floats:
    bits = np.unpackbits(np.frombuffer(sized(blob, -(-size // 8)), np.uint8), bitorder="little")
    if bits[size:].any():
        raise Refused(Reason.WRONG_ENCODING, "b1: spare bits must be 0")
    return bits[:size].astype(np.float64) * 2.0 - 1.0


def _pack_b2(values: Floats) -> bytes:
    if not np.isin(values, (-1.0, 0.0, 1.0)).all():
        raise Refused(Reason.WRONG_ENCODING, "b2 encodes only -1, 0 and +1")
    pairs = np.stack([values != 0, values < 0], axis=1)  # low bit: not zero; high bit: negative
    return np.packbits(pairs.ravel(), bitorder="little").tobytes()


def _unpack_b2(blob: bytes, size: int) -> Floats:
    raw = np.frombuffer(sized(blob, -(-size // 4)), np.uint8)
    bits = np.unpackbits(raw, bitorder="little")
    codes = bits[0::2] + 2 * bits[1::2]
    if codes[size:].any() or (codes == 2).any():
        raise Refused(Reason.WRONG_ENCODING, "b2: code 10, or spare bits that are not 0")
    values: Floats = _TWO_BITS[codes[:size]]
    return values


def _pack_tk(values: Floats) -> bytes:
    where = np.flatnonzero(values)
    head = np.array([len(where)], "<u4").tobytes() + where.astype("<u4").tobytes()
    return head + single(values[where]).tobytes()


def _unpack_tk(blob: bytes, size: int) -> Floats:
    if len(blob) < 4:
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected at least 4")
    kept = int.from_bytes(blob[:4], "little")
    if kept > size:
        raise Refused(Reason.WRONG_SIZE, f"{kept} scalars of {size}")
    sized(blob, 4 + 8 * kept)
    where = np.frombuffer(blob, "<u4", kept, 4).astype(np.int64)
    if kept and (where[-1] >= size or (np.diff(where) <= 0).any()):
        raise Refused(Reason.WRONG_ENCODING, "tk: indices must rise and lie in the vector")
    out = np.zeros(size)
    out[where] = np.frombuffer(blob, "<f4", kept, 4 + 4 * kept)
    return out


I1: Final = TensorEncoding(_pack_i1, _unpack_i1)
B1: Final = TensorEncoding(_pack_b1, _unpack_b1)
B2: Final = TensorEncoding(_pack_b2, _unpack_b2)
TK: Final = TensorEncoding(_pack_tk, _unpack_tk)
