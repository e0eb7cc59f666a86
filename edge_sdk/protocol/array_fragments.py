"""Check a fragment of an array, which has whole rows and states its position."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTHS = {"f4": 4, "f2": 2, "i4": 4}
"""Bytes of one scalar, little-endian: float32, IEEE half, int32."""

PIECE = 32_768
"""Largest size of one fragment, in bytes."""

LARGEST = 64 * 1024 * 1024
"""Largest size of a whole array, in bytes: its receiver allocates it with the first fragment."""

DIMENSIONS = 4


def row_size(shape: Sequence[int], enc: str) -> int:
    """Return the bytes of one row, that is of all dimensions but the first.

    >>> row_size((32, 64, 32), "f4"), row_size((32,), "i4")
    (8192, 4)
    """
    return math.prod(shape[1:]) * WIDTHS[enc]


def check_fragment(enc: str, shape: Sequence[int], off: int, num: int, blob: bytes) -> None:
    """Refuse a fragment that fits no array; without a shape there must be no fragment.

    Raises:
        ValueError: An unknown encoding, an empty dimension, an array beyond ``LARGEST``, rows outside
            the array, or a number of bytes that is not that of whole rows.
    """
    if not shape:
        if enc or off or num or blob:
            raise ValueError("enc, off, num and blob belong to a shape")
        return
    if enc not in WIDTHS:
        raise ValueError(f"enc {enc!r}; known: {', '.join(WIDTHS)}")
    if len(shape) > DIMENSIONS or min(shape) < 1 or row_size(shape, enc) > PIECE:
        raise ValueError(f"shape {tuple(shape)}: a row has at most {PIECE} bytes")
    if (size := shape[0] * row_size(shape, enc)) > LARGEST:
        raise ValueError(f"shape {tuple(shape)}: {size} bytes, at most {LARGEST}")
    if num < 1 or off + num > shape[0]:
        raise ValueError(f"rows {off} to {off + num} of {shape[0]}")
    if len(blob) != num * row_size(shape, enc):
        raise ValueError("the blob is not so many whole rows")
