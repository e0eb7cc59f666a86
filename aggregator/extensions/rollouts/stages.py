"""Move a rollout from stage to stage, as a state machine over values.

Only results move it: a rollout without results stays where it is. Harm ends it in any stage, also
while it is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from aggregator.extensions.rollouts.harm_evidence import DayResults, is_harmful
from edge_sdk.extensions.rollouts.messages import RolloutMessage

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
        """Return the running state; the days of the stage are counted again.

        Raises:
            RolloutError: The rollout is over, or is not paused.
        """
        self._refuse_over("resume")
        if self.phase != "pause":
            raise RolloutError("resume: the rollout is not paused")
        return replace(self, phase="run", since=today, why="operator")

    def aborted(self, today: int) -> RolloutState:
        """Return the state in which every device returns; aborting twice changes nothing.

        Raises:
            RolloutError: The rollout is done: announce another version instead.
        """
        if self.phase == "return":
            return self
        self._refuse_over("abort")
        return replace(self, phase="return", since=today, why="operator")

    def _refuse_over(self, act: str) -> None:
        if self.is_over:
            over = "done" if self.phase == "done" else "over: its devices return"
            raise RolloutError(f"{act}: the rollout is {over}")
