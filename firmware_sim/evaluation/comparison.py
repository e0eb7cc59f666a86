"""Forecast every device's newest weeks by each way, trained on what lies before, and score it.

| way | what it needs |
| --- | --- |
| ``last value`` | nothing |
| ``yesterday`` | the reading at the same time of the day before |
| ``last week`` | the reading at the same time a week before |
| ``alone`` | ridge regression on the device's own record |
| ``fleet`` | one ridge regression from the sums of all devices |
| ``personal`` | the fleet's model fitted to the device, or its own where that was better |

The last three use the features and solutions of ``edge_sdk.analytic``; λ of ``alone`` and
``personal`` is chosen on the newest part of the training record. No way sees a test row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.features import LoadRecord, columns, standard_names
from edge_sdk.analytic.personal import fit_personal
from edge_sdk.analytic.random_units import RandomUnits
from edge_sdk.analytic.reweighting import QuantileLoss
from edge_sdk.analytic.solve import fleet_solution, predicted
from edge_sdk.analytic.standardise import FeatureSums, Standardiser
from edge_sdk.analytic.statistics import Statistic, gather, payload_bytes, total
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords
from firmware_sim.evaluation.tables import TableError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WAYS = ("last value", "yesterday", "last week", "alone", "fleet", "personal")
LEARNT = ("alone", "fleet", "personal")
TEST_SHARE, TEST_DAYS = 0.25, 56  # the newest quarter of a record, at most eight weeks
UNITS, FAN_IN, PASSES = 100, 4, 2
LOSS = QuantileLoss()
LEAST_WINDOWS = 100  # of a device's training record
COLD_DEVICES = 12  # devices, evenly chosen, of the cold-start curve
COLD = (7, 14, 28)
"""Days of own history of the cold-start curve."""


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """Errors of one device at one horizon.

    Attributes:
        device: Name.
        windows: Number of test forecasts.
        mae: Mean absolute error by way, in the unit of the readings; not a number where a way has
            no forecast.
    """

    device: str
    windows: int
    mae: Mapping[str, float]

    @property
    def worth(self) -> float:
        """Error of ``personal`` over that of ``alone``; below 1 the fleet helps."""
        return self.mae["personal"] / self.mae["alone"] if self.mae["alone"] else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class ExampleWeek:
    """A device's newest test days: readings, and two forecasts of them."""

    device: str
    start: int
    actual: Floats
    personal: Floats
    last_week: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HorizonComparison:
    """All devices at one horizon.

    Attributes:
        ahead: Rows from origin to target.
        scores: By device, in order of name.
        cold: Days of history → mean error alone and with the fleet, relative to yesterday's
            reading, over the first two weeks of the test days; empty if not asked for.
        bytes_up: Bytes that a device sends, all passes.
        bytes_down: Bytes that a device receives.
        seconds: Processor seconds.
        examples: One for each of some devices.
    """

    ahead: int
    scores: list[DeviceScore]
    cold: Mapping[int, tuple[float, float]]
    bytes_up: int
    bytes_down: int
    seconds: float
    examples: list[ExampleWeek] = field(default_factory=list)

    def relative(self, way: str, base: str = "last week") -> float:
        """Return the mean over devices of a way's error over that of another."""
        ratios = [s.mae[way] / s.mae[base] for s in self.scores if s.mae[base] > 0.0]
        return float(np.nanmean(ratios)) if ratios else float("nan")

    @property
    def best(self) -> str:
        """The way with the smallest mean relative error."""
        return min(WAYS, key=lambda way: (np.isnan(self.relative(way)), self.relative(way)))


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """A device's rows for one horizon; features before standardisation."""

    record: DeviceRecord
    scale: float
    learn_rows: Floats
    learn_targets: Floats  # scaled change, shape (n, 1)
    test: Ints  # rows of the targets
    test_rows: Floats
    told: dict[str, Floats]  # forecasts of the ways that learn nothing, shape (m,)


def compare(
    records: FleetRecords,
    ahead: int,
    *,
    cold: Sequence[int] = COLD,
    test_days: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> HorizonComparison:
    """Compare all ways at one horizon.

    Args:
        records: The fleet on its grid.
        ahead: Rows from origin to target, at least 1.
        cold: Days of history of the cold-start curve; none if empty.
        test_days: Days at the end that are judged; a quarter, at most 56, if left out.
        seed: Seed of the random units.
        progress: Called with a line about what begins.

    Raises:
        TableError: No device has enough windows at this horizon.
    """
    begin = time.process_time()
    progress("cutting windows")
    tests = {d.device: _test_rows(d, records.day, test_days) for d in records.devices}
    every = {d.device: _windows(d, records.day, ahead, tests[d.device]) for d in records.devices}
    devices = {n: w for n, w in every.items() if len(w.learn_rows) >= LEAST_WINDOWS and len(w.test)}
    if not devices:
        raise TableError(
            f"no device has {LEAST_WINDOWS} windows of {ahead} rows ahead before its test days",
            hint="a longer record, fewer --test-days, or a shorter --ahead",
        )
    standard = Standardiser.of_fleet({n: FeatureSums.of(w.learn_rows) for n, w in devices.items()})
    width = next(iter(devices.values())).learn_rows.shape[1]
    units = RandomUnits.draw("evaluate", seed, width, UNITS, FAN_IN)

    def design(rows: Floats) -> Floats:
        return np.asarray(units.design(standard.apply(rows)), np.float64)

    fleet: Floats | None = None
    sums: dict[str, Statistic] = {}
    for number in range(1 + PASSES):
        progress(f"pass {number + 1} of {1 + PASSES} over {len(devices)} devices")
        for name, w in devices.items():
            rows, weights = design(w.learn_rows), None
            if fleet is not None:
                weights = LOSS.weights(w.learn_targets - predicted(rows, fleet))
            sums[name] = gather(rows, w.learn_targets, weights)
        fleet = fleet_solution(total(sums))
    assert fleet is not None
    progress("solving every device's own model")
    scores, examples = [], []
    for name, w in devices.items():
        told = w.told | _learnt(w, design, fleet)
        scores.append(_score(name, w, told))
        examples.append(_example(name, w, told, records.day))
    curve = {}
    for days in cold:
        progress(
            f"cold start: {days} days of history, each device without its own part of the sums"
        )
        found = _cold(records, tests, ahead, days, design=design, sums=sums)
        if found is not None:
            curve[days] = found
    size = width + UNITS + 1
    return HorizonComparison(
        ahead,
        scores,
        curve,
        bytes_up=(1 + PASSES) * payload_bytes(size, 1) + 8 * width,
        bytes_down=(1 + PASSES) * 4 * size + 8 * width,
        seconds=time.process_time() - begin,
        examples=examples,
    )


def _test_rows(record: DeviceRecord, day: int, test_days: int | None) -> tuple[int, int]:
    """Return the rows that are judged, from one to before the other."""
    length = len(record.values)
    wanted = (
        int(min(TEST_SHARE * length, TEST_DAYS * day)) if test_days is None else test_days * day
    )
    return length - min(wanted, length // 2), length


def _windows(
    record: DeviceRecord, day: int, ahead: int, test: tuple[int, int], start: int = 0
) -> _Windows:
    """Cut a device's windows for one horizon; rows before ``start`` are not known to it."""
    values, cut = record.values[start : test[1]], test[0] - start
    known, filled = np.isfinite(values), _filled(values)
    early = values[:cut][known[:cut]]
    middle, scale = float(early.mean()), float(early.std()) or 1.0
    load = LoadRecord(
        (filled - middle) / scale, *_clock(record, start, len(values) + ahead, day), day
    )
    names = standard_names(day, lookback=max(12, min(day // 2, 24)))
    deep = (7 if cut > 28 * day else 1) * day + ahead
    origins = np.arange(deep, len(values) - ahead)
    origins = origins[known[origins] & known[origins + ahead]]
    learn, judge = origins[origins + ahead < cut], origins[origins >= cut]
    goal = judge + ahead
    back = {"yesterday": day * -(-ahead // day), "last week": 7 * day * -(-ahead // (7 * day))}
    told = {way: filled[np.maximum(goal - rows, 0)] for way, rows in back.items()}
    return _Windows(
        record,
        scale,
        columns(load, names, learn, ahead),
        ((values[learn + ahead] - values[learn]) / scale)[:, None],
        goal + start,
        columns(load, names, judge, ahead),
        {"last value": values[judge]} | told,
    )


def _clock(record: DeviceRecord, start: int, length: int, day: int) -> tuple[Ints, Ints]:
    """Return slots and weekdays from row ``start`` on, also after the record's last row."""
    rows = np.arange(start, start + length)
    inside = np.minimum(rows, len(record.slots) - 1)
    later = record.slots[inside] + (rows - inside)
    return later % day, (record.weekdays[inside] + later // day) % 7


def _filled(values: Floats) -> Floats:
    """Return readings with each gap filled by the newest one before it; the start by the first.

    >>> _filled(np.array([np.nan, 2.0, np.nan, 4.0])).tolist()
    [2.0, 2.0, 2.0, 4.0]
    """
    known = np.isfinite(values)
    at = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.asarray(values[np.where(at < 0, int(np.argmax(known)), at)])


def _learnt(w: _Windows, design: Callable[[Floats], Floats], fleet: Floats) -> dict[str, Floats]:
    """Return the forecasts of the ways that learn, shape ``(m,)`` each."""
    rows, judged = design(w.learn_rows), design(w.test_rows)
    personal = fit_personal(rows, w.learn_targets, fleet, LOSS).coefficients
    alone = fit_personal(rows, w.learn_targets, 0.0 * fleet, LOSS, strengths=()).coefficients
    models = {"alone": alone, "fleet": fleet, "personal": personal}
    last = w.told["last value"]
    return {way: last + w.scale * predicted(judged, m)[:, 0] for way, m in models.items()}


def _score(name: str, w: _Windows, told: Mapping[str, Floats]) -> DeviceScore:
    actual = w.record.values[w.test]
    return DeviceScore(
        name, len(w.test), {way: float(np.abs(told[way] - actual).mean()) for way in WAYS}
    )


def _example(name: str, w: _Windows, told: Mapping[str, Floats], day: int) -> ExampleWeek:
    """Return the newest week of a device, a row for each slot of the grid."""
    first = int(max(w.test[-1] - 7 * day + 1, w.test[0]))
    rows = np.full((3, int(w.test[-1]) + 1 - first), np.nan)
    inside = w.test >= first
    at = w.test[inside] - first
    rows[0, at] = w.record.values[w.test[inside]]
    rows[1, at], rows[2, at] = told["personal"][inside], told["last week"][inside]
    return ExampleWeek(name, first, *rows)


def _cold(
    records: FleetRecords,
    tests: Mapping[str, tuple[int, int]],
    ahead: int,
    days: int,
    *,
    design: Callable[[Floats], Floats],
    sums: Mapping[str, Statistic],
) -> tuple[float, float] | None:
    """Return the error alone and with the fleet after so many days, relative to yesterday's reading.

    The fleet's model is solved without the device's own part. The two weeks after are judged.
    """
    ratios = []
    chosen = [d for d in records.devices if d.device in sums]
    for record in chosen[:: 1 + (len(chosen) - 1) // COLD_DEVICES]:
        cut = tests[record.device][0]
        start, end = cut - days * records.day, min(tests[record.device][1], cut + 14 * records.day)
        if start < 0 or len(sums) < 2 or not np.isfinite(record.values[start:cut]).any():
            continue
        w = _windows(record, records.day, ahead, (cut, end), start)
        if len(w.learn_rows) < LEAST_WINDOWS // 2 or not len(w.test):
            continue
        others = {name: one for name, one in sums.items() if name != record.device}
        error = _score(record.device, w, w.told | _learnt(w, design, fleet_solution(total(others))))
        if error.mae["yesterday"] > 0.0:
            base = error.mae["yesterday"]
            ratios.append((error.mae["alone"] / base, error.mae["personal"] / base))
    if not ratios:
        return None
    alone, helped = np.mean(ratios, axis=0)
    return float(alone), float(helped)
