"""Keep the served interval honest: watch which readings miss it, and move its ends until few do.

A model learns quantiles of the past. Where use grows, or a fleet's model meets a site it does not
know, its interval misses more than it says. So each end of the interval is moved outwards by a
multiple of the interval's own width, one multiple for every step ahead and either side, and after
every reading that multiple is corrected: up by ``gain (1 - m)`` after a miss, down by ``gain m``
otherwise, where ``m`` is the share of misses that is aimed at. Nothing else is remembered but the
intervals whose readings are still to come: some hundred bytes. Whatever the readings do, of ``n``
at most a share ``m + moved / (gain n)`` misses an end that is moved by ``moved`` in the end: no
drift escapes, and nothing is assumed (quantile tracking: Angelopoulos, Candes and Tibshirani 2023,
arXiv:2307.16895, section 2.1, on the one-sided scores of conformalised quantile regression: Romano,
Patterson and Candes 2019, arXiv:1905.03222, theorem 2).

Below and above are counted apart. Where most readings are zero, an interval from zero upwards
covers them all, and its coverage says nothing about the rest; nor are few misses then a sign of an
interval that is too wide. So no end is moved inwards of where the model tells it: on chargers, that
made the hours in use miss more, and the quantile score worse than without any calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.wire.contract.method import Array

REACH = (0.0, 100.0)
"""In widths: never inwards, and outwards far enough for anything."""

EARLY = 20.0
"""The first readings move an end by more: by ``1 / (EARLY + n)`` after ``n`` of them."""


@dataclass(frozen=True, slots=True)
class CoverageTarget:
    """What the interval is held to.

    Attributes:
        below: Share of readings that may lie below it.
        above: Share that may lie above it.
        gain: Widths by which a miss moves an end, near enough; the first readings move it more.
        least: What no value lies below.
        narrowest: Width that an interval counts as at least, in the series' unit: an interval of
            no width could not be moved.
    """

    below: float
    above: float
    gain: float = 0.01
    least: float = -np.inf
    narrowest: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what cannot be aimed at."""
        if not (0.0 < self.below < 0.5 and 0.0 < self.above < 0.5):
            raise ValueError("misses on either side: expected more than 0 and less than a half")
        if not (self.gain > 0.0 and self.narrowest > 0.0):
            raise ValueError("gain and narrowest width: expected more than 0")

    @classmethod
    def of(
        cls,
        levels: Sequence[float],
        coverage: float | None = None,
        *,
        gain: float = 0.01,
        least: float = -np.inf,
        narrowest: float = 1e-6,
    ) -> CoverageTarget:
        """Take the outer levels of a model, or half of what a coverage leaves over on either side.

        >>> CoverageTarget.of((0.05, 0.5, 0.8)).below, round(CoverageTarget.of((0.05, 0.5, 0.8)).above, 6)
        (0.05, 0.2)
        >>> round(CoverageTarget.of((0.1, 0.5, 0.9), coverage=0.9).above, 6)
        0.05
        """
        below, above = levels[0], 1.0 - levels[-1]
        if coverage is not None:
            below = above = (1.0 - coverage) / 2
        return cls(below, above, gain, least, narrowest)

    @property
    def coverage(self) -> float:
        """The share of readings that shall lie inside."""
        return 1.0 - self.below - self.above

    @property
    def misses(self) -> Floats:
        """``(below, above)``."""
        return np.array([self.below, self.above])


@dataclass(frozen=True, slots=True, eq=False)
class ConformalCalibration:
    """How far the ends are moved, and the intervals that wait for their readings.

    Attributes:
        moved: Widths by which the lower end is moved down and the upper one up, ``(horizon, 2)``.
        upto: Number of the newest row that was taken in: Unix seconds over the step; -1 for none.
        rows: Numbers of the rows that the waiting intervals were told from, ``(k,)``.
        ends: Those intervals, as served, ``(k, horizon, 2)``.
        told: Readings held against an interval so far, for each step ahead, ``(horizon,)``.
        missed: How many of them lay below and above, ``(horizon, 2)``.
    """

    moved: Floats
    upto: int
    rows: Ints
    ends: NDArray[np.float32]
    told: Ints
    missed: Ints

    @classmethod
    def new(cls, horizon: int) -> ConformalCalibration:
        """Begin with the interval as the model tells it."""
        return cls(
            np.zeros((horizon, 2)),
            -1,
            np.zeros(0, np.int64),
            np.zeros((0, horizon, 2), np.float32),
            np.zeros(horizon, np.int64),
            np.zeros((horizon, 2), np.int64),
        )

    @property
    def horizon(self) -> int:
        """Steps that an interval has."""
        return len(self.moved)

    @property
    def tried(self) -> int:
        """Rows whose interval was put to the test."""
        return int(self.told.max(initial=0))

    @property
    def misses(self) -> tuple[float, float]:
        """Shares of readings that lay below and above what was served; NaN before the first."""
        told = int(self.told.sum())
        below, above = self.missed.sum(axis=0) / told if told else (np.nan, np.nan)
        return float(below), float(above)

    def arrays(self) -> dict[str, Array]:
        """Return it as named arrays, to be saved; ``from_arrays`` is the way back."""
        return {
            "moved": self.moved,
            "upto": np.array(self.upto),
            "rows": self.rows,
            "ends": self.ends,
            "told": self.told,
            "missed": self.missed,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ConformalCalibration:
        """Rebuild from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
        """
        others = {name: arrays[name] for name in ("moved", "rows", "ends", "told", "missed")}
        return cls(upto=int(arrays["upto"]), **others)

    def served(self, told: Floats, aim: CoverageTarget) -> Floats:
        """Move the ends of intervals.

        Args:
            told: Quantiles in order, ``(..., horizon, levels)``.
            aim: What is the least, and the narrowest.

        Returns:
            Lower and upper ends, ``(..., horizon, 2)``.
        """
        low, high = told[..., 0], told[..., -1]
        width = np.maximum(high - low, aim.narrowest)
        ends = low - self.moved[:, 0] * width, high + self.moved[:, 1] * width
        return np.maximum(np.stack(ends, axis=-1), aim.least)

    def after(
        self, row: int, value: float, told: Floats | None, aim: CoverageTarget
    ) -> ConformalCalibration:
        """Take one row in: its reading settles older intervals, then its own interval waits.

        Args:
            row: The row's number; greater than that of any before it.
            value: Its reading; NaN where there was none.
            told: Quantiles told from it, ``(horizon, levels)``; None where no window was complete.
            aim: What the interval is held to.
        """
        settled = self._settled(row, value, aim)
        keep = settled.rows + self.horizon > row
        rows, ends = settled.rows[keep], settled.ends[keep]
        if told is not None and np.isfinite(told).all():
            rows = np.append(rows, np.int64(row))
            served = settled.served(told, aim).astype(np.float32)
            ends = np.concatenate([ends, served[None]])
        return replace(settled, upto=row, rows=rows, ends=ends)

    def waiting(self, told: Floats, aim: CoverageTarget) -> ConformalCalibration:
        """Let an interval wait that was told late from the newest row; one that waits stays.

        Args:
            told: Quantiles, ``(horizon, levels)``.
            aim: What the interval is held to.

        >>> told, aim = np.array([[0.0, 0.5, 1.0]]), CoverageTarget(0.1, 0.1)
        >>> one = ConformalCalibration.new(1).after(7, 0.3, None, aim).waiting(told, aim)
        >>> one.rows.tolist(), one.waiting(told + 1, aim).ends.tolist()
        ([7], [[[0.0, 1.0]]])
        """
        if self.upto in self.rows or not np.isfinite(told).all():
            return self
        ends = self.served(told, aim).astype(np.float32)[None]
        rows = np.append(self.rows, np.int64(self.upto))
        return replace(self, rows=rows, ends=np.concatenate([self.ends, ends]))

    def _settled(self, row: int, value: float, aim: CoverageTarget) -> ConformalCalibration:
        ahead = row - self.rows - 1
        due = np.flatnonzero((ahead >= 0) & (ahead < self.horizon))
        if not (np.isfinite(value) and len(due)):
            return self
        steps = ahead[due]  # each step ahead at most once: rows differ
        ends = self.ends[due, steps]
        missed = np.stack([value < ends[:, 0], value > ends[:, 1]], axis=1)
        gain = np.maximum(aim.gain, 1.0 / (EARLY + self.told[steps]))[:, None]
        moved, told, count = self.moved.copy(), self.told.copy(), self.missed.copy()
        moved[steps] = np.clip(moved[steps] + gain * (missed - aim.misses), *REACH)
        told[steps] += 1
        count[steps] += missed
        return replace(self, moved=moved, told=told, missed=count)


def rolled(
    calibration: ConformalCalibration, rows: Ints, values: Floats, told: Floats, aim: CoverageTarget
) -> tuple[ConformalCalibration, Floats]:
    """Go through rows in order, as a device does while they come.

    Args:
        calibration: As it was before the first of them.
        rows: Their numbers, rising, ``(n,)``.
        values: Their readings, NaN where there was none, ``(n,)``.
        told: Quantiles told from each, ``(n, horizon, levels)``; NaN where no window was complete.
        aim: What the interval is held to.

    Returns:
        The calibration after the last row, and the interval as it was served from each row:
        before any of its readings was seen, ``(n, horizon, 2)``; NaN where none was told.

    Example:
        A model that says 0 to 1 of readings that have grown to 3: after twenty misses of twenty,
        the upper end is where they are, and it does not run away from there.

        >>> rows, values = np.arange(400), np.full(400, 3.0)
        >>> told = np.tile(np.array([0.0, 0.5, 1.0]), (400, 1, 1))
        >>> after, ends = rolled(ConformalCalibration.new(1), rows, values, told, CoverageTarget(0.1, 0.1, gain=0.05))
        >>> ends[0].tolist(), bool((abs(ends[200:, 0, 1] - 3.0) < 0.1).all())
        ([[0.0, 1.0]], True)
    """
    ends = np.full((len(rows), calibration.horizon, 2), np.nan)
    for at, row in enumerate(rows.tolist()):
        known = told[at] if np.isfinite(told[at]).all() else None
        calibration = calibration.after(row, float(values[at]), known, aim)
        if known is not None:
            ends[at] = calibration.ends[-1]
    return calibration, ends
