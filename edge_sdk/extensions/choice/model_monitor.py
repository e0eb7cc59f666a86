"""Score the served forecast day by day, and decide when it has become worse than naive, or than it was.

Only values that no model had learned when it forecast them are scored. A day's error is divided by that
of the naive forecast on the same values, which removes most of the season.

There are three alarms. Two are tests by betting, which hold at any look: one on days that are lost to the
naive forecast, one on days whose error, as a multiple of the naive one, is above nineteen in twenty of those
of the device's own earlier days. The fast alarm is an error of more than twice the naive one, and of more than
twice the device's own usual error, on two days in succession: in a holiday the naive error may become small.
An alarm asks the device to fit its models and to choose again, by the days of the alarm and later ones
alone: earlier days tell of a model or of readings that are no longer there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.choice.combination import LEAST, HeldBackErrors
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.protocol.contract.method import Array

LONGEST: Final = 120
"""Number of newest days that are kept."""
_SUMS, _COUNTS = 3, 3


@dataclass(frozen=True, slots=True, eq=False)
class DailyScores:
    """Errors of the median forecasts and misses of the interval, by day."""

    days: Ints  # numbers of the days since 1970, rising, ``(n,)``
    # sums of the absolute errors of the served forecast, the fleet's model and the naive forecast,
    # ``(n, 3)``
    sums: Floats
    # number of values, of those below the lowest served quantile, and of those above the highest,
    # ``(n, 3)``
    counts: Ints

    @classmethod
    def empty(cls) -> DailyScores:
        """Return scores without a day."""
        return cls(np.zeros(0, np.int64), np.zeros((0, _SUMS)), np.zeros((0, _COUNTS), np.int64))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> DailyScores:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: The arrays do not fit each other, or no scores have such values.
        """
        days, sums, counts = arrays["days"], arrays["sums"], arrays["counts"]
        if days.ndim != 1 or sums.shape != (len(days), _SUMS) or counts.shape != sums.shape:
            raise ValueError("daily scores: the arrays do not fit each other")
        if {days.dtype.kind, counts.dtype.kind} != {"i"} or sums.dtype.kind != "f":
            raise ValueError("daily scores: an array is of another type")
        if (np.diff(days) <= 0).any() or (counts < 0).any() or not np.isfinite(sums).all():
            raise ValueError(
                "daily scores: expected rising days, and counts and sums within their range"
            )
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


MARGIN: Final = 0.05
"""A day is lost if the served error exceeds the naive one by more than this share."""
GROSS: Final = 2.0
"""Multiple of the naive error and of the usual one that is an alarm on two days in succession."""
USUAL: Final = (7, 28)
"""Least and largest number of earlier days for the median error, the usual one."""
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
LOST: Final = (0.6, 0.7, 0.8, 0.9, 0.97)
"""Alternative hypotheses of the bets: probabilities of a lost day; the evidence is the mean over them."""
BOUND: Final = 36_500.0
"""Days between two false alarms, on average and at least: a hundred years."""


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The evidence that more days are lost than a share that the null hypothesis allows.

    Each day is won or lost. While a day is lost with probability at most ``null``, whatever happened
    before, every bet has an expected factor of at most one. The sums of bets that begin anew each day
    (the e-detector of Shin, Ramdas and Rinaldo 2022, arXiv:2203.03532, section 2: Shiryaev-Roberts
    form) therefore reach a bound ``c`` on average after ``c`` days at the earliest. The test may be
    looked at every day without a correction.
    """

    # for each of ``LOST``, the sum of the bets that began on any day since the last alarm
    sums: tuple[float, ...] = (0.0,) * len(LOST)

    @classmethod
    def of(cls, sums: Sequence[float]) -> SequentialTest:
        """Rebuild from saved sums.

        Raises:
            ValueError: Another number of them, or one that is negative or not finite.
        """
        found = tuple(float(one) for one in sums)
        if len(found) != len(LOST) or not all(0.0 <= one < float("inf") for one in found):
            raise ValueError(f"sums of bets {found} are not {len(LOST)} finite numbers from 0 on")
        return cls(found)

    @property
    def evidence(self) -> float:
        """Return the mean sum as a share of ``BOUND``; an alarm is due from 1 on."""
        return sum(self.sums) / len(LOST) / BOUND

    def after(self, *, is_lost: bool, null: float = 0.5) -> SequentialTest:
        """Return the test after one more day.

        Args:
            null: Largest probability of a lost day under the null hypothesis, below each of ``LOST``.

        >>> test = SequentialTest()
        >>> for _ in range(16): test = test.after(is_lost=True)
        >>> test.evidence < 1.0 < test.after(is_lost=True).evidence
        True
        >>> round(test.after(is_lost=False).evidence / test.evidence, 2)
        0.11
        """
        return SequentialTest(
            tuple(
                (one + 1.0) * (p / null if is_lost else (1.0 - p) / (1.0 - null))
                for one, p in zip(self.sums, LOST, strict=True)
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class ModelMonitor:
    """The daily scores of a device's forecasts, and the alarms derived from them."""

    scores: DailyScores = field(default_factory=DailyScores.empty)  # errors by day
    test: SequentialTest = field(default_factory=SequentialTest)  # evidence since the last alarm
    tested: int = -1  # newest day that has been tested; -1 before the first
    lost: int = 0  # number of tested days that were lost
    alarms: int = 0  # number of alarms so far
    alarmed_row: int = -1  # number of the newest row at the last alarm; -1 before the first
    since: int = -1  # first day of the last alarm; -1 before the first
    # evidence since the last alarm that too many days are unusual
    unusual: SequentialTest = field(default_factory=SequentialTest)

    def extended(
        self, served: Floats, fleet: Floats, naive: Floats, truth: Floats, days: Ints
    ) -> ModelMonitor:
        """Score forecasts; arguments are those of ``DailyScores.extended``."""
        return replace(self, scores=self.scores.extended(served, fleet, naive, truth, days))

    def judged(self, today: int, row: int) -> ModelMonitor:
        """Test every complete day that has not been tested.

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
        """Rebuild from the result of ``leaves``; older leaves lack the test of unusual days.

        Raises:
            KeyError: A leaf is missing.
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
        quantile: Quantile of the ratios of the earlier days.
        most: Largest number of earlier days.

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
    if at == 0 or scores.days[at] - scores.days[at - 1] != 1:
        return False
    errors = scores.sums[: at + 1] / np.maximum(scores.counts[: at + 1, :1], 1)
    served, naive = errors[-2:, 0], errors[-2:, 2]
    before = errors[max(0, at - 1 - USUAL[1]) : at - 1, 0]
    usual = float(np.median(before)) if len(before) >= USUAL[0] else 0.0
    return bool((naive > 0.0).all() and (served > GROSS * np.maximum(naive, usual)).all())
