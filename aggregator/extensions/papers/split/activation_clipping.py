"""Guards of split learning: limits on the norm of the stations' signals and weights.

Source: ``algorithms.md`` section 6.4, server guards. Non-finite values are refused before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]

MEDIANS = 3.0  # largest accepted norm, in medians over the stations
RANGE = 32.0
"""Largest accepted norm of a station, as a multiple of its own largest accepted one. Its own past
counts as at least the stations' median, and as at most ``MEDIANS`` medians, which bounds a slow
rise."""
# the same limit for weights, which change less from round to round than windows do
WEIGHTS_RANGE = 4.0
LONGEST = 1e6  # norm of a row of activations or gradients that no scaled model reaches
FADING = 0.9  # factor of a station's past norm from one turn to the next, if nothing longer arrives
_TINY = 1e-12


def clipped_features(h: Array, sent: Mask, most: float = MEDIANS) -> tuple[Array, Array]:
    """Clip each station's activations, window by window, to a number of medians over the stations.

    Zeros, of windows that a station lacks, are not counted in the median.

    Args:
        h: Activations, ``(B, N, F, L)``.
        sent: Mask of the stations that sent theirs this turn, ``(N,)``: others are clipped, but not
            counted.
        most: Limit in medians; infinity clips nothing.

    Returns:
        The activations, and the factor of each, ``(B, N)``.

    >>> h = np.array([1.0, 2.0, 30.0, 0.0]).reshape(1, 4, 1, 1)
    >>> clipped_features(h, np.array([True, True, True, True]))[0].ravel().tolist()
    [1.0, 2.0, 6.0, 0.0]
    """
    factors = np.ones(h.shape[:2], h.dtype)
    if not np.isfinite(most) or not sent.any():
        return h, factors
    norms = np.sqrt(np.sum(np.square(h, dtype=np.float64), axis=(2, 3)))
    for b, row in enumerate(norms):
        counted = row[sent & (row > 0)]
        if counted.size:
            limit = most * float(np.median(counted))
            long = row > limit
            factors[b, long] = limit / np.maximum(row[long], _TINY)
    return h * factors[:, :, None, None], factors


def longest(array: Array) -> float:
    """Return the norm of the longest row, as float64: float32 would overflow.

    >>> longest(np.full((2, 1, 4), 3.4e38, np.float32)) == 2 * float(np.float32(3.4e38))
    True
    """
    rows = np.asarray(array, np.float64).reshape(len(array), -1)
    return float(np.sqrt(np.square(rows).sum(1)).max(initial=0.0))


def bound(name: str, past: Mapping[str, float], most: float = RANGE) -> float:
    """Return the norm limit of a station, from its own past and that of the others.

    A station without a past has the median of the others' as its own; infinite if none has.

    Args:
        past: Largest accepted lengths, by station (``remembered``).

    >>> past = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 1e9}
    >>> [bound(name, past, 4.0) for name in ("a", "b", "c", "d", "new")]
    [8.0, 12.0, 8.0, 32.0, 8.0]
    """
    known = [value for value in past.values() if 0 < value < np.inf]
    if not known:
        return float(np.inf)
    median = float(np.median(known))
    return most * float(np.clip(past.get(name, median), median, most * median))


def astray(lengths: Mapping[str, float], past: Mapping[str, float]) -> frozenset[str]:
    """Return the stations whose norm is outside of the range of their own past.

    If no station has a past, the present norms replace it. If half of the stations or more are out
    of range, the fleet has moved, and only those beyond ``LONGEST`` are out; if all are, no station
    is, and only ``clipped_features`` and ``clipped_gradients`` apply.

    Args:
        past: Largest accepted lengths, by station (``remembered``).

    >>> past = {"a": 1.0, "b": 1.2, "c": 0.9}
    >>> sorted(astray({"a": 1.1, "b": 3.4e38, "c": 9.0}, past))
    ['b']
    >>> sorted(astray({"a": 100.0, "b": 120.0, "c": 0.9}, past))
    []
    """
    before = past if any(past.values()) else lengths
    out = {name for name, length in lengths.items() if not length <= bound(name, before)}
    if 2 * len(out) < len(lengths):
        return frozenset(out)
    out = {name for name, length in lengths.items() if not length <= LONGEST}
    return frozenset(out) if len(out) < len(lengths) else frozenset()


def remembered(
    past: Mapping[str, float], lengths: Mapping[str, float], out: Iterable[str]
) -> dict[str, float]:
    """Return the past norms after one more turn; those out of range are not recorded.

    >>> remembered({"a": 1.0, "b": 1.0}, {"a": 0.5, "b": 1e9, "c": 2.0}, ["b"])
    {'a': 0.9, 'b': 1.0, 'c': 2.0}
    """
    taken = {name: length for name, length in lengths.items() if name not in set(out)}
    return {**past, **{n: max(v, FADING * past.get(n, 0.0)) for n, v in taken.items()}}


def clipped_gradients(gz: Array, sent: Mask, most: float = MEDIANS) -> Array:
    """Clip each station's gradient, of the whole batch, to a number of medians over the stations.

    Args:
        gz: Gradients, ``(B, N, F, L)``.
        sent: Mask of the stations that sent theirs this turn, ``(N,)``.
        most: Limit in medians; infinity clips nothing.

    >>> gz = np.array([1.0, 1.0, -1e6]).reshape(1, 3, 1, 1)
    >>> clipped_gradients(gz, np.array([True, True, True])).ravel().tolist()
    [1.0, 1.0, -3.0]
    """
    if not np.isfinite(most) or not sent.any():
        return gz
    norms = np.sqrt(np.sum(np.square(gz, dtype=np.float64), axis=(0, 2, 3)))
    limit = most * float(np.median(norms[sent]))
    factors = np.where(sent & (norms > limit), limit / np.maximum(norms, _TINY), 1.0)
    shorter: Array = gz * factors.astype(gz.dtype)[None, :, None, None]
    return shorter
