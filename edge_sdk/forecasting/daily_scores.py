"""Score the served forecast, the fleet's model and the seasonal naive forecast, day by day.

Only values that no model had learned when it forecast them are scored. A day's error is divided by that
of the naive forecast on the same values, which removes most of the season.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.wire.contract.method import Array

LONGEST: Final = 120
"""Number of newest days that are kept."""
_SUMS, _COUNTS = 3, 3


@dataclass(frozen=True, slots=True, eq=False)
class DailyScores:
    """Errors of the median forecasts, and how often the interval missed, by day.

    Attributes:
        days: Numbers of the days since 1970, rising, ``(n,)``.
        sums: Sums of the absolute errors of the served forecast, the fleet's model and the naive
            forecast, ``(n, 3)``.
        counts: Number of values, of those below the lowest served quantile, and of those above the
            highest, ``(n, 3)``.
    """

    days: Ints
    sums: Floats
    counts: Ints

    @classmethod
    def empty(cls) -> DailyScores:
        """Return scores without a day."""
        return cls(np.zeros(0, np.int64), np.zeros((0, _SUMS)), np.zeros((0, _COUNTS), np.int64))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> DailyScores:
        """Rebuild from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
            ValueError: The arrays do not fit each other, or no scores have such values.
        """
        days, sums, counts = arrays["days"], arrays["sums"], arrays["counts"]
        if days.ndim != 1 or sums.shape != (len(days), _SUMS) or counts.shape != sums.shape:
            raise ValueError("daily scores: the arrays do not fit each other")
        if {days.dtype.kind, counts.dtype.kind} != {"i"} or sums.dtype.kind != "f":
            raise ValueError("daily scores: an array is of another type")
        if (np.diff(days) <= 0).any() or (counts < 0).any() or not np.isfinite(sums).all():
            raise ValueError("daily scores: days fall, or a count or sum has no such value")
        if (sums < 0.0).any():
            raise ValueError("daily scores: a sum of absolute errors is below 0")
        return cls(days[-LONGEST:], sums[-LONGEST:], counts[-LONGEST:])

    def arrays(self) -> dict[str, Array]:
        """Return the scores as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"days": self.days, "sums": self.sums, "counts": self.counts}

    def extended(
        self, served: Floats, fleet: Floats, naive: Floats, truth: Floats, days: Ints
    ) -> DailyScores:
        """Add the errors of forecasts; a value counts where all three forecast it.

        Args:
            served: Quantiles that were served, ``(n, horizon, levels)``, the median in the middle.
            fleet: Quantiles of the fleet's model, of the same shape.
            naive: Seasonal naive forecasts, ``(n, horizon)``.
            truth: Observed values, ``(n, horizon)``; NaN where none counts.
            days: Day of every value, ``(n, horizon)``.

        Example:
            >>> truth, naive = np.array([[1.0], [2.0], [2.0]]), np.array([[2.0], [0.0], [np.nan]])
            >>> fan = np.array([0.0, 0.5, 1.5])[None, None] + np.zeros((3, 1, 1))
            >>> found = DailyScores.empty().extended(fan, fan, naive, truth, np.full((3, 1), 7))
            >>> found.days.tolist(), found.sums.tolist(), found.counts.tolist()
            ([7], [[2.0, 2.0, 3.0]], [[2, 0, 1]])
        """
        middle = served.shape[2] // 2
        errors = np.abs(np.stack([served[:, :, middle], fleet[:, :, middle], naive]) - truth)
        known = np.isfinite(errors).all(axis=0) & np.isfinite(served).all(axis=2)
        scores = self
        for day in np.unique(days[known]).tolist():
            here = known & (days == day)
            below, above = truth < served[:, :, 0], truth > served[:, :, -1]
            counts = [here.sum(), (here & below).sum(), (here & above).sum()]
            scores = scores._with_day(day, errors[:, here].sum(axis=1), np.array(counts))
        return scores

    def ratio(
        self, days: int = 7, *, of_fleet: bool = False, before: int | None = None
    ) -> float | None:
        """Return the error over the newest scored days as a multiple of the naive one; None if unknown.

        Args:
            days: Number of days.
            of_fleet: The fleet's model instead of the served forecast.
            before: Day before which the days are; unset: the newest ones.
        """
        some = self.sums if before is None else self.sums[self.days < before]
        sums = some[-days:].sum(axis=0)
        return float(sums[int(of_fleet)] / sums[2]) if sums[2] > 0.0 else None

    def misses(self, days: int = 28) -> tuple[float, float] | None:
        """Return the shares of values below and above the interval; None without values."""
        values, below, above = self.counts[-days:].sum(axis=0).tolist()
        return (below / values, above / values) if values else None

    def _with_day(self, day: int, sums: Floats, counts: Ints) -> DailyScores:
        at = int(np.searchsorted(self.days, day))
        if at < len(self.days) and self.days[at] == day:
            total, number = self.sums.copy(), self.counts.copy()
            total[at] += sums
            number[at] += counts
            return DailyScores(self.days, total, number)
        days = np.insert(self.days, at, day)
        total = np.insert(self.sums, at, sums, axis=0)
        number = np.insert(self.counts, at, counts, axis=0)
        return DailyScores(days[-LONGEST:], total[-LONGEST:], number[-LONGEST:])
