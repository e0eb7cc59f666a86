"""Passes over a matrix of long rows, a block of columns at a time.

Blocks are chosen so that what is being worked on stays in a core's cache. Blocks of one pass are
independent, and those of a pass that sorts are shared out over threads (numpy lets go of the
interpreter while it works); which thread took which block changes no bit of any result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Values = NDArray[Any]
Block = Callable[[int, int], Values]

_CACHE = 1 << 18  # scalars of a block that is sorted: 1 MiB of float32
_PANEL = 4096  # columns whose products are added up in the precision of the rows
_SPAN = 16_384  # columns of a running sum in float64: it stays in the cache beside a row


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


def each(work: Callable[[int, int], object], width: int, step: int) -> None:
    """Do the work for every block, on as many threads as there are for it."""
    pieces = spans(width, step)
    workers = min(threads(), len(pieces))
    if workers <= 1:
        for start, stop in pieces:
            work(start, stop)
        return
    for done in [_pool(workers).submit(work, *piece) for piece in pieces]:
        done.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "rules")


def weighted_sum(values: Values, weights: Matrix) -> Matrix:
    """Return ``sum_i weights[i] * values[i]`` in float64, rows in order."""
    total = np.zeros(values.shape[1])

    def add(start: int, stop: int) -> None:
        part, scaled = total[start:stop], np.empty(stop - start)
        for weight, row in zip(weights, values, strict=True):
            if weight:
                np.multiply(row[start:stop], weight, out=scaled, dtype=np.float64)
                np.add(part, scaled, out=part)

    each(add, values.shape[1], _SPAN)
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

    each(measure, width, _PANEL)
    total: Matrix = parts.sum(axis=0)
    return total


def along(block: Block, width: int, count: int, point: Values) -> Matrix:
    """Return every row's inner product with a vector, added up in float64."""
    parts = np.zeros((len(spans(width, _PANEL)), count))

    def measure(start: int, stop: int) -> None:
        parts[start // _PANEL] = block(start, stop) @ point[start:stop].astype(np.float64)

    each(measure, width, _PANEL)
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
    for start, stop in spans(width, _PANEL):
        middle = centre[start:stop].astype(kind)
        away = np.subtract(values[:, start:stop], middle, dtype=kind)
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
    middling = np.median(apart, axis=1)
    return bool((1e-4 * squared <= np.maximum(middling, 0.0)).all())


def columnwise(
    block: Block, width: int, count: int, statistic: Callable[[Values], Values]
) -> Matrix:
    """Apply a statistic of columns, ``(n, k)`` to ``(k,)``."""
    out = np.empty(width)

    def apply(start: int, stop: int) -> None:
        out[start:stop] = statistic(block(start, stop))

    each(apply, width, max(64, min(4096, _CACHE // max(count, 1))))
    return out


def sorted_columns(
    block: Block, width: int, count: int, statistic: Callable[[Values], Values]
) -> Matrix:
    """Sort every column and apply a statistic of ascending lines, shape ``(k, n)`` to ``(k,)``."""
    out = np.empty(width)

    def order(start: int, stop: int) -> None:
        lines = np.ascontiguousarray(block(start, stop).T)
        lines.sort(axis=1)
        out[start:stop] = statistic(lines)

    each(order, width, max(64, min(4096, _CACHE // max(count, 1))))
    return out
