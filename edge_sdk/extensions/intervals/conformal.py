"""Calibrate prediction intervals online: move their ends until the intended share is missed.

A model learns quantiles of the past. Where consumption grows, or a fleet's model is used at a new
site, its interval misses more readings than intended. So each end of the interval is moved outwards
by a multiple of the interval's own width, one multiple for every step ahead and either side, and
after every reading that multiple is corrected: up by ``gain (1 - m)`` after a miss, down by ``gain
m`` otherwise, where ``m`` is the intended share of misses. The only other state is the set of
intervals whose readings are still to come: some hundred bytes. For any sequence of ``n`` readings,
at most a share ``m + moved / (gain n)`` misses an end that is finally moved by ``moved``: the bound
holds under drift and without assumptions (quantile tracking: Angelopoulos, Candes and Tibshirani
2023, arXiv:2307.16895, section 2.1, on the one-sided scores of conformalised quantile regression:
Romano, Patterson and Candes 2019, arXiv:1905.03222, theorem 2).

Misses below and above are counted separately. Where most readings are zero, an interval from zero
upwards covers them all, and its coverage is not informative about the rest; nor do few misses then
show that an interval is too wide. So no end is moved inwards of the model's own quantile: on
chargers, that increased the misses in the hours of use, and made the quantile score worse than
without any calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.protocol.contract.method import Array

REACH = (0.0, 100.0)
"""Bounds of an end's shift in widths: never inwards, and outwards without practical limit."""

EARLY = 20.0
"""The first readings move an end further: by ``1 / (EARLY + n)`` after ``n`` of them."""


@dataclass(frozen=True, slots=True)
class CoverageTarget:
    """Intended share of misses on either side, and the step of the calibration."""

    below: float  # share of readings that may lie below the interval
    above: float  # share of readings that may lie above it
    # Approximate number of widths by which a miss moves an end; the first readings move it more
    gain: float = 0.01
    least: float = -np.inf  # lower bound of all values
    # smallest width that an interval counts as, in the series' unit: an interval of zero width
    # could not be moved
    narrowest: float = 1e-6

    def __post_init__(self) -> None:
        if not (0.0 < self.below < 0.5 and 0.0 < self.above < 0.5):
            raise ValueError("miss rates on either side: expected above 0 and below 0.5")
        if not (self.gain > 0.0 and self.narrowest > 0.0):
            raise ValueError("step size and narrowest width: expected above 0")

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
        """Take the outer levels of a model, or half of the remainder of a coverage on either side.

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
        return 1.0 - self.below - self.above

    @property
    def misses(self) -> Floats:
        """Return ``(below, above)``."""
        return np.array([self.below, self.above])


@dataclass(frozen=True, slots=True, eq=False)
class ConformalCalibration:
    """State of the calibration: offsets of the ends, and the intervals without readings yet."""

    # widths by which the lower end is moved down and the upper one up, ``(horizon, 2)``
    moved: Floats
    upto: int  # number of the newest row processed: Unix seconds over the step; -1 for none
    rows: Ints  # numbers of the rows at which the waiting intervals were predicted, ``(k,)``
    ends: NDArray[np.float32]  # those intervals, as served, ``(k, horizon, 2)``
    compared: Ints  # readings compared with an interval so far, for each step ahead, ``(horizon,)``
    missed: Ints  # number of them below and above, ``(horizon, 2)``

    @classmethod
    def new(cls, horizon: int) -> ConformalCalibration:
        """Start with the interval as the model predicts it."""
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
        return len(self.moved)

    @property
    def tried(self) -> int:
        return int(self.compared.max(initial=0))

    @property
    def misses(self) -> tuple[float, float]:
        """Return the shares of readings below and above the intervals; NaN before the first."""
        count = int(self.compared.sum())
        below, above = self.missed.sum(axis=0) / count if count else (np.nan, np.nan)
        return float(below), float(above)

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {
            "moved": self.moved,
            "upto": np.array(self.upto),
            "rows": self.rows,
            "ends": self.ends,
            "told": self.compared,
            "missed": self.missed,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> ConformalCalibration:
        """Rebuild from the result of ``arrays``."""
        others = {name: arrays[name] for name in ("moved", "rows", "ends", "missed")}
        return cls(upto=int(arrays["upto"]), compared=arrays["told"], **others)

    def served(self, predicted: Floats, aim: CoverageTarget) -> Floats:
        """Move the ends of intervals.

        Args:
            predicted: Quantiles in order, ``(..., horizon, levels)``.
            aim: Lower bound, and narrowest width.

        Returns:
            Lower and upper ends, ``(..., horizon, 2)``.
        """
        low, high = predicted[..., 0], predicted[..., -1]
        width = np.maximum(high - low, aim.narrowest)
        ends = low - self.moved[:, 0] * width, high + self.moved[:, 1] * width
        return np.maximum(np.stack(ends, axis=-1), aim.least)

    def after(
        self, row: int, value: float, predicted: Floats | None, aim: CoverageTarget
    ) -> ConformalCalibration:
        """Process one row: score older intervals with its reading, then store its own interval.

        Args:
            row: The row's number; greater than that of any before it.
            value: Its reading; NaN where there was none.
            predicted: Quantiles predicted from it, ``(horizon, levels)``; None where no window was
                complete.
            aim: Intended shares of misses.
        """
        settled = self._settled(row, value, aim)
        keep = settled.rows + self.horizon > row
        rows, ends = settled.rows[keep], settled.ends[keep]
        if predicted is not None and np.isfinite(predicted).all():
            rows = np.append(rows, np.int64(row))
            served = settled.served(predicted, aim).astype(np.float32)
            ends = np.concatenate([ends, served[None]])
        return replace(settled, upto=row, rows=rows, ends=ends)

    def waiting(self, predicted: Floats, aim: CoverageTarget) -> ConformalCalibration:
        """Add the newest row's interval if it was predicted late; keep one that waits already.

        Args:
            predicted: Quantiles, ``(horizon, levels)``.
            aim: Intended shares of misses.

        >>> predicted, aim = np.array([[0.0, 0.5, 1.0]]), CoverageTarget(0.1, 0.1)
        >>> one = ConformalCalibration.new(1).after(7, 0.3, None, aim).waiting(predicted, aim)
        >>> one.rows.tolist(), one.waiting(predicted + 1, aim).ends.tolist()
        ([7], [[[0.0, 1.0]]])
        """
        if self.upto in self.rows or not np.isfinite(predicted).all():
            return self
        ends = self.served(predicted, aim).astype(np.float32)[None]
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
        gain = np.maximum(aim.gain, 1.0 / (EARLY + self.compared[steps]))[:, None]
        moved, compared, count = self.moved.copy(), self.compared.copy(), self.missed.copy()
        moved[steps] = np.clip(moved[steps] + gain * (missed - aim.misses), *REACH)
        compared[steps] += 1
        count[steps] += missed
        return replace(self, moved=moved, compared=compared, missed=count)


def rolled(
    calibration: ConformalCalibration,
    rows: Ints,
    values: Floats,
    predicted: Floats,
    aim: CoverageTarget,
) -> tuple[ConformalCalibration, Floats]:
    """Process rows in order, as a device does while they arrive.

    Args:
        calibration: State before the first of them.
        rows: Their numbers, rising, ``(n,)``.
        values: Their readings, NaN where there was none, ``(n,)``.
        predicted: Quantiles predicted from each, ``(n, horizon, levels)``; NaN where no window was
            complete.
        aim: Intended shares of misses.

    Returns:
        The calibration after the last row, and the interval as it was served from each row: before
        any of its readings was seen, ``(n, horizon, 2)``; NaN where none was predicted.

    Example:
        A model predicts 0 to 1 for readings that have grown to 3: after twenty misses of twenty,
        the upper end is at the readings, and it stays there.

        >>> rows, values = np.arange(400), np.full(400, 3.0)
        >>> predicted = np.tile(np.array([0.0, 0.5, 1.0]), (400, 1, 1))
        >>> aim = CoverageTarget(0.1, 0.1, gain=0.05)
        >>> after, ends = rolled(ConformalCalibration.new(1), rows, values, predicted, aim)
        >>> ends[0].tolist(), bool((abs(ends[200:, 0, 1] - 3.0) < 0.1).all())
        ([[0.0, 1.0]], True)
    """
    ends = np.full((len(rows), calibration.horizon, 2), np.nan)
    for at, row in enumerate(rows.tolist()):
        known = predicted[at] if np.isfinite(predicted[at]).all() else None
        calibration = calibration.after(row, float(values[at]), known, aim)
        if known is not None:
            ends[at] = calibration.ends[-1]
    return calibration, ends
