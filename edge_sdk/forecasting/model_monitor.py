"""Decide from daily scores when the served forecast has become worse than naive, or than it used to be.

There are three alarms. Two are tests by betting, which hold at any look: one on days that are lost to the
naive forecast, one on days whose error, as a multiple of the naive one, is above nineteen in twenty of those
of the device's own earlier days. The fast alarm is an error of more than twice the naive one, and of more than
twice the device's own usual error, on two days in succession: in a holiday the naive error alone may become
small.
An alarm asks the device to fit its models and to choose again, by the days of the alarm and later ones
alone: earlier days tell of a model or of readings that are no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.combination import LEAST, HeldBackErrors
from edge_sdk.forecasting.daily_scores import DailyScores
from edge_sdk.forecasting.sequential_test import SequentialTest

MARGIN: Final = 0.05
"""A day is lost if the served error exceeds the naive one by more than this share."""
GROSS: Final = 2.0
"""Multiple of the naive error and of the usual one that is an alarm on two days in succession."""
USUAL: Final = (7, 28)
"""Least and largest number of earlier days whose median error is the usual one."""
EARLIER: Final = (28, 92)
"""Least and largest number of earlier days with which a day's ratio to the naive error is compared."""
LAG: Final = 14
"""Days between a day and the newest earlier one, so that a break is not compared with itself."""
UNUSUAL: Final = 0.95
"""Quantile of the earlier ratios above which a day is unusual."""
UNUSUAL_SHARE: Final = 0.2
"""Share of unusual days that the test allows; a twentieth is expected while nothing changes."""
SPANS: Final = (2, 14)
"""Days by which the device chooses again after a fast and after a slow alarm."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelMonitor:
    """The daily scores of a device's forecasts, and what they have shown.

    Attributes:
        scores: Errors by day.
        test: Evidence since the last alarm.
        tested: Newest day that has been tested; -1 before the first.
        lost: Number of tested days that were lost.
        alarms: Number of alarms so far.
        alarmed_row: Number of the newest row at the last alarm; -1 before the first.
        since: First day of the last alarm; -1 before the first.
        unusual: Evidence since the last alarm that too many days are unusual.
    """

    scores: DailyScores = field(default_factory=DailyScores.empty)
    test: SequentialTest = field(default_factory=SequentialTest)
    tested: int = -1
    lost: int = 0
    alarms: int = 0
    alarmed_row: int = -1
    since: int = -1
    unusual: SequentialTest = field(default_factory=SequentialTest)

    def extended(
        self, served: Floats, fleet: Floats, naive: Floats, truth: Floats, days: Ints
    ) -> ModelMonitor:
        """Score forecasts; arguments are those of ``DailyScores.extended``."""
        return replace(self, scores=self.scores.extended(served, fleet, naive, truth, days))

    def judged(self, today: int, row: int) -> ModelMonitor:
        """Test every complete day that has not been tested.

        Args:
            today: Number of the present day, which is not complete.
            row: Number of the newest row.

        Example:
            >>> days, one = np.arange(100, 103), np.ones(3)
            >>> sums, counts = np.stack([2.5 * one, one, one], 1), np.ones((3, 3), np.int64)
            >>> bad = ModelMonitor(DailyScores(days, sums, counts))
            >>> bad.judged(101, 7).alarms, bad.judged(102, 8).alarms, bad.judged(102, 8).alarmed_row
            (0, 1, 8)
        """
        found, scores = self, self.scores
        for at in np.flatnonzero((scores.days > self.tested) & (scores.days < today)).tolist():
            served, _, naive = scores.sums[at].tolist()
            is_lost = served > (1.0 + MARGIN) * naive
            is_second, test = found.test != SequentialTest(), found.test.after(is_lost=is_lost)
            found = replace(
                found, test=test, tested=int(scores.days[at]), lost=found.lost + is_lost
            )
            is_gross = is_second and _is_gross(scores, at)
            unusual = found.unusual
            if (usual := usual_bound(scores, at)) is not None:
                unusual = unusual.after(is_lost=served > usual * naive, null=UNUSUAL_SHARE)
            found = replace(found, unusual=unusual)
            if is_gross or max(test.evidence, unusual.evidence) >= 1.0:
                first = int(scores.days[at]) - SPANS[not is_gross] + 1
                found = replace(
                    found,
                    test=SequentialTest(),
                    unusual=SequentialTest(),
                    alarms=found.alarms + 1,
                    alarmed_row=row,
                    since=first,
                )
        return found

    def comparable(self, table: HeldBackErrors) -> tuple[HeldBackErrors, int]:
        """Return the errors to choose by, and the number of days that a candidate must know.

        These are all errors before the first alarm, and those since its first day afterwards: a
        device need not wait for a week of errors to leave a model that is grossly wrong.

        Example:
            >>> table = HeldBackErrors(np.arange(9), np.ones((9, 1, 10)), np.ones((9, 1), np.int64))
            >>> ModelMonitor().comparable(table)[1], ModelMonitor(since=6).comparable(table)[1]
            (7, 3)
        """
        recent = table.since(self.since)
        if self.since < 0 or not len(recent.days):
            return table, LEAST
        return recent, max(SPANS[0], min(LEAST, len(recent.days)))

    def leaves(self) -> dict[str, Any]:
        """Return the state as leaves, to be saved; ``from_leaves`` is the inverse."""
        return {
            "scores": self.scores.arrays(),
            "sums": list(self.test.sums),
            "unusual": list(self.unusual.sums),
            "tested": self.tested,
            "lost": self.lost,
            "alarms": self.alarms,
            "alarmed_row": self.alarmed_row,
            "since": self.since,
        }

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Any]) -> ModelMonitor:
        """Rebuild from what ``leaves`` returned; older leaves lack the test of unusual days.

        Raises:
            KeyError: A leaf is missing.
            ValueError: A value that no monitor has.
            TypeError: A leaf of another type.
        """
        names = ("tested", "lost", "alarms", "alarmed_row", "since")
        numbers = [leaves[name] for name in names]
        if not all(type(one) is int and -1 <= one < 2**53 for one in numbers):
            raise ValueError(f"{', '.join(names)} are {numbers}")
        scores = DailyScores.from_arrays(leaves["scores"])
        unusual = SequentialTest.of(leaves.get("unusual", SequentialTest().sums))
        tested, lost, alarms, row, since = numbers
        test = SequentialTest.of(leaves["sums"])
        return cls(scores, test, tested, lost, alarms, row, since, unusual)

    def summary(self) -> dict[str, Any]:
        """Return the scores in plain words; ratios are to the error of the naive forecast."""
        scores = self.scores
        ratios = {
            "error relative to naive, 7 days": scores.ratio(7),
            "error relative to naive, 28 days": scores.ratio(28),
            "the fleet's, 28 days": scores.ratio(28, of_fleet=True),
        }
        found = {name: round(one, 4) for name, one in ratios.items() if one is not None}
        if misses := scores.misses():
            below, above = misses
            found |= {"below the interval": round(below, 4), "above it": round(above, 4)}
        return {
            "days": len(scores.days),
            "days lost to naive": self.lost,
            **found,
            "evidence": round(self.test.evidence, 6),
            "evidence of unusual days": round(self.unusual.evidence, 6),
            "alarms": self.alarms,
        }


def usual_bound(
    scores: DailyScores, at: int, quantile: float = UNUSUAL, most: int = EARLIER[1]
) -> float | None:
    """Return the multiple of the naive error above which a day is unusual; None if too few are known.

    Args:
        scores: Errors by day.
        at: Index of the day.
        quantile: Quantile of the ratios of the earlier days.
        most: Largest number of earlier days.

    Example:
        >>> days, naive = np.arange(60), np.ones(60)
        >>> sums = np.stack([np.linspace(0.1, 0.4, 60), naive, naive], 1)
        >>> scores = DailyScores(days, sums, np.ones((60, 3), np.int64))
        >>> usual_bound(scores, 41), round(usual_bound(scores, 42), 4)
        (None, 0.2304)
    """
    served, _, naive = scores.sums[max(0, at - LAG - most) : max(0, at - LAG)].T
    known = naive > 0.0
    if np.count_nonzero(known) < EARLIER[0]:
        return None
    return float(np.quantile(served[known] / naive[known], quantile))


def _is_gross(scores: DailyScores, at: int) -> bool:
    """Return whether a day and the day before it have errors that are grossly too large."""
    if at == 0 or scores.days[at] - scores.days[at - 1] != 1:
        return False
    errors = scores.sums[: at + 1] / np.maximum(scores.counts[: at + 1, :1], 1)
    served, naive = errors[-2:, 0], errors[-2:, 2]
    before = errors[max(0, at - 1 - USUAL[1]) : at - 1, 0]
    usual = float(np.median(before)) if len(before) >= USUAL[0] else 0.0
    return bool((naive > 0.0).all() and (served > GROSS * np.maximum(naive, usual)).all())
