"""Split one array into fragments of whole rows: activations and gradients on the wire.

An array of 256 kB is not a transfer: it expires within seconds, and lost rows are not requested
again. So each fragment is signed and complete in itself, and states its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.messages import ARRAY_LIMIT, CHUNK_LIMIT, row_size

Array = NDArray[Any]
Shape = tuple[int, ...]

_HALF_MAX = 65504.0
_TYPES = {"f4": "<f4", "f2": "<f2", "i4": "<i4"}


class ArrayFragment(NamedTuple):
    """Some rows of an array: number of the first row, number of rows, and their bytes."""

    off: int
    num: int
    blob: bytes


def cut(array: Array, enc: str) -> Iterator[ArrayFragment]:
    """Split an array into fragments of whole rows, each as large as the limit allows.

    Args:
        array: Shape ``(rows, …)``, finite; ``f2`` saturates at ±65,504.
        enc: ``f4``, ``f2`` or ``i4``.

    Raises:
        Refused: BAD_TENSOR if a scalar is not finite, a row is too long for one fragment, or the
            array exceeds ``ARRAY_LIMIT``.

    >>> [(p.off, p.num) for p in cut(np.zeros((6, 64, 32), np.float32), "f4")]
    [(0, 4), (4, 2)]
    >>> [(p.off, p.num) for p in cut(np.zeros((6, 64, 32), np.float32), "f2")]
    [(0, 6)]
    """
    data = _written(array, enc)
    size = row_size(data.shape, enc)
    if size > CHUNK_LIMIT:
        raise Refused(Reason.BAD_TENSOR, f"a row of {size} bytes, at most {CHUNK_LIMIT}")
    if data.nbytes > ARRAY_LIMIT:
        raise Refused(Reason.BAD_TENSOR, f"an array of {data.nbytes} bytes, at most {ARRAY_LIMIT}")
    most = max(1, CHUNK_LIMIT // max(1, size))
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
