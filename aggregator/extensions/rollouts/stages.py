"""Move a rollout from stage to stage, as a state machine over values, by the evidence of harm.

Only results move it: a rollout without results stays where it is. Harm ends it in any stage, also
while it is paused.

Evidence is a test by betting whether devices lose more than half of their days to a new version.

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
from dataclasses import dataclass, replace
from typing import Final, Literal

from edge_sdk.extensions.rollouts.messages import RolloutMessage

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


Phase = Literal["run", "pause", "return", "done"]


class RolloutError(ValueError):
    """An act that the present phase of a rollout does not allow."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The stage of a rollout."""

    phase: Phase = "run"  # ``run``, ``pause``, ``return`` (ended, and devices return) or ``done``
    stage: int = 0  # number of waves that may serve the version; 0 while it is only scored
    since: int = 0  # day on which the stage began; its results count from the next day on
    why: str = ""  # reason of the last change

    @property
    def is_over(self) -> bool:
        return self.phase in ("return", "done")

    def advanced(
        self,
        plan: RolloutMessage,
        days: Mapping[int, DayResults],
        today: int,
        *,
        drawn: bool = True,
    ) -> RolloutState:
        """Return the state after the results so far; the same one if nothing changes.

        Args:
            plan: Signed description.
            today: Number of the present day, on which a next stage would begin.
            drawn: False if the present wave has drawn no enrolled device; none can serve then.
        """
        if self.is_over:
            return self
        if is_harmful(days, plan.bound):
            return replace(self, phase="return", since=today, why="harm")
        if self.phase == "pause" or len(self.passed(plan, days, drawn=drawn)) < plan.days:
            return self
        if self.stage == len(plan.waves):
            return replace(self, phase="done", since=today, why="passed")
        return replace(self, stage=self.stage + 1, since=today, why="passed")

    def passed(
        self, plan: RolloutMessage, days: Mapping[int, DayResults], *, drawn: bool = True
    ) -> list[int]:
        """Return the days of this stage that count: enough results, one of a serving device."""
        wanted = int(self.stage > 0 and drawn)
        return [
            day
            for day, found in sorted(days.items())
            if day > self.since and found.results >= plan.least and found.serving >= wanted
        ]

    def paused(self) -> RolloutState:
        """Return the state in which no further device begins to serve the version."""
        self._refuse_over("pause")
        return replace(self, phase="pause", why="operator")

    def resumed(self, today: int) -> RolloutState:
        """Return the running state, its days counted again; raise RolloutError unless the rollout is paused."""
        self._refuse_over("resume")
        if self.phase != "pause":
            raise RolloutError("resume: the rollout is not paused")
        return replace(self, phase="run", since=today, why="operator")

    def aborted(self, today: int) -> RolloutState:
        """Return the state in which every device returns, also if it is aborted; raise RolloutError if it is done."""
        if self.phase == "return":
            return self
        self._refuse_over("abort")
        return replace(self, phase="return", since=today, why="operator")

    def _refuse_over(self, act: str) -> None:
        if self.is_over:
            over = "done" if self.phase == "done" else "over: its devices return"
            raise RolloutError(f"{act}: the rollout is {over}")
