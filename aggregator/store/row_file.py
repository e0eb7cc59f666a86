"""Keep the updates of an open round in a file once they exceed a bound, and read them in blocks.

The files have no name: they vanish with the process, and a restarted one fills them again from the
journal. Updates are appended in order of arrival. When the round closes they are copied, in order of
device id, to a second file of tiles, of which whole rows and whole columns are read in long pieces.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.store.errors import DatabaseFullError

Values = NDArray[Any]
Picks = slice | NDArray[np.intp]

_GROUP = 128  # rows of a tile; sums over rows read as many at a time
_PANEL_BYTES = 32_000_000  # largest block of all rows and the columns of a tile
_WIDEST = 64  # columns of a tile, where the rows are few enough
_IN_MEMORY = 64_000_000  # bytes of mapped rows that need no file


class SpooledRows(Mapping[str, Values]):
    """Vectors by device id, in a file; another vector gives another mapping on the same file.

    Only the newest mapping of a file, and those that it was made from, are valid. A mapping that is
    appended to a second time replaces the first result: a state that was dropped is dropped here too.

    >>> one = SpooledRows.empty(Path("/tmp"), 2, np.dtype(np.float32)).with_row("b", np.ones(2))
    >>> two = one.with_row("a", np.zeros(2))
    >>> len(one), sorted(two), two["a"].tolist()
    (1, ['a', 'b'], [0.0, 0.0])
    >>> ids, matrix, refused = two.sorted_matrix(lambda row: True)
    >>> ids, matrix[:, 0:2].tolist()
    (('a', 'b'), [[0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, log: _RowLog, count: int) -> None:
        self._log, self._count = log, count
        self._stamp = log.stamps[count - 1] if count else 0

    @classmethod
    def empty(cls, folder: Path, width: int, dtype: np.dtype[Any]) -> SpooledRows:
        """Return an empty mapping on a new file without a name in a folder."""
        return cls(_RowLog(folder, width, dtype), 0)

    @classmethod
    def of(cls, vectors: Mapping[str, Values], folder: Path) -> SpooledRows:
        """Copy one or more vectors of equal length to a new file."""
        first = next(iter(vectors.values()))
        spooled = cls.empty(folder, first.size, first.dtype)
        for name, vector in vectors.items():
            spooled = spooled.with_row(name, vector)
        return spooled

    def with_row(self, name: str, vector: Values) -> SpooledRows:
        """Return a mapping with one vector more; raise DatabaseFullError, after which this mapping is still valid."""
        self._check()
        if not np.can_cast(vector.dtype, self._log.dtype):
            return self._widened(vector.dtype).with_row(name, vector)
        self._log.append(self._count, name, vector)
        return SpooledRows(self._log, self._count + 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        self._check()
        return iter(self._log.names[: self._count])

    def __contains__(self, name: object) -> bool:
        return self._log.slots.get(name, self._count) < self._count

    def __getitem__(self, name: str) -> Values:
        self._check()
        slot = self._log.slots.get(name, self._count)
        if slot >= self._count:
            raise KeyError(name)
        return self._log.read(slot)

    def sorted_matrix(
        self, is_usable: Callable[[Values], bool]
    ) -> tuple[tuple[str, ...], FileMatrix, tuple[str, ...]]:
        """Copy the vectors to a file of tiles; return ids, rows in order of id, and the ids left out."""
        ids: list[str] = []
        refused: list[str] = []

        def usable() -> Iterator[Values]:
            for name in sorted(self):
                row = self[name]
                (ids if is_usable(row) else refused).append(name)
                if not refused or refused[-1] != name:
                    yield row

        shape = (self._count, self._log.width)
        matrix = FileMatrix.written(self._log.folder, shape, self._log.dtype, usable())
        return tuple(ids), matrix.first(len(ids)), tuple(refused)

    def _widened(self, dtype: np.dtype[Any]) -> SpooledRows:
        precise = np.result_type(self._log.dtype, dtype)
        wider = SpooledRows.empty(self._log.folder, self._log.width, precise)
        for name, row in self.items():
            wider = wider.with_row(name, row)
        return wider

    def _check(self) -> None:
        if self._count and self._log.stamps[self._count - 1 : self._count] != [self._stamp]:
            raise RuntimeError("these rows were replaced by a later append to an earlier mapping")


class _RowLog:
    """File of rows, with the id and a stamp of each."""

    def __init__(self, folder: Path, width: int, dtype: np.dtype[Any]) -> None:
        self.folder, self.width, self.dtype = folder, width, dtype
        self.names: list[str] = []
        self.slots: dict[object, int] = {}
        self.stamps: list[int] = []
        self._last = 0
        self._file = _UnnamedFile(folder)

    def append(self, count: int, name: str, vector: Values) -> None:
        """Write a row after the first ``count``; any later ones are dropped."""
        row = np.ascontiguousarray(vector, self.dtype)
        if row.shape != (self.width,):
            raise ValueError(f"expected a vector of {self.width} numbers, got {vector.shape}")
        _write(self._file.fd, row, count * row.nbytes)
        for dropped in self.names[count:]:
            del self.slots[dropped]
        del self.names[count:], self.stamps[count:]
        self._last += 1
        self.names.append(name)
        self.stamps.append(self._last)
        self.slots[name] = count

    def read(self, slot: int) -> Values:
        row = np.empty(self.width, self.dtype)
        _read(self._file.fd, row, slot * row.nbytes)
        return row


class FileMatrix:
    """Rows in a file of tiles: 128 rows by as many columns as keep a column of tiles below 32 MB.

    The tiles of the same rows lie one after another. Some rows are therefore read in one piece, and
    some columns of all rows in one piece for every 128 rows.
    """

    def __init__(self, folder: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._folder = folder
        most = _PANEL_BYTES // max(shape[0] * dtype.itemsize, 1)
        self._wide = min(_WIDEST, max(4, 1 << max(most.bit_length() - 1, 0)))
        self._panels = -(-shape[1] // self._wide)
        self._file = _UnnamedFile(folder)

    @classmethod
    def written(
        cls, folder: Path, shape: tuple[int, int], dtype: np.dtype[Any], rows: Iterable[Values]
    ) -> FileMatrix:
        """Write rows, 128 at a time."""
        matrix = cls(folder, shape, dtype)
        group = np.zeros((_GROUP, matrix._panels * matrix._wide), dtype)
        count = 0
        for row in rows:
            group[count % _GROUP, : shape[1]] = row
            count += 1
            if count % _GROUP == 0:
                matrix._put(count // _GROUP - 1, group)
        if count % _GROUP:
            matrix._put(count // _GROUP, group)
        return matrix

    def first(self, count: int) -> FileMatrix:
        """Return the matrix without the rows after the first ``count``."""
        self.shape = (count, self.shape[1])
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, *_: object, **__: object) -> Values:
        """Refuse a copy of all rows in memory."""
        raise TypeError("these rows are in a file; read blocks of them")

    def __getitem__(self, key: tuple[Picks, Picks]) -> Values:
        rows, columns = key
        if isinstance(columns, slice):
            start, stop, _ = columns.indices(self.shape[1])
            if not isinstance(rows, slice):
                return self._picked(np.asarray(rows), start, stop)
            low, high, _ = rows.indices(self.shape[0])
            if (low, high) == (0, self.shape[0]):
                return self._columns(start, stop)
            return self._rows(low, high, start, stop)
        chosen = np.asarray(columns)
        out = np.empty((len(self), len(chosen)), self.dtype)
        for panel in np.unique(chosen // self._wide):
            (here,) = np.nonzero(chosen // self._wide == panel)
            out[:, here] = self._panel(int(panel))[: len(self), chosen[here] % self._wide]
        return out[rows]

    def mapped(self, function: Callable[[Values], Values], count: int) -> Values | FileMatrix:
        """Return the rows that a function makes of every block of columns.

        Args:
            function: Maps ``(n, k)`` to ``(count, k)``, every column alone.
        """
        width = self.shape[1]
        if count * width * self.dtype.itemsize <= _IN_MEMORY:
            array = np.empty((count, width), self.dtype)
            for start in range(0, width, self._wide):
                stop = min(start + self._wide, width)
                array[:, start:stop] = function(self._columns(start, stop))
            return array
        out = FileMatrix(self._folder, (count, width), self.dtype)
        for panel in range(out._panels):
            start, stop = panel * out._wide, min((panel + 1) * out._wide, width)
            block = np.zeros((-(-count // _GROUP) * _GROUP, out._wide), self.dtype)
            block[:count, : stop - start] = function(self._columns(start, stop))
            for group in range(len(block) // _GROUP):
                tile = block[group * _GROUP : (group + 1) * _GROUP]
                _write(out._file.fd, tile, out._at(group, panel))
        return out

    def _at(self, group: int, panel: int) -> int:
        return (group * self._panels + panel) * _GROUP * self._wide * self.dtype.itemsize

    def _put(self, group: int, rows: Values) -> None:
        tiles = rows.reshape(_GROUP, self._panels, self._wide).transpose(1, 0, 2)
        _write(self._file.fd, np.ascontiguousarray(tiles), self._at(group, 0))

    def _panel(self, panel: int) -> Values:
        groups = -(-len(self) // _GROUP)
        out = np.empty((groups * _GROUP, self._wide), self.dtype)
        for group in range(groups):
            tile = out[group * _GROUP : (group + 1) * _GROUP]
            _read(self._file.fd, tile, self._at(group, panel))
        return out

    def _columns(self, start: int, stop: int) -> Values:
        first = start // self._wide
        if stop <= (first + 1) * self._wide:
            found = self._panel(first)[: len(self)]
            return found[:, start - first * self._wide : stop - first * self._wide]
        out = np.empty((len(self), stop - start), self.dtype)
        for panel in range(first, -(-stop // self._wide)):
            low, high = max(panel * self._wide, start), min((panel + 1) * self._wide, stop)
            out[:, low - start : high - start] = self._columns(low, high)
        return out

    def _group(self, group: int, start: int, stop: int) -> Values:
        first, last = start // self._wide, -(-stop // self._wide)
        tiles = np.empty((last - first, _GROUP, self._wide), self.dtype)
        _read(self._file.fd, tiles, self._at(group, first))
        rows = tiles.transpose(1, 0, 2).reshape(_GROUP, -1)
        return rows[:, start - first * self._wide : stop - first * self._wide]

    def _rows(self, low: int, high: int, start: int, stop: int) -> Values:
        if low % _GROUP == 0 and 0 < high - low <= _GROUP:
            return self._group(low // _GROUP, start, stop)[: high - low]
        out = np.empty((max(high - low, 0), stop - start), self.dtype)
        for group in range(low // _GROUP, -(-high // _GROUP)):
            one, end = max(group * _GROUP, low), min((group + 1) * _GROUP, high)
            rows = self._group(group, start, stop)
            out[one - low : end - low] = rows[one - group * _GROUP : end - group * _GROUP]
        return out

    def _picked(self, rows: NDArray[np.intp], start: int, stop: int) -> Values:
        out = np.empty((len(rows), stop - start), self.dtype)
        groups = rows // _GROUP
        for group in np.unique(groups):
            (here,) = np.nonzero(groups == group)
            out[here] = self._group(int(group), start, stop)[rows[here] % _GROUP]
        return out


def pending_rows(folder: Path, limit: int) -> Callable[[Mapping[str, Values], str, Values], Any]:
    """Return the function that adds an update to those that wait for the round to close.

    Args:
        limit: Bytes of updates that are kept in memory; with more, all of the round are in a file.

    >>> add = pending_rows(Path("/tmp"), limit=16)
    >>> one = add({}, "a", np.zeros(2))
    >>> type(one).__name__, type(add(one, "b", np.ones(2))).__name__
    ('dict', 'SpooledRows')
    """

    def add(pending: Mapping[str, Values], name: str, vector: Values) -> Mapping[str, Values]:
        if isinstance(pending, SpooledRows):
            return pending.with_row(name, vector)
        held = {**pending, name: vector}
        if len(held) * vector.nbytes <= limit:
            return held
        return SpooledRows.of(held, folder)

    return add


class _UnnamedFile:
    """File without a name, open until its owner is gone."""

    def __init__(self, folder: Path) -> None:
        # with O_TMPFILE, where the system has it, no moment shows a name
        self._file = tempfile.TemporaryFile(dir=folder, prefix="rows-", buffering=0)  # noqa: SIM115
        self.fd = self._file.fileno()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def _write(fd: int, values: Values, at: int) -> None:
    left = values.data.cast("B")
    try:
        while left:
            done = os.pwrite(fd, left, at)
            left, at = left[done:], at + done
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DatabaseFullError(f"no space for the rows of a round: {error}") from error
        raise


def _read(fd: int, values: Values, at: int) -> None:
    left = values.data.cast("B")
    while left:
        done = os.preadv(fd, [left], at)
        if not done:
            raise OSError(f"the file of rows ends at byte {at}")
        left, at = left[done:], at + done
