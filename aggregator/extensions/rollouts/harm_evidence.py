"""Test by betting whether devices lose more than half of their days to a new version.

A device's day is lost if the new version's error exceeds the served one's by more than the margin. For
a share ``p`` the bet multiplies by ``2 p`` for a lost day and by ``2 (1 - p)`` for another: at most 1 in
expectation while, given all earlier days, a device's day is lost with probability at most one half
and the devices of one day are independent (Waudby-Smith and Ramdas 2024, arXiv:2010.09686). The
evidence is a mean of such products over shares and over first days, whose weights sum to 1, so that
days without harm before a slow fault do not hide it. It reaches ``1 / bound`` with probability at most
``bound``, at any look (Ville's inequality). It depends on counts alone, not on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SHARES: Final = (0.6, 0.7, 0.8, 0.9, 0.97)  # shares of lost days that the bets are best for


@dataclass(frozen=True, slots=True)
class DayResults:
    """The reports of one day."""

    lost: int = 0  # devices that lost the day with the new version
    kept: int = 0  # devices with a result that did not lose it
    serving: int = 0  # devices of both that served the new version

    @property
    def results(self) -> int:
        return self.lost + self.kept


def log_evidence(days: Mapping[int, DayResults]) -> float:
    """Return the natural logarithm of the evidence of harm; 0 or less without a day.

    >>> even, harm = DayResults(lost=25, kept=25), DayResults(lost=20, kept=5)
    >>> log_evidence({}), round(log_evidence({9: harm}), 2), round(log_evidence({9: even}), 2)
    (0.0, 3.21, -0.62)
    >>> fault = {day: even for day in range(30)} | {30: harm, 31: harm, 32: harm}
    >>> log_evidence(fault) > 4.7
    True
    """
    numbers = [day for day in sorted(days) if days[day].results]
    if not numbers:
        return 0.0
    terms = []
    for share in SHARES:
        loss, gain = math.log(2.0 * share), math.log(2.0 * (1.0 - share))
        since = 0.0
        for first in range(len(numbers) - 1, -1, -1):
            found = days[numbers[first]]
            since += found.lost * loss + found.kept * gain
            terms.append(since - math.log((first + 1) * (first + 2)))
    later = -math.log(len(numbers) + 1)  # weights of first days that are still to come: bets of 1
    terms.append(later + math.log(len(SHARES)))
    highest = max(terms)
    total = math.fsum(math.exp(one - highest) for one in terms)
    return highest + math.log(total) - math.log(len(SHARES))


def is_harmful(days: Mapping[int, DayResults], bound: float) -> bool:
    """Return whether the evidence has reached ``1 / bound``.

    >>> is_harmful({9: DayResults(20, 5), 10: DayResults(20, 5)}, 0.01)
    True
    """
    return log_evidence(days) >= -math.log(bound)
