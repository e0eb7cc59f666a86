"""Results of the demo: its table, its sentences by fixed rules, its numbers, and the home with little history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firmware_sim.evaluation.closed_form import ALONE as OWN_WAY
from firmware_sim.evaluation.closed_form import PERSONAL as FLEET_WAY
from firmware_sim.evaluation.closed_form import ClosedFormFleet
from firmware_sim.evaluation.records import DAY, DeviceRecord, FleetRecords
from firmware_sim.evaluation.tomorrow import (
    TomorrowComparison,
    compare_tomorrow,
    tomorrow_json,
    tomorrow_table,
    tomorrow_verdict,
)
from firmware_sim.evaluation.windows import DeviceWindows, windows
from firmware_sim.reports import html_page
from firmware_sim.reports.html_page import Panel
from firmware_sim.results import (
    FEDERATED,
    LOCAL,
    PERSISTENCE,
    PLFL,
    TIE,
    DeviceResult,
    Series,
    as_json,
    brief,
    table,
    verdict,
)
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

Times = NDArray[np.int64]

OWN, YESTERDAY, LAST_WEEK = "own regression", "yesterday", "last week"
# forecasts that a home can make without a fleet
ALONE = {
    PERSISTENCE: "the last reading",
    YESTERDAY: "yesterday's reading",
    LAST_WEEK: "last week's reading",
    OWN: "a regression on its own record",
    LOCAL: "the network, trained alone",
}

SHOWN_DAYS = 7


@dataclass(frozen=True, slots=True, eq=False)
class Newcomer:
    """A home with little history on the judged weeks."""

    device: str
    days: int
    arm: str  # the way with a fleet, chosen on validation weeks of all homes
    alone: str  # the forecast without a fleet that had the least error on its validation weeks
    # mean absolute error on the judged weeks by forecast; ``arm`` among them
    mae: Mapping[str, float]
    # its first judged week: readings, the network's forecasts alone, ``alone`` and ``arm``
    week: Panel

    @property
    def week_mae(self) -> dict[str, float]:
        """Mean absolute error in the first judged week."""
        return {name: _mae(values, self.week.truth) for name, values in self.week.forecasts.items()}

    @property
    def sentence(self) -> str:
        """Return the result by a fixed rule: a difference below ``TIE`` counts as none."""
        alone, fleet = self.mae[self.alone], self.mae[self.arm]
        share = 1.0 - fleet / alone
        size = f"{abs(share):.1%}".replace("%", " %")
        words = f"{size} {'smaller' if share > 0 else 'larger'} than"
        answer = "as good as" if abs(share) <= TIE else words
        return (
            f"The new home ({self.device}, {self.days} days of history): MAE {fleet:.3f} with the"
            f" fleet, {self.mae[LOCAL]:.3f} with the same network trained alone. With the fleet it is"
            f" {answer} its best forecast alone ({ALONE[self.alone]}, {alone:.3f})."
        )

    def table(self, unit: str) -> str:
        """Return its errors as text, the largest first."""
        first = self.week_mae
        lines = [f"{self.device + ', MAE in ' + unit:44}{'judged weeks':>14}{'first week':>12}"]
        for name, error in sorted(self.mae.items(), key=lambda pair: -pair[1]):
            text = ALONE.get(name, f"with the fleet ({name})")
            mark = " (best alone)" if name == self.alone else ""
            week = f"{first[name]:12.3f}" if name in first else ""
            lines.append(f"{text + mark:44}{error:14.3f}{week}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class OwnForecasts:
    """Forecasts that a home computes from its own readings, one step ahead."""

    times: Times  # instants of the targets, rising, shape ``(n,)``
    values: Mapping[str, Series]  # forecasts by name, shape ``(n,)`` each

    @classmethod
    def of(
        cls, times: Times, values: Series, step: int, *, known: tuple[float, float], end: float
    ) -> OwnForecasts:
        """Fit a regression on a home's history, and forecast every step from then to an end.

        Args:
            times: Instants of the readings.
            values: Readings; NaN where one is missing.
            step: Seconds between two rows, a divisor of a day.
            known: First and last moment of the history.
            end: Moment after the last forecast.
        """
        home = one_step_windows(times, values, step, (*known, end))
        found = ClosedFormFleet.of({"home": home}, seed=0).forecasts("home")
        targets = home.record.start + home.goals * step
        repeated = {name: home.repeated[name] for name in (YESTERDAY, LAST_WEEK)}
        return cls(targets, repeated | {OWN: found[OWN_WAY]})

    def at(self, times: Times) -> dict[str, Series]:
        """Return the forecasts of some instants by name; NaN for none."""
        rows = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        known = self.times[rows] == times
        return {name: np.where(known, each[rows], np.nan) for name, each in self.values.items()}


def next_days(
    records: Mapping[str, tuple[Times, Series]], step: int, span: tuple[float, float], judged: int
) -> TomorrowComparison | None:
    """Compare forecasts of the next 24 hours on the last days of a span.

    Args:
        records: Instants and readings by home.
        step: Seconds between two rows.
        span: First moment of the histories, and the end of the judged part.
        judged: Days of the judged part.
    """
    start, stop = (int(moment) // step for moment in span)
    rows, day = np.arange(start, stop), DAY // step
    found = []
    for name, (times, values) in sorted(records.items()):
        grid = np.full(stop - start, np.nan)
        inside = (times >= start * step) & (times < stop * step)
        grid[times[inside] // step - start] = values[inside]
        record = DeviceRecord(name, start * step, grid, rows % day, (rows // day + 3) % 7)
        found.append(record)
    return compare_tomorrow(FleetRecords(found, step, "UTC", []), test_days=judged)


def one_step_windows(
    times: Times, values: Series, step: int, moments: tuple[float, float, float]
) -> DeviceWindows:
    """Cut the windows of a record: a history between two moments, and the rows up to a third one."""
    start, cut, stop = (int(moment) // step for moment in moments)
    grid = np.full(stop - start, np.nan)
    inside = (times >= moments[0]) & (times < moments[2])
    grid[times[inside] // step - start] = values[inside]
    rows, day = np.arange(start, stop), DAY // step
    record = DeviceRecord("home", start * step, grid, rows % day, (rows // day + 3) % 7)
    return windows(record, day, 1, (cut - start, stop - start))


@dataclass(frozen=True, slots=True)
class EachInTurn:
    """Errors of all homes, each in turn as the one with little history, by regression."""

    days: int
    # mean absolute error by home on the judged weeks, alone and with the fleet
    mae: Mapping[str, tuple[float, float]]

    @property
    def sentence(self) -> str:
        """Return the result by a fixed rule: a mean difference below ``TIE`` counts as none.

        >>> EachInTurn(10, {"a": (1.0, 0.9), "b": (1.0, 0.92)}).sentence.split(": ")[1]
        'with the fleet its error is 9.0 % smaller than alone (better on 2 of 2), by regression.'
        >>> EachInTurn(10, {"a": (1.0, 0.99)}).sentence.split(": ")[1]
        'with the fleet its error is as large as alone (better on 1 of 1), by regression.'
        """
        share = 1.0 - float(np.mean([fleet / alone for alone, fleet in self.mae.values()]))
        better = sum(fleet < alone for alone, fleet in self.mae.values())
        size = f"{abs(share):.1%}".replace("%", " %")
        words = f"{size} {'smaller' if share > 0 else 'larger'} than"
        return (
            f"Each home in turn as the new one, {self.days} days of history: with the fleet its error"
            f" is {'as large as' if abs(share) <= TIE else words} alone (better on {better} of"
            f" {len(self.mae)}), by regression."
        )


def each_in_turn(
    records: Mapping[str, tuple[Times, Series]],
    step: int,
    days: int,
    *,
    start: float,
    until: float,
    judged: tuple[float, float],
) -> EachInTurn:
    """Solve the fleet's regression with each home in turn as the one with little history.

    Args:
        step: Seconds between two rows.
        start: First moment of all other histories.
        until: Moment at which all histories end.
        judged: First and last moment of the judged part.
    """
    whole = {
        name: one_step_windows(*record, step, (start, until, judged[1]))
        for name, record in records.items()
    }
    found = {}
    for name, record in records.items():
        home = one_step_windows(*record, step, (until - days * DAY, until, judged[1]))
        fleet = ClosedFormFleet.of({**whole, name: home}, seed=0).forecasts(name)
        late = home.record.start + home.goals * step >= judged[0]
        error = {way: _mae(fleet[way][late], home.truth[late]) for way in (OWN_WAY, FLEET_WAY)}
        found[name] = error[OWN_WAY], error[FLEET_WAY]
    return EachInTurn(days, found)


def newcomer(
    arm: str, days: int, *, validation: Panel, judged: Panel, own: OwnForecasts
) -> Newcomer:
    """Choose the home's best forecast alone on validation weeks, and compare on the judged ones.

    Args:
        arm: The way with a fleet.
        own: What it computes from its own readings.
    """
    early, late = (
        {name: panel.forecasts[name] for name in (PERSISTENCE, LOCAL)} | own.at(panel.times)
        for panel in (validation, judged)
    )
    alone = min(early, key=lambda name: _mae(early[name], validation.truth))
    late[arm] = judged.forecasts[arm]
    mae = {name: _mae(values, judged.truth) for name, values in late.items()}
    part = judged.times < judged.times[0] + SHOWN_DAYS * DAY
    shown = {name: late[name][part] for name in (LOCAL, alone, arm)}
    week = Panel(judged.device, judged.times[part], judged.truth[part], shown)
    return Newcomer(judged.device, days, arm, alone, mae, week)


def _mae(values: Series, truth: Series) -> float:
    known = np.isfinite(values) & np.isfinite(truth)
    return float(np.abs(values - truth)[known].mean()) if known.any() else float("inf")


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
    # forecasts of 24 hours, and those of each home's first days; None where records are too short
    tomorrow: TomorrowComparison | None = None

    @property
    def verdict(self) -> str:
        if self.newcomer is None:
            return verdict(self.rows, self.arm)
        older = [row for row in self.rows if row.device != self.newcomer.device]
        return f"The {len(older)} older devices: {verdict(older, self.arm)}"

    @property
    def answer(self) -> str:
        """Return the sentences of the result: first days and tomorrow first, the choice and the verdict last."""
        parts = [] if self.tomorrow is None else tomorrow_verdict(self.tomorrow)[::-1]
        parts += [one.sentence for one in (self.in_turn, self.newcomer) if one is not None]
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
        if self.tomorrow is not None:
            home += [tomorrow_table(self.tomorrow), ""]
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
            "tomorrow": None if self.tomorrow is None else tomorrow_json(self.tomorrow),
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
