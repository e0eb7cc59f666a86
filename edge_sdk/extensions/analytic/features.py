"""Compute named features of a load record: lags, changes, means, calendar, exogenous columns.

A feature is a string, ``kind`` or ``kind:argument`` or ``kind:argument:argument``; a bundle lists
strings, and two programs that read the same list compute the same columns. Let o be the origin (the
last row that is known), t = o + h the target's row, x the scaled load, and D the rows of a day:

| feature | column |
| --- | --- |
| ``last`` | x[o] |
| ``change:k`` | x[o - k] - x[o] |
| ``day:d:j`` | x[t - dD + j] - x[o]: around the target's time, d days before |
| ``moved:d`` | x[t - dD] - x[o - dD]: how the load changed over the same hours, d days before |
| ``mean:k`` | mean of the last k rows - x[o] |
| ``spread:k`` | mean modulus of x[i] - x[i - 1] over the last k rows |
| ``slot:d`` | mean of x at the target's slot on the last d days - x[o] |
| ``sin:k``, ``cos:k`` | k-th harmonic of the target's slot of the day |
| ``weekend``, ``weekend_sin:k``, ``weekend_cos:k`` | 1 on Saturday and Sunday, and its products with the harmonics |
| ``weekday:i`` | 1 if the target's day is i (Monday is 0) |
| ``exog:NAME`` | exogenous column at o |
| ``exog_change:NAME:k`` | the column at o minus the column at o - k |
| ``known:NAME`` | a column that is known ahead (holiday, daylight), at t |
| ``hidden:k`` | unit k of a frozen network's last hidden layer, for the window that ends at o |

No feature reads a load after the origin. Where a record does not reach back far enough, a lag of d
days becomes the longest lag of whole days that it has, and at least the origin itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.runtime import GraphError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class UnknownFeatureError(GraphError, ValueError):
    """An error: a feature name that has no definition, or arguments that do not fit it."""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A device's record on a uniform grid."""

    values: Floats  # scaled load, finite, shape ``(T,)``: (reading - shift) / scale of the device
    slots: Ints  # slot of the day of every row, 0 … ``day`` - 1, local time, shape ``(T + h,)``
    weekdays: Ints  # day of the week of every row, Monday is 0, shape ``(T + h,)``
    day: int
    # measured columns by name, each of shape ``(T,)``
    exogenous: Mapping[str, Floats] = field(default_factory=dict)
    # columns known ahead by name, each of shape ``(T + h,)``
    known: Mapping[str, Floats] = field(default_factory=dict)
    # a network's last hidden layer, a row for each origin, shape ``(n, F)``; empty without a
    # network
    hidden: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def columns(record: LoadRecord, names: Sequence[str], origins: Ints, step: int) -> Floats:
    """Return the named features for a target ``step`` rows after each origin.

    Args:
        record: The device's record.
        names: Feature names, as in the table of this module.
        origins: Row numbers of the origins, shape ``(n,)``.
        step: Rows from origin to target, at least 1.

    Returns:
        Features before standardisation, shape ``(n, len(names))``.

    >>> clock = np.arange(7, dtype=np.int64)
    >>> record = LoadRecord(np.array([0., 1, 4, 9, 16, 25]), clock % 2, clock // 2, day=2)
    >>> names = ["last", "change:1", "day:1:0", "moved:1", "mean:2", "weekday:2"]
    >>> columns(record, names, np.array([4]), 1).tolist()
    [[16.0, -7.0, -7.0, 5.0, -3.5, 1.0]]
    >>> columns(record, ["lags"], np.array([4]), 1)
    Traceback (most recent call last):
    edge_sdk.extensions.analytic.features.UnknownFeatureError: feature 'lags': unknown kind; known: change, ...
    """
    at = _Place(record, origins, origins + step)
    return np.stack([_column(at, name) for name in names], axis=1)


def standard_names(
    day: int, *, lookback: int = 12, around: int = 2, days: Sequence[int] = (1, 2, 7)
) -> list[str]:
    """Return the features that the product uses unless a bundle names others.

    Args:
        lookback: Rows of the window, at least 1.
        around: How many rows before and after the target's time each day's lags reach.
        days: Which days before the target are read.

    >>> names = standard_names(24)
    >>> len(names), names[:2], names[-1]
    (53, ['last', 'change:1'], 'weekday:5')
    """
    lags = [f"day:{d}:{j}" for d in days for j in range(-around, around + 1)]
    moved = [f"moved:{d}" for d in days]
    waves = [f"{wave}:{k}" for k in (1, 2, 3, 4) for wave in ("sin", "cos")]
    weekend = [f"weekend_{wave}:{k}" for k in (1, 2) for wave in ("sin", "cos")]
    return [
        "last",
        *(f"change:{k}" for k in range(1, lookback)),
        *lags,
        *moved,
        f"mean:{day}",
        f"mean:{7 * day}",
        "slot:7",
        f"spread:{day}",
        *waves,
        "weekend",
        *weekend,
        *(f"weekday:{i}" for i in range(6)),
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    record: LoadRecord
    o: Ints
    t: Ints

    def days_before(self, rows: Ints, days: int) -> Floats:
        """Return the load ``days`` days before each row, never after the origin."""
        day = self.record.day
        back = rows - days * day
        back = np.where(back < 0, back + -(back // day) * day, back)
        return self.record.values[np.clip(back, 0, self.o)]

    def mean_of(self, values: Floats, rows: int) -> Floats:
        """Return the mean of the last ``rows`` values up to each origin."""
        total = np.concatenate([[0.0], np.cumsum(values)])
        low = np.maximum(self.o + 1 - rows, 0)
        return np.asarray((total[self.o + 1] - total[low]) / (self.o + 1 - low))


def _column(at: _Place, name: str) -> Floats:
    kind, *arguments = name.split(":")
    if kind not in KINDS:
        raise UnknownFeatureError(
            f"feature {name!r}: unknown kind; known: {', '.join(sorted(KINDS))}"
        )
    try:
        return np.asarray(KINDS[kind](at, *arguments), np.float64)
    except (TypeError, ValueError, KeyError, IndexError) as wrong:
        raise UnknownFeatureError(f"feature {name!r}: its arguments do not fit: {wrong}") from wrong


def _last(at: _Place) -> Floats:
    return at.record.values[at.o]


def _change(at: _Place, k: str) -> Floats:
    return at.record.values[np.maximum(at.o - int(k), 0)] - _last(at)


def _day(at: _Place, days: str, shift: str) -> Floats:
    return at.days_before(at.t + int(shift), int(days)) - _last(at)


def _moved(at: _Place, days: str) -> Floats:
    return at.days_before(at.t, int(days)) - at.days_before(at.o, int(days))


def _mean(at: _Place, rows: str) -> Floats:
    return at.mean_of(at.record.values, int(rows)) - _last(at)


def _spread(at: _Place, rows: str) -> Floats:
    values = at.record.values
    return at.mean_of(np.abs(np.diff(values, prepend=values[:1])), int(rows))


def _slot(at: _Place, days: str) -> Floats:
    first = max(1, -(-int((at.t - at.o).max(initial=1)) // at.record.day))
    lags = [at.days_before(at.t, d) for d in range(first, max(first, int(days)) + 1)]
    return np.asarray(np.mean(lags, axis=0)) - _last(at)


def _angle(at: _Place, k: str) -> Floats:
    return np.asarray(2.0 * np.pi * int(k) * at.record.slots[at.t] / at.record.day)


def _weekend(at: _Place) -> Floats:
    return np.asarray(at.record.weekdays[at.t] >= 5, np.float64)


def _exog_change(at: _Place, name: str, k: str) -> Floats:
    column = at.record.exogenous[name]
    return column[at.o] - column[np.maximum(at.o - int(k), 0)]


KINDS: Mapping[str, Callable[..., Floats]] = MappingProxyType(
    {
        "last": _last,
        "change": _change,
        "day": _day,
        "moved": _moved,
        "mean": _mean,
        "spread": _spread,
        "slot": _slot,
        "sin": lambda at, k: np.sin(_angle(at, k)),
        "cos": lambda at, k: np.cos(_angle(at, k)),
        "weekend": _weekend,
        "weekend_sin": lambda at, k: _weekend(at) * np.sin(_angle(at, k)),
        "weekend_cos": lambda at, k: _weekend(at) * np.cos(_angle(at, k)),
        "weekday": lambda at, i: at.record.weekdays[at.t] == int(i),
        "exog": lambda at, name: at.record.exogenous[name][at.o],
        "exog_change": _exog_change,
        "known": lambda at, name: at.record.known[name][at.t],
        "hidden": lambda at, k: at.record.hidden[:, int(k)],
    }
)
"""Every kind of feature by its name."""


def reach(names: Sequence[str], day: int) -> int:
    """Return the number of rows up to the origin that the features read for a target a step ahead.

    Raises:
        UnknownFeatureError: A feature whose arguments are no numbers.

    >>> reach(["last", "change:11"], 24), reach(["mean:168"], 24), reach(["day:7:-2"], 24)
    (12, 168, 170)
    """
    return max(_rows(name, day) for name in names)


def _rows(name: str, day: int) -> int:
    kind, *arguments = name.split(":")
    try:
        numbers = [int(one) for one in arguments if one.lstrip("-").isdigit()]
        return _BACK[kind](day, *numbers) if kind in _BACK else 1
    except TypeError as error:
        raise UnknownFeatureError(f"feature {name!r}: its arguments do not fit: {error}") from error


_BACK: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "change": lambda _day, rows: rows + 1,
        "spread": lambda _day, rows: rows + 1,
        "mean": lambda _day, rows: rows,
        "day": lambda day, days, shift: days * day - shift,
        "moved": lambda day, days: days * day + 1,
        "slot": lambda day, days: days * day,
        "exog_change": lambda _day, rows: rows + 1,
    }
)
"""Rows that a kind of feature reads, by its numbers; any other reads the origin alone."""
