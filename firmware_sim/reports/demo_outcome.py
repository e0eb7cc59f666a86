"""Results of the demo: its table, its sentences by fixed rules, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firmware_sim.reports import html_page
from firmware_sim.reports.newcomer import EachInTurn, Newcomer
from firmware_sim.results import (
    FEDERATED,
    LOCAL,
    PLFL,
    DeviceResult,
    as_json,
    brief,
    table,
    verdict,
)
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

RUNS = (FEDERATED, PLFL, LOCAL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the demo."""

    scenario: Scenario
    samples: SampleSet
    rows: list[DeviceResult]  # one row a device, on the judged weeks
    panels: list[html_page.Panel]  # forecasts and truth, for the picture
    seconds: Mapping[str, float]  # wall time of each part
    rounds: Mapping[str, int]  # rounds in each run; the fewest of any device
    cpu: Mapping[str, float]  # processor seconds of the devices in each run, summed
    peak_kb: int  # largest resident memory of any device, kilobytes
    arm: str = PLFL  # the way with a fleet that the validation weeks chose
    # mean MASE of each way on the validation weeks; empty without these
    validation: Mapping[str, float] = field(default_factory=dict)
    newcomer: Newcomer | None = None  # the home with little history; None without one
    # every home in turn with as little history; None without a newcomer
    in_turn: EachInTurn | None = None

    @property
    def verdict(self) -> str:
        if self.newcomer is None:
            return verdict(self.rows, self.arm)
        older = [row for row in self.rows if row.device != self.newcomer.device]
        return f"The {len(older)} older devices: {verdict(older, self.arm)}"

    @property
    def answer(self) -> str:
        """Return the sentences of the result: the homes with little history first, the choice and the verdict."""
        parts = [one.sentence for one in (self.in_turn, self.newcomer) if one is not None]
        if self.validation:
            errors = ", ".join(f"{brief(a)} {self.validation[a]:.3f}" for a in self.validation)
            parts.append(
                f"Chosen on the validation weeks: {brief(self.arm)} (mean MASE: {errors})."
            )
        return "\n".join([*parts, self.verdict])

    def text(self) -> str:
        """Return the table and the verdict, for a terminal."""
        steps = int(self.scenario.run.settings.get("steps", 0))
        budget = ", ".join(f"{arm} {self.rounds[arm] * steps}" for arm in RUNS)
        home = [] if self.newcomer is None else [self.newcomer.table(self.samples.unit), ""]
        return "\n".join(
            (
                f"{self.scenario.title} ({self.samples.kind} readings, {self.samples.licence})",
                "",
                table(self.rows, self.samples.unit),
                f"training steps of every device, at least: {budget}",
                "",
                *home,
                self.answer,
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything but the panels, as plain values."""
        return {
            "scenario": self.scenario.title,
            "samples": {"name": self.samples.name, "licence": self.samples.licence},
            "verdict": self.verdict,
            "chosen": self.arm,
            "validation_mase": dict(self.validation),
            "newcomer": self._newcomer(),
            "devices": as_json(self.rows),
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "rounds": dict(self.rounds),
            "device_cpu_seconds": {name: round(value, 1) for name, value in self.cpu.items()},
            "device_peak_kb": self.peak_kb,
        }

    def _newcomer(self) -> dict[str, Any] | None:
        one = self.newcomer
        if one is None:
            return None
        return {
            "device": one.device,
            "days": one.days,
            "alone": one.alone,
            "mae": dict(one.mae),
            "first_week_mae": one.week_mae,
            "sentence": one.sentence,
            "each_home_in_turn": {} if self.in_turn is None else dict(self.in_turn.mae),
        }
