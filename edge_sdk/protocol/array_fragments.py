"""Split one array into fragments of whole rows: activations and gradients on the wire.

An array of 256 kB is not a transfer: it expires within seconds, and lost rows are not requested
again. So each fragment is signed and complete in itself, and states its position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import Reason, Refused

Array = NDArray[Any]
Shape = tuple[int, ...]

WIDTHS = {"f4": 4, "f2": 2, "i4": 4}
"""Bytes of one scalar, little-endian: float32, IEEE half, int32."""

PIECE = 32_768
"""Largest size of one fragment, in bytes."""

LARGEST = 64 * 1024 * 1024
"""Largest size of a whole array, in bytes: its receiver allocates it with the first fragment."""

DIMENSIONS = 4

_HALF_MAX = 65504.0
_TYPES = {"f4": "<f4", "f2": "<f2", "i4": "<i4"}


class ArrayFragment(NamedTuple):
    """Some rows of an array: number of the first row, number of rows, and their bytes."""

    off: int
    num: int
    blob: bytes


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


def cut(array: Array, enc: str) -> Iterator[ArrayFragment]:
    """Split an array into fragments of whole rows, each as large as the limit allows.

    Args:
        array: Shape ``(rows, …)``, finite; ``f2`` saturates at ±65,504.
        enc: ``f4``, ``f2`` or ``i4``.

    Raises:
        Refused: BAD_TENSOR if a scalar is not finite, a row is too long for one fragment, or the
            array exceeds ``LARGEST``.

    >>> [(p.off, p.num) for p in cut(np.zeros((6, 64, 32), np.float32), "f4")]
    [(0, 4), (4, 2)]
    >>> [(p.off, p.num) for p in cut(np.zeros((6, 64, 32), np.float32), "f2")]
    [(0, 6)]
    """
    data = _written(array, enc)
    size = row_size(data.shape, enc)
    if size > PIECE:
        raise Refused(Reason.BAD_TENSOR, f"a row of {size} bytes, at most {PIECE}")
    if data.nbytes > LARGEST:
        raise Refused(Reason.BAD_TENSOR, f"an array of {data.nbytes} bytes, at most {LARGEST}")
    most = max(1, PIECE // max(1, size))
    for off in range(0, len(data), most):
        rows = data[off : off + most]
        yield ArrayFragment(off, len(rows), rows.tobytes())


def _written(array: Array, enc: str) -> Array:
    if enc == "i4":
        return np.ascontiguousarray(array, _TYPES[enc])
    if enc == "f2":
        array = np.clip(array, -_HALF_MAX, _HALF_MAX)
    with np.errstate(over="ignore"):
        data = np.ascontiguousarray(array, _TYPES[enc])
    if not np.isfinite(data).all():
        raise Refused(Reason.BAD_TENSOR, "a scalar that is not finite")
    return data


class Sheet:
    """An array under reassembly. A row keeps the values that arrived first."""

    def __init__(self, enc: str, shape: Shape) -> None:
        self.enc, self.shape = enc, shape
        self._data = np.zeros(shape, _TYPES[enc])
        self._here = np.zeros(shape[0], np.bool_)

    @property
    def is_complete(self) -> bool:
        return bool(self._here.all())

    def add(self, off: int, num: int, blob: bytes) -> None:
        """Add a fragment that ``check`` has accepted for this array.

        Raises:
            Refused: BAD_TENSOR if a scalar is not finite; then none of it is added.
        """
        rows = np.frombuffer(blob, _TYPES[self.enc]).reshape(num, *self.shape[1:])
        if self.enc != "i4" and not np.isfinite(rows).all():
            raise Refused(Reason.BAD_TENSOR, "a scalar that is not finite")
        new = ~self._here[off : off + num]
        self._data[off : off + num][new] = rows[new]
        self._here[off : off + num] = True

    def array(self) -> Array:
        """Return the array: float32, or int32 for ``i4``.

        >>> sheet = Sheet("f2", (2, 1))
        >>> sheet.add(1, 1, np.float16([0.5]).tobytes())
        >>> sheet.add(1, 1, np.float16([9.0]).tobytes())
        >>> sheet.is_complete, sheet.array().ravel().tolist()
        (False, [0.0, 0.5])
        """
        return self._data.astype(np.int32 if self.enc == "i4" else np.float32)
