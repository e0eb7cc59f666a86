"""Passes over a matrix of long rows, a block of columns at a time.

Blocks are chosen so that what is being worked on stays in a core's cache. Blocks of one pass are
independent and shared out over threads (numpy lets go of the interpreter while it works); which
thread took which block changes no bit of any result.

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

from aggregator.rules.networks import FEW, sort_few

Matrix = NDArray[np.float64]
Values = NDArray[Any]
Block = Callable[[int, int], Values]
"""Some columns of all rows, shape ``(n, stop - start)``."""

_SPAN = 32_768  # columns of a running sum: 128 KiB of float32 stay in the cache beside a row
_PANEL = 16_384  # columns whose squares are added up in the precision of the rows
_DEEP = 4096  # columns whose products are
_GROUP = 16  # rows that are added up in their own precision
_CACHE = 1 << 18  # scalars of a block that is sorted: 1 MiB of float32
_TILE = 64  # rows turned into columns at a time


def threads() -> int:
    """Return how many threads a pass may use: ``OMP_NUM_THREADS``, or the cores we may run on."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def spans(width: int, step: int) -> list[tuple[int, int]]:
    """Return the blocks of columns, in order.

    >>> spans(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + step, width)) for start in range(0, width, step)]


def each(work: Callable[[int, int], object], width: int, step: int, least: int = 2) -> None:
    """Do the work for every block, on threads if there are at least so many blocks."""
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
    total = np.empty(values.shape[1])
    used = np.flatnonzero(weights)
    some = values if len(used) == len(values) else None
    alike = len(used) > 0 and np.ptp(weights[used]) == 0.0
    factors = weights.astype(values.dtype)

    def add(start: int, stop: int) -> None:
        part = total[start:stop]
        part[:] = 0.0
        for at in range(0, len(used), _GROUP):
            rows = used[at : at + _GROUP]
            block = (
                some[at : at + _GROUP, start:stop] if some is not None else values[rows, start:stop]
            )
            if alike:
                np.add(part, np.add.reduce(block, axis=0), out=part)
            else:
                np.add(part, np.einsum("i,ij->j", factors[rows], block), out=part)
        if alike:
            np.multiply(part, weights[used[0]], out=part)

    each(add, values.shape[1], _SPAN, least=4)
    return total


def squares(block: Block, width: int, count: int, point: Matrix | None = None) -> Matrix:
    """Return every row's squared distance to a point (None: zero), added up in float64."""
    parts = np.zeros((len(spans(width, _PANEL)), count))

    def measure(start: int, stop: int) -> None:
        away = block(start, stop)
        if point is not None:
            away = away - point[start:stop].astype(away.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.einsum("ij,ij->i", away, away)
        if not np.isfinite(found).all():
            wide = away.astype(np.float64)
            found = np.einsum("ij,ij->i", wide, wide)
        parts[start // _PANEL] = found

    each(measure, width, _PANEL, least=4)
    total: Matrix = parts.sum(axis=0)
    return total


def along(block: Block, width: int, count: int, point: Values) -> Matrix:
    """Return every row's inner product with a vector, added up in float64."""
    parts = np.zeros((len(spans(width, _DEEP)), count))

    def measure(start: int, stop: int) -> None:
        parts[start // _DEEP] = block(start, stop) @ point[start:stop].astype(np.float64)

    each(measure, width, _DEEP, least=4)
    total: Matrix = parts.sum(axis=0)
    return total


def products(values: Values, centre: Values) -> tuple[Matrix, Matrix]:
    """Return the inner products of ``values - centre`` with each other and with the centre.

    Float32 rows are multiplied in float32 over one panel of columns and added up over panels in
    float64; where a sum of float32 leaves the finite numbers, or is too coarse to tell the rows
    apart, all is done again in float64.
    """
    about, cross = _products(values, centre, values.dtype)
    if values.dtype == np.float32 and not _is_fine(about):
        about, cross = _products(values, centre, np.dtype(np.float64))
    return about, cross


def _products(values: Values, centre: Values, kind: np.dtype[Any]) -> tuple[Matrix, Matrix]:
    n, width = values.shape
    about, cross = np.zeros((n, n)), np.zeros(n)
    scratch = np.empty(n * min(_DEEP, width), kind)
    for start, stop in spans(width, _DEEP):
        middle = centre[start:stop].astype(kind)
        away = scratch[: n * (stop - start)].reshape(n, stop - start)
        np.subtract(values[:, start:stop], middle, out=away, dtype=kind)
        with np.errstate(over="ignore", invalid="ignore"):
            about += away @ away.T
            cross += away @ middle
    return about, cross


def _is_fine(about: Matrix) -> bool:
    """Whether float32 products tell rows apart: rounding is small beside every row's distances."""
    squared = np.diag(about)
    if not np.isfinite(about).all():
        return False
    apart = squared[:, None] + squared[None, :] - 2.0 * about
    apart.partition(len(apart) // 2, axis=1)
    return bool((1e-4 * squared <= np.maximum(apart[:, len(apart) // 2], 0.0)).all())


def ordered(block: Block, width: int, count: int, statistic: Callable[[Values], Values]) -> Matrix:
    """Sort every column and apply a statistic of columns in ascending order.

    Args:
        block: Gives some columns.
        width: How many columns there are.
        count: How many rows there are.
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
