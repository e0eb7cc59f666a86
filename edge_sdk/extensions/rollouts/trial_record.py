"""Record, day by day, whether a new version of the bundle forecasts worse than the served one.

Both versions forecast the same readings, and values count that neither had learned. The record holds sums of
absolute errors; a report of it holds one word for each day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.protocol.contract.method import Array

LONGEST: Final = 40
"""Number of newest days that are kept."""
GROSS: Final = 2.0
"""Multiple of the served error that sends a device back on two days in succession."""
_NO_RESULT, _KEPT, _LOST = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class TrialRecord:
    """Errors of the served and of the new version, by day."""

    days: Ints  # numbers of the days since 1970, rising, ``(n,)``
    sums: Floats  # sums of the absolute errors of the served and of the new version, ``(n, 2)``

    @classmethod
    def empty(cls) -> TrialRecord:
        """Return a record without a day."""
        return cls(np.zeros(0, np.int64), np.zeros((0, 2)))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> TrialRecord:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: The arrays do not fit each other, or no record has such values.
        """
        days, sums = arrays["days"], arrays["sums"]
        if days.ndim != 1 or sums.shape != (len(days), 2):
            raise ValueError("trial record: the arrays do not fit each other")
        if days.dtype.kind != "i" or sums.dtype.kind != "f":
            raise ValueError("trial record: an array is of another type")
        if (np.diff(days) <= 0).any() or not np.isfinite(sums).all() or (sums < 0.0).any():
            raise ValueError("trial record: expected rising days, and sums within their counts")
        return cls(days[-LONGEST:], sums[-LONGEST:])

    def arrays(self) -> dict[str, Array]:
        """Return the record as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"days": self.days, "sums": self.sums}

    def extended(self, served: Floats, new: Floats, truth: Floats, days: Ints) -> TrialRecord:
        """Add the errors of forecasts; a value counts where both versions forecast it.

        Args:
            served: Median forecasts of the served version, ``(n, horizon)``.
            new: Median forecasts of the new version, of the same shape. One that is not finite
                where the served one is counts as ten times the served error and the truth.
            truth: Observed values, ``(n, horizon)``; NaN where none counts.
            days: Day of every value, ``(n, horizon)``.

        >>> one = np.array([[1.0, 2.0]])
        >>> found = TrialRecord.empty().extended(one, one + 1.0, one + 0.5, np.array([[7, 8]]))
        >>> found.days.tolist(), found.sums.tolist()
        ([7, 8], [[0.5, 0.5], [0.5, 0.5]])
        """
        known = np.isfinite(served) & np.isfinite(truth)
        error = np.abs(served - truth)
        other = np.where(np.isfinite(new), np.abs(new - truth), 10.0 * (error + np.abs(truth)))
        record = dict(zip(self.days.tolist(), self.sums.tolist(), strict=True))
        for day in np.unique(days[known]).tolist():
            here = known & (days == day)
            before = record.get(day, [0.0, 0.0])
            record[day] = [before[0] + error[here].sum(), before[1] + other[here].sum()]
        newest = sorted(record)[-LONGEST:]
        sums = np.array([record[day] for day in newest]).reshape(-1, 2)
        return TrialRecord(np.array(newest, np.int64), sums)

    def complete(self, today: int) -> list[int]:
        """Return the days with a result that are over."""
        return [day for day in self.days.tolist() if day < today]

    def is_gross(self, today: int) -> bool:
        """Return whether the new version had more than twice the served error on both of two days.

        The days are the newest complete ones, one after the other: 48 hours.

        >>> record = TrialRecord(np.array([5, 6, 7]), np.array([[1.0, 1.0], [1.0, 2.5], [1.0, 2.1]]))
        >>> record.is_gross(7), record.is_gross(8)
        (False, True)
        """
        done = self.days < today
        days, sums = self.days[done][-2:], self.sums[done][-2:]
        is_adjacent = len(days) == 2 and days[1] - days[0] == 1
        return bool(is_adjacent and (sums[:, 1] > GROSS * sums[:, 0]).all())

    def words(self, today: int, margin: float, number: int = 7) -> tuple[int, ...]:
        """Return the words of the newest complete days, yesterday first: 0 no result, 1 kept, 2 lost.

        Args:
            margin: Share of the served error beyond which a day is lost.

        >>> record = TrialRecord(np.array([5, 6, 8]), np.array([[1.0, 1.01], [1.0, 1.5], [1, 1]]))
        >>> record.words(9, 0.02), record.words(8, 0.02, 3)
        ((1, 0, 2, 1, 0, 0, 0), (0, 2, 1))
        """
        found = dict(zip(self.days.tolist(), self.sums.tolist(), strict=True))
        days = range(today - 1, max(today - 1 - number, -1), -1)
        return tuple(_word(found.get(day), margin) for day in days)


def _word(sums: list[float] | None, margin: float) -> int:
    if sums is None:
        return _NO_RESULT
    served, new = sums
    return _LOST if new > (1.0 + margin) * served else _KEPT
