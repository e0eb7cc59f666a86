"""Passes over a matrix of long rows, a block of columns at a time.

Blocks fit into a core's cache. Blocks of one pass are independent and run on several threads
(numpy releases the interpreter lock); the assignment of blocks to threads changes no bit of any
result.

Float32 rows are added up in float32 over a few rows, or over one block of columns, and over these
in float64: as fast as float32, and as exact as the rows themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.sorting_network import FEW, sort_few

Matrix = NDArray[np.float64]
Values = NDArray[Any]
Block = Callable[[int, int], Values]
"""Some columns of all rows, shape ``(n, stop - start)``."""

_SPAN = 65_536  # columns of a running sum: 256 KiB of float32 stay in the cache beside a row
_PANEL = 8192  # columns whose squares are added up in the precision of the rows; more of few rows
_DEEP = 4096  # columns whose products are; more of few rows
_GROUP = 128  # rows that are added up in their own precision
_SHARED = 1 << 21  # scalars that are worth handing half of to another thread
_CACHE = 1 << 18  # scalars of a block that is sorted: 1 MiB of float32
_TILE = 64  # rows turned into columns at a time


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


def weighted_sum(values: Values, weights: Matrix) -> Matrix:
    """Return ``sum_i weights[i] * values[i]`` in float64, rows in order.

    Deliberately not a matrix product: a BLAS may add in another order on another day, and a
    journal that is replayed must give the same bits.
    """
    used = np.flatnonzero(weights)
    if len(used) < 2:
        one = values[used[0]] if len(used) else np.zeros(values.shape[1])
        only: Matrix = np.multiply(one, weights[used].sum(), dtype=np.float64)
        return only
    total = np.empty(values.shape[1])
    factors = None if (weights[used] == weights[used[0]]).all() else weights[used]
    every, few = len(used) == len(values), len(used) <= _GROUP
    scale = weights[used[0]] if factors is None else 1.0
    huge: list[int] = []  # blocks too large for sums in the precision of the rows

    def add(start: int, stop: int) -> None:
        part = total[start:stop]
        for at in range(0, len(used), _GROUP):
            group = slice(at, at + _GROUP)
            rows = values[group, start:stop] if every else values[used[group], start:stop]
            some, is_fit = _added(rows, None if factors is None else factors[group])
            if not is_fit:
                huge.append(start)
            if at == 0:
                np.multiply(some, scale if few else 1.0, out=part, dtype=np.float64)
            else:
                np.add(part, some, out=part)
        if not few:
            np.multiply(part, scale, out=part)

    step = _SPAN if every else _SPAN // 8
    if len(used) * len(total) >= _SHARED:
        step = min(step, -(-len(total) // threads()))
    each(add, len(total), step)
    if values.dtype == np.float32 and huge:
        return weighted_sum(values.astype(np.float64), weights)
    return total


def _added(rows: Values, factors: Matrix | None) -> tuple[Values, bool]:
    """Return the weighted sum of some rows in their precision, and True if it is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if factors is None:
            some = np.asarray(np.add.reduce(rows, axis=0))
        else:
            some = np.asarray(np.einsum("i,ij->j", factors.astype(rows.dtype), rows))
        return some, bool(np.isfinite(np.vdot(some, some)))


def squares(block: Block, width: int, count: int, point: Matrix | None = None) -> Matrix:
    """Return every row's squared distance to a point (None: zero), added up in float64."""
    step = max(_PANEL, _CACHE // (2 * count))
    parts = np.zeros((len(spans(width, step)), count))

    def measure(start: int, stop: int) -> None:
        away = block(start, stop)
        if point is not None:
            away = away - point[start:stop].astype(away.dtype)
        found = _dots(away)
        if not np.isfinite(found).all():
            found = _dots(away.astype(np.float64))
        parts[start // step] = found

    each(measure, width, step, least=4)
    total: Matrix = parts.sum(axis=0)
    return total


def along(block: Block, width: int, count: int, point: Values) -> Matrix:
    """Return every row's inner product with a vector, in its precision over one panel."""
    total = np.zeros(count)
    for start, stop in spans(width, _DEEP):
        rows, part = block(start, stop), point[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):
            found = rows.astype(part.dtype, copy=False) @ part
        if not np.isfinite(found).all():
            found = rows.astype(np.float64) @ part.astype(np.float64)
        total += found
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
    about, scratch = np.zeros((count, count)), np.empty(count * step, centre.dtype)
    for start, stop in spans(width, step):
        away = scratch[: count * (stop - start)].reshape(count, stop - start)
        np.subtract(block(start, stop), centre[start:stop], out=away, dtype=centre.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            if count <= FEW:  # a product of so flat matrices is mostly copying them
                for i in range(count):
                    about[i, i:] += away[i:] @ away[i]
            else:
                about += away @ away.T
    return np.triu(about) + np.triu(about, 1).T if count <= FEW else about


def _dots(rows: Values) -> Values:
    """Return every row's inner product with itself."""
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


def ordered(block: Block, width: int, count: int, statistic: Callable[[Values], Values]) -> Matrix:
    """Sort every column and apply a statistic of columns in ascending order.

    Args:
        block: Returns some columns.
        width: Number of columns.
        count: Number of rows.
        statistic: Maps ``(n, k)``, ascending along the first axis, to ``(k,)``.
    """
    out = np.empty(width)

    def order(start: int, stop: int) -> None:
        out[start:stop] = statistic(_sorted(block(start, stop)))

    each(order, width, max(64, min(4096, _CACHE // max(count, 1))))
    return out


def _sorted(block: Values) -> Values:
    """Return a block with every column in ascending order.

    A few rows are put in order by comparing whole rows; of many, every column is sorted where it
    lies in one piece.
    """
    n, wide = block.shape
    if n <= FEW:
        return sort_few(block)
    lines = np.empty((wide, n), block.dtype)
    for start in range(0, n, _TILE):
        lines[:, start : start + _TILE] = block[start : start + _TILE].T
    lines.sort(axis=1)
    return lines.T
