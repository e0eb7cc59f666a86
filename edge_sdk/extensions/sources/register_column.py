"""Recognise a column of cumulative register values in a record, and read it as differences.

``counter_intervals`` does this for a live meter, one reading at a time; here the whole record is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST_CHANGES: Final = 40
"""Changes from reading to reading that must be known before a register is recognised."""

_LEAST_RISES = 5  # changes upwards of a register that hardly ever moves
_RISES_A_FALL = 30  # at least, where the falls are exchanges
_FEW_FALLS = 2, 0.002  # at most so many, or this share: exchanges of the meter, wrong readings
_SPIKES, _DIPS = 0.1, 0.01  # shares of falls above which no reading is taken for a wrong one
_DIP = 48  # readings after a fall within which a register that returns had a wrong reading
_MANY, _JUMP = (
    100,
    100.0,
)  # other rises, at least, and times the largest of them: an exchange upwards
_NEAR_ZERO = 0.06  # of the value before a restart; the first hour of a day is 0.04 of a level day
_FAR = 14 * 86_400.0  # seconds, at most, over which a register that rested yields zeros
_USUAL_GAP = 1.5  # usual steps between two readings, above which their difference is left out


@dataclass(frozen=True, slots=True, eq=False)
class RegisterDifferences:
    """A register's differences, each at the time of the earlier of its two readings.

    Over a gap in which the register rested, every usual step has a zero.
    """

    times: Floats  # Unix seconds, shape ``(n,)``
    # differences in the register's unit, not a number where one is missing, shape ``(n,)``
    values: Floats
    restarts: int  # restarts at zero, after which a reading is the difference itself
    midnights: int  # of these, those between two readings around local midnight
    # of these, those read at midnight itself: the day before lacks its last difference
    unknown: int
    exchanges: int  # other falls, whose difference is missing
    outliers: int  # single readings off the register's course, left out
    gaps: int  # rises over more than a step and a half, left out
    lost: float  # rises of the register in these gaps
    jumps: tuple[float, ...]  # rises far beyond all others, left out

    def sentences(self) -> Iterator[str]:
        """Return the corrections made beside taking differences, one clause each."""
        if self.restarts and self.midnights >= 0.8 * self.restarts:
            yield f"it restarts at midnight ({self.restarts} times)"
            if self.unknown:
                yield f"{_counted(self.unknown, 'difference')} up to midnight missing"
        elif self.restarts:
            yield f"it restarts at zero ({self.restarts} times)"
        if self.exchanges:
            yield f"{_counted(self.exchanges, 'fall')}, as at an exchange: the difference is missing"
        if self.jumps:
            each = ", ".join(f"{jump:.6g}" for jump in self.jumps)
            yield f"rises far beyond all others, as at an exchange, left out: {each}"
        if self.outliers:
            yield f"{_counted(self.outliers, 'reading')} off its course left out"
        if self.gaps:
            gaps = _counted(self.gaps, "difference")
            yield f"{gaps} over a gap left out ({self.lost:.6g} in all)"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def register_differences(
    times: Floats,
    values: Floats,
    seconds_of_day: Callable[[float], float] = lambda moment: moment % 86_400,
    *,
    is_known: bool = False,
) -> RegisterDifferences | None:
    """Return a column's differences if it is a register; None if it is a level or an energy.

    A register never falls, but for restarts: few exchanges of the meter, or regular restarts at
    zero such as those of the energy of today. It may rest most of the time.

    Args:
        times: Unix seconds, increasing, shape ``(n,)``.
        values: Readings, not a number where one is missing, shape ``(n,)``.
        seconds_of_day: Returns the seconds since local midnight of a moment.

    >>> hours = 3600.0 * np.arange(60)
    >>> found = register_differences(hours, 5.0 + np.arange(60) // 8)
    >>> float(np.nansum(found.values)), float(np.nanmax(found.values))
    (7.0, 1.0)
    >>> register_differences(hours, np.arange(60) % 24 * 1.0).midnights
    2
    >>> register_differences(hours, np.sin(np.arange(60))) is None
    True
    """
    known = np.isfinite(values)
    at, readings = np.asarray(times, np.float64)[known], values[known]
    right = ~_outliers(readings)
    outliers = int((~right).sum())
    at, readings = at[right], readings[right]
    change = np.diff(readings)
    falls = np.flatnonzero(change < 0.0)
    is_restart = _restarts(readings, change, falls)
    few = max(_FEW_FALLS[0], _FEW_FALLS[1] * len(change))
    rises = int((change > 0.0).sum())
    others = len(falls) - int(is_restart.sum())
    is_register = (
        len(change) >= LEAST_CHANGES
        and rises >= max(_LEAST_RISES, _RISES_A_FALL * others)
        and others <= few
    )
    if not (is_register or is_known) or not len(change):
        return None
    midnights, unknown, passed = 0, 0, np.diff(at)
    change[falls] = np.nan
    for fall in falls[is_restart].tolist():
        since = seconds_of_day(float(at[fall + 1]))
        midnights += bool(since < passed[fall])
        unknown += since == 0.0
        if since > 0.0:  # a reading at midnight itself says nothing of the hour before
            change[fall] = readings[fall + 1]
    usual = float(np.median(passed))
    is_gap = (passed > _USUAL_GAP * usual) & (change > 0.0)
    is_jump = _jumps(np.where(is_gap, np.nan, change), int(few))
    jumps = tuple(change[is_jump].tolist())
    change[is_jump] = np.nan
    lost = float(change[is_gap].sum())
    change[is_gap] = np.nan
    # a register that rested over a gap says that nothing flowed in any of its steps
    has_rested = (change == 0.0) & (passed <= _FAR)
    steps = np.where(has_rested, np.maximum(1, np.rint(passed / usual)), 1).astype(np.intp)
    starts = np.repeat(np.cumsum(steps) - steps, steps)
    begin = np.repeat(at[:-1], steps) + usual * (np.arange(len(starts)) - starts)
    counts = int(is_restart.sum()), midnights, unknown, others, outliers, int(is_gap.sum())
    return RegisterDifferences(begin, np.repeat(change, steps), *counts, lost, jumps)


def _jumps(change: Floats, few: int) -> Bools:
    """Return which rises are few, and each of them far beyond every other of many."""
    rises = np.sort(change[change > 0.0])[::-1]
    far = [k for k in range(min(few, len(rises) - _MANY)) if rises[k] > _JUMP * rises[k + 1]]
    least = rises[far[-1]] if far else np.inf
    return np.asarray(change >= least)


def _restarts(values: Floats, change: Floats, falls: NDArray[np.intp]) -> Bools:
    """Return which falls are regular restarts at zero; none of them if they are not regular.

    A load falls to zero as well, but rises as often as it falls; a register rises many times between
    two restarts, by a small part of what it has reached.
    """
    none = np.zeros(len(falls), np.bool_)
    rises = change[change > 0.0]
    to_zero = values[falls + 1] <= _NEAR_ZERO * values[falls]
    if int(to_zero.sum()) < 2 or to_zero.mean() < 0.9 or len(rises) < 3 * len(falls):
        return none
    reached = float(np.median(values[falls]))
    return to_zero if reached >= 3.0 * float(np.median(rises)) else none


def _outliers(values: Floats) -> Bools:
    wrong = np.zeros(len(values), np.bool_)
    change = np.diff(values)
    falls = np.flatnonzero(change < 0.0)
    if len(falls) > max(_FEW_FALLS[0], _SPIKES * len(values)):
        return wrong
    has_dips = len(falls) <= max(_FEW_FALLS[0], _DIPS * len(values))
    for fall in falls.tolist():
        if fall and values[fall + 1] >= values[fall - 1] > 0.0:
            wrong[fall] = True
        if wrong[fall] or not has_dips:
            continue
        depth = -change[fall]
        after = slice(fall + 1, fall + 1 + _DIP)
        back = (change[after] >= 0.9 * depth) & (values[fall + 2 :][:_DIP] >= values[fall])
        if back.any():
            wrong[fall + 1 : fall + 2 + int(back.argmax())] = True
    return wrong
