"""Quantise a vector in blocks of 64 scalars with one half-precision scale each: ``q8`` and ``q4``.

A block holds integers in -127…127 (``q8``) or -7…7 (``q4``); a scalar's value is the scale times the integer.
Rounding is stochastic, floor(x / scale + u) with u uniform in [0, 1), so that the decoded vector is
unbiased (QSGD, Alistarh et al. 2017, eq. 3.1; there with one norm for the whole vector).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.codec import TensorEncoding

BLOCK: Final = 64
"""Number of scalars that share one scale."""

LARGEST_STEP: Final[Mapping[str, int]] = MappingProxyType({"q8": 127, "q4": 7})
"""Largest integer of each encoding."""

QUANTISED_NORM: Final = 1.5
"""Allowance for a quantised update's length: it carries a residual, and rounding lengthens it."""

_HALF_MAX: Final = 65504.0
_SCALE_BYTES: Final = 2


def encoded_size(size: int, enc: str) -> int:
    """Return the number of bytes of ``size`` scalars.

    >>> encoded_size(5760, "q8"), encoded_size(5760, "q4"), encoded_size(65, "q4")
    (5940, 3060, 37)
    """
    steps = size if enc == "q8" else -(-size // 2)
    return _SCALE_BYTES * -(-size // BLOCK) + steps


def quantise(
    values: NDArray[np.float64], enc: str, uniform: NDArray[np.float64] | float = 0.5
) -> bytes:
    """Encode a vector.

    Args:
        values: Shape ``(P,)``, finite. A block whose largest scalar exceeds 65,504 times the
            largest integer saturates.
        enc: ``"q8"`` or ``"q4"``.
        uniform: Draws in [0, 1), shape ``(P,)``; 0.5 rounds to the nearest.

    >>> blob = quantise(np.array([0.5, -1.75, 0.0]), "q4")
    >>> blob.hex(), dequantise(blob, "q4", 3).tolist()
    ('00349200', [0.5, -1.75, 0.0])
    """
    top = LARGEST_STEP[enc]
    size = len(values)
    blocks = np.zeros((-(-size // BLOCK), BLOCK))
    blocks.ravel()[:size] = values
    scales = _scales(np.abs(blocks).max(axis=1, initial=0.0) / top)
    draws = np.full_like(blocks, 0.5)
    draws.ravel()[:size] = uniform
    each = scales.astype(np.float64)[:, None]
    ratios = np.divide(blocks, each, out=np.zeros_like(blocks), where=each > 0)
    steps = np.clip(np.floor(ratios + draws), -top, top).astype(np.int8).ravel()[:size]
    return scales.tobytes() + (steps.tobytes() if enc == "q8" else _pairs(steps))


def dequantise(blob: bytes, enc: str, size: int) -> NDArray[np.float64]:
    """Decode a vector of exactly ``size`` scalars as float64.

    Every value is exact in float32: a half-precision scale times an integer of eight bits.

    Raises:
        Refused: WRONG_SIZE for any other length; NOT_FINITE for a scale that is no number;
            WRONG_ENCODING for a negative scale, an integer outside the range, or a spare half of
            the last byte that is not 0.
    """
    if len(blob) != (expected := encoded_size(size, enc)):
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected {expected}")
    blocks = -(-size // BLOCK)
    scales = np.frombuffer(blob, "<f2", blocks).astype(np.float64)
    if not np.isfinite(scales).all():
        raise Refused(Reason.NOT_FINITE, f"{enc}: a scale")
    raw = np.frombuffer(blob, np.uint8, offset=_SCALE_BYTES * blocks)
    steps = raw.view(np.int8) if enc == "q8" else _unpaired(raw)
    top = LARGEST_STEP[enc]
    if np.signbit(scales).any() or (steps < -top).any() or steps[size:].any():
        raise Refused(Reason.WRONG_ENCODING, f"{enc}: a negative scale, or an integer out of range")
    decoded: NDArray[np.float64] = np.repeat(scales, BLOCK)[:size] * steps[:size]
    return decoded


def _scales(wanted: NDArray[np.float64]) -> NDArray[np.float16]:
    """Round up to half precision, so that the largest scalar of a block fits its integers."""
    halves = np.minimum(wanted, _HALF_MAX).astype("<f2")
    is_below = halves.astype(np.float64) < np.minimum(wanted, _HALF_MAX)
    with np.errstate(over="ignore"):  # beyond the largest scale, which is not below
        above = np.nextafter(halves, np.array(np.inf, "<f2"))
    return np.where(is_below, above, halves).astype("<f2")


def _pairs(steps: NDArray[np.int8]) -> bytes:
    halves = np.zeros(2 * (-(-len(steps) // 2)), np.uint8)
    halves[: len(steps)] = steps.view(np.uint8) & 0x0F
    return (halves[0::2] | (halves[1::2] << 4)).tobytes()


def _unpaired(raw: NDArray[np.uint8]) -> NDArray[np.int8]:
    halves = np.empty(2 * len(raw), np.uint8)
    halves[0::2], halves[1::2] = raw & 0x0F, raw >> 4
    signed: NDArray[np.int8] = ((halves ^ 8).astype(np.int8)) - np.int8(8)
    return signed


Q8: Final = TensorEncoding(
    partial(quantise, enc="q8"), lambda blob, size: dequantise(blob, "q8", size), QUANTISED_NORM
)
Q4: Final = TensorEncoding(
    partial(quantise, enc="q4"), lambda blob, size: dequantise(blob, "q4", size), QUANTISED_NORM
)
