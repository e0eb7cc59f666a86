"""Forecast every device's newest weeks by each way, trained on the weeks before, and score it.

| way | what it needs |
| --- | --- |
| ``last value`` | nothing |
| ``yesterday`` | the reading at the same time of the day before |
| ``last week`` | the reading at the same time a week before |
| ``alone`` | ridge regression on the device's own record |
| ``local net`` | a shipped network, trained on the device's own record |
| ``fleet`` | one ridge regression from the sums of all devices |
| ``personal`` | the fleet's model fitted to the device, or its own where that was better |
| ``FedAvg`` | the network, all layers shared |
| ``PL-FL`` | the network, its body shared, its output layers personal |
| ``served`` | what a device's gate chooses by its held-back days |
| ``LightGBM`` | one model of all devices' readings, collected in one place |

No way sees a test row. The federated way that an operator would run, and the local one that it is
compared with, are those with the least error on the held-back days before the test days.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from firmware_sim.evaluation import centralised
from firmware_sim.evaluation.centralised import LIGHTGBM
from firmware_sim.evaluation.closed_form import (
    ALONE,
    COLD,
    FLEET,
    PERSONAL,
    ClosedFormFleet,
    cold_start,
)
from firmware_sim.evaluation.gate import candidates_of, served
from firmware_sim.evaluation.networks import (
    FEDAVG,
    LOCAL_NET,
    NETWORKS,
    PLFL,
    NetworkFleet,
    OnRound,
    bundle_for,
    network_forecasts,
    open_bundle,
    stages,
)
from firmware_sim.evaluation.records import DAY, FleetRecords, span
from firmware_sim.evaluation.table_files import TableError
from firmware_sim.evaluation.windows import (
    MOST_LEARNED,
    DeviceWindows,
    Floats,
    RecordParts,
    windows,
)

REPEATED = ("last value", "yesterday", "last week")
LOCAL = (ALONE, LOCAL_NET)
FEDERATED = (PERSONAL, FLEET, FEDAVG, PLFL)
SERVED = "served"
WAYS = (*REPEATED, *LOCAL, *FEDERATED, SERVED, LIGHTGBM)  # all ways in the order of a table
LEAST_WINDOWS = 100  # of a device's training record
QUICK_WINDOWS = 300_000  # training windows of all devices together, at most, with --quick


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """Errors of one device at one horizon."""

    device: str
    windows: int  # number of test forecasts, the same for every way
    mae: Mapping[str, float]  # mean absolute error by way, in the unit of the readings
    chosen: str  # candidate that the device's gate serves

    def ratio(self, way: str, base: str) -> float:
        """Return the error of a way over that of another; not a number where that is zero."""
        return self.mae[way] / self.mae[base] if self.mae[base] else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class ExampleWeek:
    """A device's newest test days: readings, and two forecasts of them."""

    device: str
    start: int
    actual: Floats
    served: Floats
    last_week: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HorizonComparison:
    """All devices at one horizon."""

    ahead: int  # rows from origin to target
    ways: tuple[str, ...]  # ways compared, in the order of ``WAYS``
    scores: list[DeviceScore]  # by device, in order of name
    # days of history → mean error alone and with the fleet, relative to yesterday's reading, over
    # the first two weeks of the test days; empty if not asked for
    cold: Mapping[int, tuple[float, float]]
    # bytes that a device sends and receives, by way; ways without are left out
    traffic: Mapping[str, tuple[int, int]]
    federated: str  # the federated way with the least held-back error
    local: str  # the local way with the least held-back error
    seconds: float  # processor seconds
    notes: list[str] = field(default_factory=list)  # ways that were left out, and why
    examples: list[ExampleWeek] = field(default_factory=list)

    def relative(self, way: str, base: str = "last week") -> float:
        """Return the mean over devices of a way's error over that of another."""
        ratios = [s.ratio(way, base) for s in self.scores if s.mae[base] > 0.0]
        return float(np.nanmean(ratios)) if ratios else float("nan")

    def counts(self, way: str, margin: float) -> tuple[int, int]:
        """Return the numbers of devices on which a way is better and worse than local by more than a margin."""
        ratios = [score.ratio(way, self.local) for score in self.scores]
        return sum(r < 1.0 - margin for r in ratios), sum(r > 1.0 + margin for r in ratios)

    @property
    def best(self) -> str:
        """The way with the smallest mean relative error that leaves the readings on the devices."""
        ways = [way for way in self.ways if way != LIGHTGBM]
        return min(ways, key=lambda way: (np.isnan(self.relative(way)), self.relative(way)))

    @property
    def served_by(self) -> Counter[str]:
        return Counter(score.chosen for score in self.scores)


@dataclass(slots=True, eq=False)
class _Course:
    """Forecasts of the held-back and the test windows, while they are computed."""

    early: Mapping[str, DeviceWindows]  # windows that are judged on the held-back days, by device
    late: Mapping[str, DeviceWindows]  # windows that are judged on the test days, by device
    # forecasts of the held-back days by device and way
    held: dict[str, dict[str, Floats]] = field(default_factory=dict)
    # forecasts of the test days by device and way
    test: dict[str, dict[str, Floats]] = field(default_factory=dict)
    traffic: dict[str, tuple[int, int]] = field(default_factory=dict)  # as in ``HorizonComparison``
    notes: list[str] = field(default_factory=list)  # as in ``HorizonComparison``

    def best_of(self, ways: Sequence[str]) -> str:
        """Return the way with the least mean held-back error relative to yesterday's reading."""
        known = [way for way in ways if all(way in found for found in self.test.values())]
        errors = {way: self._error(way) for way in known}
        return min(known, key=lambda way: (np.isnan(errors[way]), errors[way]))

    def _error(self, way: str) -> float:
        ratios = []
        for name, w in self.early.items():
            found = self.held[name]
            base = np.abs(found["yesterday"] - w.truth).sum()
            if base > 0.0:
                ratios.append(np.abs(found[way] - w.truth).sum() / base)
        return float(np.mean(ratios)) if ratios else float("nan")


def compare(
    records: FleetRecords,
    ahead: int,
    *,
    cold: Sequence[int] = COLD,
    test_days: int | None = None,
    seed: int = 0,
    is_quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    on_round: OnRound = lambda _way, _round, _rounds: None,
) -> HorizonComparison:
    """Compare all ways at one horizon.

    Args:
        ahead: Rows from origin to target, at least 1.
        cold: Days of history of the cold-start curve; none if empty.
        test_days: Days at the end that are judged; a quarter, at most 56, if left out.
        seed: Seed of the random units and the minibatches.
        is_quick: Whether to leave out the networks and the centralised mark.
        progress: Called with a line about what begins.
        on_round: Called after every round of a network, and every pass and device of the regressions.

    Raises:
        TableError: No device has enough windows at this horizon.
    """
    begin = time.process_time()
    progress("cutting windows")
    parts = {d.device: RecordParts.of(d, records.day, test_days) for d in records.devices}
    most = max(LEAST_WINDOWS, QUICK_WINDOWS // len(records.devices)) if is_quick else MOST_LEARNED
    late, early = _cut(records, ahead, parts, min(most, MOST_LEARNED))
    course = _Course(early, late)
    closed = _closed_form(course, seed, on_round)
    if is_quick:
        course.notes.append("--quick: no network was trained")
        if any(len(w.learn_rows) == most for w in late.values()):
            course.notes.append(f"--quick: each device learns from {most:,} windows at most")
    else:
        _networks(course, records, parts, ahead, seed=seed, on_round=on_round)
        _centralised(course, seed, progress)
    federated, local = course.best_of(FEDERATED), course.best_of(LOCAL)
    course.traffic[SERVED] = course.traffic[federated]
    scores, examples = [], []
    for name, w in late.items():
        scores.append(_scored(course, name, federated, local, records.step))
        examples.append(_example(name, w, course.test[name], records.day))
    curve = {}
    for days in cold:
        progress(
            f"cold start: {days} days of history, each device without its own part of the sums"
        )
        found = cold_start(records, parts, ahead, days, closed)
        if found is not None:
            curve[days] = found
    return HorizonComparison(
        ahead,
        tuple(way for way in WAYS if way in scores[0].mae),
        scores,
        curve,
        course.traffic,
        federated,
        local,
        seconds=time.process_time() - begin,
        notes=course.notes,
        examples=examples,
    )


def _cut(
    records: FleetRecords, ahead: int, parts: Mapping[str, RecordParts], most: int
) -> tuple[dict[str, DeviceWindows], dict[str, DeviceWindows]]:
    """Return the windows that are judged on the test days, and those on the held-back days.

    A device whose record is too short to learn before its held-back days has none of these.
    """
    late, early = {}, {}
    for record in records.devices:
        part = parts[record.device]
        w = windows(record, records.day, ahead, (part.test, part.end), most=most)
        if len(w.learn_rows) < LEAST_WINDOWS or not len(w.goals):
            continue
        late[record.device] = w
        if part.held > (1 + ahead // records.day) * records.day:
            w = windows(record, records.day, ahead, (part.held, part.test), most=most)
            if len(w.learn_rows) >= LEAST_WINDOWS // 2 and len(w.goals):
                early[record.device] = w
    if not late:
        raise TableError(
            f"no device has {LEAST_WINDOWS} windows of {ahead} rows ahead before its test days",
            hint="a longer record, fewer --test-days, or a shorter --ahead",
        )
    return late, early


def _closed_form(course: _Course, seed: int, on_round: OnRound) -> ClosedFormFleet:
    """Add the ridge regressions: without the held-back days for these, with them for the test."""
    passes = partial(on_round, "regressions, passes over the fleet")
    own = partial(on_round, "regressions, own model of each device")
    if course.early:
        held = ClosedFormFleet.of(course.early, seed, passes)
        for number, (name, w) in enumerate(course.early.items(), 1):
            course.held[name] = w.repeated | held.forecasts(name)
            own(number, len(course.early))
    found = ClosedFormFleet.of(course.late, seed, passes)
    for number, (name, w) in enumerate(course.late.items(), 1):
        course.test[name] = w.repeated | found.forecasts(name)
        own(number, len(course.late))
    course.traffic |= {FLEET: found.traffic, PERSONAL: found.traffic}
    return found


def _networks(
    course: _Course,
    records: FleetRecords,
    parts: Mapping[str, RecordParts],
    ahead: int,
    *,
    seed: int,
    on_round: OnRound,
) -> None:
    """Add the networks, or a note that no shipped bundle has this step and horizon."""
    name = bundle_for(records.step, ahead)
    if name is None:
        course.notes.append(
            f"no network: no shipped bundle forecasts {span(ahead * records.step)} ahead"
            f" in steps of {span(records.step)}"
        )
        return
    course.notes.append(f"network: bundle {name}, {len(stages(len(course.late)))} rounds")
    devices = {d.device: d for d in records.devices if d.device in course.late}
    fleet = NetworkFleet(open_bundle(name), devices, parts, zone=records.zone, seed=seed)
    nothing = np.zeros(0, np.int64), np.zeros(0)
    held = {
        n: (course.early[n].origins, course.early[n].truth) if n in course.early else nothing
        for n in course.late
    }
    test = {n: w.origins for n, w in course.late.items()}
    for way, shared in NETWORKS.items():
        found = network_forecasts(fleet, way, ahead, held=held, test=test, on_round=on_round)
        for n, forecasts in found.items():
            course.test[n][way] = _or_yesterday(forecasts.test, course.late[n])
            if n in course.early:
                course.held[n][way] = _or_yesterday(forecasts.held, course.early[n])
        if shared:
            course.traffic[way] = fleet.traffic(shared, len(stages(len(course.late))))


def _or_yesterday(forecasts: Floats, w: DeviceWindows) -> Floats:
    return np.where(np.isfinite(forecasts), forecasts, w.repeated["yesterday"])


def _centralised(course: _Course, seed: int, progress: Callable[[str], None]) -> None:
    if not centralised.is_available():
        course.notes.append(centralised.MISSING)
        return
    progress("LightGBM on the readings of all devices")
    for name, forecasts in centralised.centralised(course.late, seed).items():
        course.test[name][LIGHTGBM] = forecasts
    readings = [len(w.learn_rows) for w in course.late.values()]
    course.traffic[LIGHTGBM] = 4 * round(float(np.mean(readings))), 0


def _scored(course: _Course, name: str, federated: str, local: str, step: int) -> DeviceScore:
    w, found = course.late[name], course.test[name]
    held = course.held.get(name, {way: np.zeros(0) for way in found})
    early = course.early.get(name)
    truth = np.zeros(0) if early is None else early.truth
    goals = np.zeros(0, np.int64) if early is None else early.goals
    days = (w.record.start + step * goals) // DAY
    found[SERVED], chosen = served(candidates_of(federated, local), held, truth, days, found)
    mae = {way: float(np.abs(values - w.truth).mean()) for way, values in found.items()}
    return DeviceScore(name, len(w.goals), mae, chosen)


def _example(name: str, w: DeviceWindows, forecasts: Mapping[str, Floats], day: int) -> ExampleWeek:
    first = int(max(w.goals[-1] - 7 * day + 1, w.goals[0]))
    rows = np.full((3, int(w.goals[-1]) + 1 - first), np.nan)
    inside = w.goals >= first
    at = w.goals[inside] - first
    rows[0, at] = w.truth[inside]
    rows[1, at], rows[2, at] = forecasts[SERVED][inside], forecasts["last week"][inside]
    return ExampleWeek(name, first, *rows)
