"""Test by betting whether more days are lost than a share that the null hypothesis allows.

Each day is won or lost. While a day is lost with probability at most ``null``, whatever happened
before, every bet below has an expected factor of at most one. The
sums of bets that begin anew each day (the e-detector of Shin, Ramdas and Rinaldo 2022,
arXiv:2203.03532, section 2: Shiryaev-Roberts form) therefore reach a bound ``c`` on average after ``c``
days at the earliest. The test may be looked at every day without a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOST: Final = (0.6, 0.7, 0.8, 0.9, 0.97)
"""Probabilities of a lost day that the bets are best for; the evidence is their mean."""
BOUND: Final = 36_500.0
"""Days between two false alarms, on average and at least: a hundred years."""


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The evidence that too many days are lost.

    Attributes:
        sums: For each of ``LOST``, the sum of the bets that began on any day since the last alarm.
    """

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
            is_lost: Whether the day is lost.
            null: Largest probability of a lost day under the null hypothesis, below each of ``LOST``.

        Example:
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
