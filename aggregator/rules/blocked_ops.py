"""Passes over a matrix of long rows, in memory or in a file, a block of columns at a time.

Blocks fit into a core's cache. Blocks of one pass are independent and run on several threads
(numpy releases the interpreter lock); the assignment of blocks to threads changes no bit of any
result.

Float32 rows are added up in float32 over a few rows, or over one block of columns, and over these
in float64: as fast as float32, and as exact as the rows themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.sorting_network import FEW, sort_few
from edge_sdk.shared_math import fedavg

Matrix = NDArray[np.float64]
Values = NDArray[Any]  # float32 or float64
Picks = slice | NDArray[np.intp]
Block = Callable[[int, int], Values]  # some columns of all rows, shape ``(n, stop - start)``
Part = Callable[[slice, int, int], Values]  # some columns of some rows
_SPAN = 65_536  # columns of a running sum: 256 KiB of float32 stay in the cache beside a row
_PANEL = 8192  # columns of a sum of squares in the precision of the rows; few rows have more
_DEEP = 4096  # columns of a sum of products in that precision; few rows have more
_GROUP = 128  # rows that are added up in their own precision
_SHARED = 1 << 21  # scalars that are worth handing half of to another thread
_CACHE = 1 << 18  # scalars of a block that is sorted: 1 MiB of float32
_ORDERED = 1 << 14  # columns of a few rows that are put in order at a time; fewer are mostly calls
_TILE = 64  # rows turned into columns at a time
_TALL = 1024  # rows multiplied with a vector at a time
_SORTED = 1 << 23  # largest number of scalars that are sorted at a time: 32 MiB of float32


@runtime_checkable
class StoredMatrix(Protocol):
    """A matrix of rows that is read piece by piece."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and of columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the precision, float32 or float64."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, key: tuple[Picks, Picks], /) -> Values:
        """Return some columns of some rows as an array; rows or columns may be an array of positions."""

    def mapped(self, function: Callable[[Values], Values], count: int) -> Values | StoredMatrix:
        """Return the matrix of ``count`` rows that a function makes of every block of columns."""


@runtime_checkable
class SpooledVectors(Protocol):
    """Named vectors outside of memory."""

    def sorted_matrix(
        self, is_usable: Callable[[Values], bool]
    ) -> tuple[tuple[str, ...], StoredMatrix, tuple[str, ...]]:
        """Return names, rows in order of name, and the names of the vectors that are not usable."""


class ColumnExecutor(Protocol):
    """Computes blocks of columns elsewhere; the results come back in order."""

    def columns(self, count: int, itemsize: int) -> int:
        """Return the number of columns of a block by its number of rows."""

    def map(self, function: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterable[Any]:
        """Return the function's result for every block, in order."""


_EXECUTOR: ContextVar[ColumnExecutor | None] = ContextVar("column executor", default=None)


@contextmanager
def executed_by(executor: ColumnExecutor) -> Iterator[None]:
    """Compute sums over rows, sorted columns and inner products with an executor meanwhile.

    The functions, their blocks and the order of every sum are those of one process, so the results
    have the same bits where the processors do.
    """
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


def threads() -> int:
    """Return the number of threads of a pass: ``OMP_NUM_THREADS``, or the available cores."""
    configured = os.environ.get("OMP_NUM_THREADS", "")
    if configured.isdecimal() and int(configured) > 0:
        return int(configured)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def spans(width: int, step: int) -> list[tuple[int, int]]:
    """Return the blocks of columns, in order.

    >>> spans(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + step, width)) for start in range(0, width, step)]


def each(work: Callable[[int, int], object], width: int, step: int, least: int = 2) -> None:
    """Run the work for every block, on threads if there are at least ``least`` blocks."""
    pieces = spans(width, step)
    workers = min(threads(), len(pieces))
    if workers <= 1 or len(pieces) < least:
        for start, stop in pieces:
            work(start, stop)
        return
    for done in [_pool(workers).submit(work, *piece) for piece in pieces]:
        done.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "rules")


def weighted_sum(values: Values | StoredMatrix, weights: Matrix, *, wide: bool = False) -> Matrix:
    """Return ``sum_i weights[i] * values[i]`` in float64, rows in order.

    Deliberately not a matrix product: a BLAS may add in another order on another day, and a
    journal that is replayed must give the same bits.

    Args:
        values: The rows, in memory or in a file.
        weights: Weight of each row, shape ``(n,)``.
        wide: True adds in float64 from the first row on.
    """
    used, width = np.flatnonzero(weights), values.shape[1]
    if len(used) < 2:
        one = values[used[:1], 0:width][0] if len(used) else np.zeros(width)
        only: Matrix = np.multiply(one, weights[used].sum(), dtype=np.float64)
        return only
    total = np.empty(width)
    factors = None if (weights[used] == weights[used[0]]).all() else weights[used]
    every = len(used) == len(values)
    add = _SumOfRows(factors, weights[used[0]] if factors is None else 1.0, len(used), wide)
    huge: list[int] = []  # blocks too large for sums in the precision of the rows

    def place(start: int, stop: int, found: tuple[Matrix, bool]) -> None:
        total[start:stop] = found[0]
        if not found[1]:
            huge.append(start)

    executor = _EXECUTOR.get()
    if executor is not None:
        pieces = spans(width, executor.columns(len(used), values.dtype.itemsize))
        blocks = (values[:, a:b] if every else values[used, a:b] for a, b in pieces)
        for (start, stop), found in zip(pieces, executor.map(add.of_block, blocks), strict=True):
            place(start, stop, found)
    else:
        step = _SPAN if every else _SPAN // 8
        if len(used) * width >= _SHARED:
            step = min(step, -(-width // threads()))

        def read(start: int, stop: int) -> None:
            place(
                start, stop, add(lambda group: values[group if every else used[group], start:stop])
            )

        each(read, width, step)
    if values.dtype == np.float32 and huge and not wide:
        return weighted_sum(values, weights, wide=True)
    return total


@dataclass(frozen=True, eq=False)
class _SumOfRows:
    """Weighted sum of the rows of one block of columns, 128 rows at a time."""

    factors: Matrix | None  # weight of each row; None for the same one
    scale: float
    count: int
    wide: bool  # true adds in float64 from the first row on

    def __call__(self, read: Callable[[slice], Values]) -> tuple[Matrix, bool]:
        """Return the sum in float64, and True if it is finite in the precision of the rows."""
        part, is_fit, few = np.zeros(0), True, self.count <= _GROUP
        for at in range(0, self.count, _GROUP):
            group = slice(at, min(at + _GROUP, self.count))
            rows = read(group)
            rows = rows.astype(np.float64, copy=False) if self.wide else rows
            some, fits = _added(rows, None if self.factors is None else self.factors[group])
            is_fit &= fits
            if at == 0:
                part = np.multiply(some, self.scale if few else 1.0, dtype=np.float64)
            else:
                np.add(part, some, out=part)
        return (part if few else np.multiply(part, self.scale, out=part)), is_fit

    def of_block(self, block: Values) -> tuple[Matrix, bool]:
        """Return the weighted sum of a block in memory, and whether it is finite."""
        return self(lambda group: block[group])


def _added(rows: Values, factors: Matrix | None) -> tuple[Values, bool]:
    """Return the weighted sum of some rows in their precision, and True if it is finite.

    A single column is added as one of two: numpy adds numbers that lie apart in another order.
    """
    if rows.shape[1] == 1:
        twice, is_fit = _added(np.repeat(rows, 2, axis=1), factors)
        return twice[:1], is_fit
    with np.errstate(over="ignore", invalid="ignore"):
        some = np.add.reduce(rows) if factors is None else fedavg.weighted_sum(rows, factors)
        return np.asarray(some), bool(np.isfinite(np.vdot(some, some)))


def squares(
    part: Part, width: int, pieces: Sequence[slice], count: int, point: Matrix | None = None
) -> Matrix:
    """Return every row's squared distance to a point (None: zero), added up in float64.

    Args:
        pieces: Rows that are read at a time, which together are all.
        point: The point, shape ``(width,)``.
    """
    step = max(_PANEL, _CACHE // (2 * count))
    parts = np.zeros((len(spans(width, step)), count))

    def measured(start: int, stop: int, *, wide: bool) -> bool:
        at, is_finite = None if point is None else point[start:stop], True
        for rows in pieces:
            found = _squared(part(rows, start, stop), at, wide=wide)
            parts[start // step, rows] = found
            is_finite &= bool(np.isfinite(found).all())
        return is_finite

    def measure(start: int, stop: int) -> None:
        if not measured(start, stop, wide=False):
            measured(start, stop, wide=True)

    each(measure, width, step, least=4)
    total: Matrix = parts.sum(axis=0)
    return total


def _squared(rows: Values, point: Matrix | None, *, wide: bool) -> Values:
    away = rows if point is None else rows - point.astype(rows.dtype)
    return _dots(away.astype(np.float64) if wide else away)


def along(part: Part, width: int, count: int, point: Values) -> Matrix:
    """Return every row's inner product with a vector, in its precision over one panel."""
    total = np.zeros(count)
    for first, last in spans(count, _TALL):
        for start, stop in spans(width, _DEEP):
            rows, piece = part(slice(first, last), start, stop), point[start:stop]
            with np.errstate(over="ignore", invalid="ignore"):
                found = rows.astype(piece.dtype, copy=False) @ piece
            if not np.isfinite(found).all():
                found = rows.astype(np.float64) @ piece.astype(np.float64)
            total[first:last] += found
    return total


def products(block: Block, width: int, count: int, centre: Values) -> Matrix:
    """Return the inner products of rows less a centre with each other.

    Float32 rows are multiplied in float32 over one panel of columns and added up over panels in
    float64; if a float32 sum is not finite, or too coarse to distinguish the rows, all is computed
    again in float64.
    """
    about = _products(block, width, count, centre)
    if centre.dtype == np.float32 and not _is_fine(about):
        about = _products(block, width, count, centre.astype(np.float64))
    return about


def _products(block: Block, width: int, count: int, centre: Values) -> Matrix:
    step = min(max(_DEEP, _CACHE // (2 * count)), width)
    about, pieces = np.zeros((count, count)), spans(width, step)
    executor = _EXECUTOR.get()
    if executor is not None and count > FEW:
        jobs = ((block(start, stop), centre[start:stop]) for start, stop in pieces)
        for found in executor.map(_product, jobs):
            about += found
        return about
    scratch = np.empty(count * step, centre.dtype)
    for start, stop in pieces:
        away = scratch[: count * (stop - start)].reshape(count, stop - start)
        np.subtract(block(start, stop), centre[start:stop], out=away, dtype=centre.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            if count <= FEW:  # a product of so flat matrices is mostly copying them
                for i in range(count):
                    about[i, i:] += away[i:] @ away[i]
            else:
                about += away @ away.T
    return np.triu(about) + np.triu(about, 1).T if count <= FEW else about


def _product(job: tuple[Values, Values]) -> Values:
    rows, centre = job
    away = np.subtract(rows, centre, dtype=centre.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Values = away @ away.T
    return found


def _dots(rows: Values) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):
        found: Values = np.matmul(rows[:, None, :], rows[:, :, None])[:, 0, 0]
    return found


def _is_fine(about: Matrix) -> bool:
    """Return True if rounding of float32 products is small beside every row's distances."""
    squared = np.diag(about)
    if not np.isfinite(about).all():
        return False
    distances = squared[:, None] + squared[None, :] - 2.0 * about
    distances.partition(len(distances) // 2, axis=1)
    return bool((1e-4 * squared <= np.maximum(distances[:, len(distances) // 2], 0.0)).all())


def ordered(
    block: Block, width: int, count: int, statistic: Callable[[Values], Values], cut: int = 0
) -> Matrix:
    """Sort every column and apply a statistic of columns in ascending order.

    Args:
        statistic: Maps ``(n - 2 cut, k)``, ascending along the first axis, to ``(k,)``.
        cut: Number of values left out at either end of a column.
    """
    out = np.empty(width)
    executor = _EXECUTOR.get()
    if executor is not None:
        pieces = spans(width, executor.columns(count, 4))
        blocks = (block(start, stop) for start, stop in pieces)
        found = executor.map(partial(_of_sorted, statistic, cut), blocks)
        for (start, stop), some in zip(pieces, found, strict=True):
            out[start:stop] = some
        return out

    def order(start: int, stop: int) -> None:
        out[start:stop] = _of_sorted(statistic, cut, block(start, stop))

    step = max(64, min(_ORDERED if count <= FEW else 4096, _CACHE // max(count, 1)))
    each(order, width, max(1, min(step, _SORTED // max(count, 1))))
    return out


def _of_sorted(statistic: Callable[[Values], Values], cut: int, block: Values) -> Values:
    return statistic(_sorted(block, cut))


def _sorted(block: Values, cut: int) -> Values:
    """Return a block with every column in ascending order, less ``cut`` values at either end.

    A few rows are put in order by comparing whole rows; of many, every column is sorted where it
    lies in one piece.
    """
    n, wide = block.shape
    if n <= FEW:
        return sort_few(block, cut)
    lines = np.empty((wide, n), block.dtype)
    for start in range(0, n, _TILE):
        lines[:, start : start + _TILE] = block[start : start + _TILE].T
    lines.sort(axis=1)
    return lines.T[cut : n - cut]
