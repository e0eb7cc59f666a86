"""Compare forecasts of tomorrow's 24 hours: last week, a device's average day, its own model, a fleet's.

The fleet's model is ``profile_form``'s, solved without the device that it forecasts, from windows before
the test days. A new device is one of which nothing is known but its newest days: its forecasts are
judged after 1, 3, 7, 14 and 28 of them, against the average of the same days.

Windows are drawn, so that 50 devices take less than a minute: so many rows of all devices
teach each number of days, and at most ``JUDGED`` windows of a device are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.profile_features import (
    DAYS,
    HOUR,
    ProfileRecord,
    ProfileRows,
    profile_rows,
)
from edge_sdk.extensions.analytic.profile_form import (
    LARGEST,
    RELAXATION,
    fleet_scale,
    naive_noise,
    next_coefficients,
    own_part,
    scaled_design,
    stage_statistics,
)
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import Statistic, total
from firmware_sim.evaluation.own_strength import best_strengths, strength_losses
from firmware_sim.evaluation.records import DAY, DeviceRecord, FleetRecords
from firmware_sim.evaluation.windows import Floats, Ints, RecordParts

LAST_WEEK, AVERAGE, ALONE, FLEET = "last week", "average day", "alone", "with the fleet"
OWN_PART = "with the fleet and an own part"
_NAMES = {
    LAST_WEEK: "last week's same hours",
    AVERAGE: "each device's average day",
    ALONE: "each device's own model",
}
KNOWN = (1, 3, 7, 14, DAYS)
"""Days of a new device's history; the last number is what a device with a long record has."""
ROWS = {DAYS: 120_000}  # of all devices that teach a number of days, about
FEW_ROWS = 40_000  # the same of any other number of days
JUDGED = 40  # most windows of a device that are judged
LEAST = 8  # windows of a device that a part needs
MOST = 240  # most windows of a device that teach a number of days
CHOOSERS = 12  # devices, evenly taken, by which the strength of the own part is chosen
STRENGTHS = (0.1, 1.0, math.inf)
PENALTY = 1e-4  # as a share of the mean diagonal of the sums
PASSES = 5
LOSS = QuantileLoss()


@dataclass(frozen=True, slots=True, eq=False)
class TomorrowComparison:
    """Mean absolute errors of the next 24 hours on the test days."""

    devices: tuple[str, ...]  # those that were judged, in order of name
    # of a device with all of its record, by way, shape ``(devices,)`` each
    errors: Mapping[str, Floats]
    # days of history → error of the average day and with the fleet, shape ``(devices,)`` each
    first: Mapping[int, tuple[Floats, Floats]]

    def relative(self, way: str, base: str) -> float:
        """Return the mean over devices of a way's error over that of another."""
        return _mean_ratio(self.errors[way], self.errors[base])

    def after(self, days: int) -> tuple[float, float]:
        """Return both errors after so many days of history, over that of the average of 28 days."""
        whole = self.first[KNOWN[-1]][0]
        return _mean_ratio(self.first[days][0], whole), _mean_ratio(self.first[days][1], whole)

    def better(self, way: str, base: str, margin: float = 0.01) -> tuple[int, int]:
        """Return the numbers of devices on which a way is better and worse by more than a margin."""
        ratios = _ratios(self.errors[way], self.errors[base])
        return int((ratios < 1.0 - margin).sum()), int((ratios > 1.0 + margin).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Windows of one device, truncated to a number of known days."""

    rows: ProfileRows
    truth: Floats  # shape ``(n, H)``

    @property
    def targets(self) -> Floats:
        """Return the targets in levels minus base, NaN where they do not count, shape ``(n · H,)``."""
        found = self.truth / self.rows.level[:, None] - self.rows.base
        return np.where(np.abs(found) <= LARGEST, found, np.nan).ravel()

    def error(self, told: Floats) -> float:
        """Return the mean absolute error of forecasts in levels minus base, shape ``(n · H,)``."""
        forecast = (self.rows.base + told.reshape(self.truth.shape)) * self.rows.level[:, None]
        return float(np.nanmean(np.abs(self.truth - forecast)))

    def column(self, name: str) -> Floats:
        return np.asarray(self.rows.design[:, :, self.rows.names.index(name)].ravel(), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """One device's record and the origins of its windows."""

    values: Floats
    local: Ints  # wall-clock seconds of every row and of the day after, shape ``(T + day,)``
    step: int
    learn: Ints
    judge: Ints

    def taught(self, days: int, devices: int) -> _Windows:
        """Return the windows that teach a number of days."""
        rows = ROWS.get(days, FEW_ROWS)
        most = min(max(rows * self.step // (devices * DAY), LEAST), MOST)
        return self.windows(_evenly(self.learn, most), days)

    def windows(self, origins: Ints, days: int) -> _Windows:
        """Return windows truncated to the newest days before each origin."""
        day = DAY // self.step
        back = DAYS * day + HOUR // self.step
        away = np.arange(1 - back, day + 1)
        rows = origins[:, None] + away
        is_known = (away <= 0) & (away > -days * day - (days == DAYS) * HOUR // self.step)
        values = np.where(is_known, self.values[np.minimum(rows, len(self.values) - 1)], np.nan)
        record = ProfileRecord(values.ravel(), self.local[rows].ravel(), self.step)
        places = np.arange(len(origins)) * len(away) + back - 1
        return _Windows(
            profile_rows(record, places, day), self.values[origins[:, None] + 1 + np.arange(day)]
        )


def compare_tomorrow(
    records: FleetRecords,
    *,
    test_days: int | None = None,
    on_part: Callable[[int, int], None] = lambda _done, _parts: None,
) -> TomorrowComparison | None:
    """Compare the ways on the test days; None where steps do not divide an hour or records are too short.

    Args:
        test_days: As for ``comparison.compare``.
        on_part: Called after each of ``len(KNOWN)`` parts.
    """
    if HOUR % records.step:
        return None
    sites: dict[str, _Site] = {}
    for device in records.devices:
        parts = RecordParts.of(device, records.day, test_days)
        site = _site(device, records.step, parts.test)
        if len(site.learn) >= LEAST and len(site.judge) >= LEAST:
            sites[device.device] = site
    if len(sites) < 2:
        return None
    first: dict[int, tuple[Floats, Floats]] = {}
    errors: dict[str, Floats] = {}
    for number, days in enumerate(KNOWN, 1):
        told = _first_days(sites, days)
        first[days] = told[AVERAGE], told[FLEET]
        if days == DAYS:
            errors = told | {FLEET: told[OWN_PART]}
        on_part(number, len(KNOWN))
    ways = {way: errors[way] for way in (LAST_WEEK, AVERAGE, ALONE, FLEET)}
    return TomorrowComparison(tuple(sites), ways, first)


def _first_days(sites: Mapping[str, _Site], days: int) -> dict[str, Floats]:
    """Return the errors by way, shape ``(devices,)`` each, of devices that know so many days."""
    taught = {name: site.taught(days, len(sites)) for name, site in sites.items()}
    scale = fleet_scale([_mean_squares(one.rows) for one in taught.values()])
    designs = {name: scaled_design(one.rows, scale) for name, one in taught.items()}
    targets = {name: one.targets for name, one in taught.items()}
    others = _solved_without_each(taught, designs, targets)
    is_long = days == DAYS
    strengths = (0.0, 0.0)
    if is_long:
        strengths = _strength(designs, targets, others), _strength(designs, targets, None)
    found: dict[str, list[float]] = {}
    for name, site in sites.items():
        judged = site.windows(site.judge, days)
        design = scaled_design(judged.rows, scale)
        prior = _forecast(design, others[name])
        told = {AVERAGE: judged.column("mall"), FLEET: prior, LAST_WEEK: judged.column("w1")}
        if is_long:
            left = targets[name] - _forecast(designs[name], others[name])
            own = own_part(designs[name], left, strengths[0], LOSS)
            alone = own_part(designs[name], targets[name], strengths[1], LOSS)
            told |= {OWN_PART: prior + _forecast(design, own), ALONE: _forecast(design, alone)}
        for way, forecast in told.items():
            found.setdefault(way, []).append(judged.error(forecast))
    return {way: np.array(one) for way, one in found.items()}


def _solved_without_each(
    taught: Mapping[str, _Windows],
    designs: Mapping[str, NDArray[np.float32]],
    targets: Mapping[str, Floats],
) -> dict[str, Floats]:
    """Return for each device the coefficients that all others have after the last pass, ``(W,)``."""
    noises = {name: _noise(one.rows, targets[name]) for name, one in taught.items()}
    coefficients: Floats | None = None
    sums: dict[str, Statistic] = {}
    before = coefficients
    for number in range(PASSES):
        for name, design in designs.items():
            stages = np.zeros(len(design), np.int64)
            made = stage_statistics(
                design, targets[name], stages, coefficients, LOSS, noise=noises[name]
            )
            if made:
                sums[name] = made[0]
        if not sums:  # every load is far beyond its level
            return {name: np.zeros(design.shape[1]) for name, design in designs.items()}
        is_between = 0 < number < PASSES - 1
        before = coefficients
        coefficients = next_coefficients(
            before, {0: total(sums)}, PENALTY, stages=1, step=RELAXATION if is_between else 1.0
        )
    whole = total(sums)
    of_all = next_coefficients(before, {0: whole}, PENALTY, stages=1)[0]
    return {
        name: next_coefficients(before, {0: whole - sums[name]}, PENALTY, stages=1)[0]
        if name in sums
        else of_all
        for name in designs
    }


def _noise(rows: ProfileRows, targets: Floats) -> float:
    """Return the mean error of last week's slot, in levels; 1 where none is known."""
    missed = naive_noise(rows, targets)
    seen = np.isfinite(missed)
    return max(float(missed[seen].mean()), 1e-3) if seen.any() else 1.0


def _strength(
    designs: Mapping[str, NDArray[np.float32]],
    targets: Mapping[str, Floats],
    others: Mapping[str, Floats] | None,
) -> float:
    """Return the strength that is best on the newest quarter of some devices' windows."""
    names = list(designs)
    losses = []
    for name in names[:: 1 + (len(names) - 1) // CHOOSERS]:
        design, left = designs[name], targets[name]
        if others is not None:
            left = left - _forecast(design, others[name])
        is_known = np.arange(len(design)) < 3 * len(design) // 4
        losses.append(
            strength_losses(design, left, is_known, LOSS, strengths=STRENGTHS, passes=2)[None]
        )
    return float(best_strengths(np.array(losses), STRENGTHS)[0])


def _site(record: DeviceRecord, step: int, test: int) -> _Site:
    day = DAY // step
    local = _local(record, step)
    origins = np.arange(DAYS * day + HOUR // step, len(record.values) - day) - 1
    origins = origins[local[origins + 1] % (DAY // 4) == 0]
    known = np.isfinite(record.values)
    half = np.concatenate([[0], np.cumsum(known)])
    has_day = half[origins + 1] - half[origins + 1 - day] > day // 2
    has_truth = half[origins + 1 + day] - half[origins + 1] > day // 2
    origins = origins[has_day & has_truth]
    early, late = origins[origins + day < test], origins[origins + 1 >= test]
    return _Site(record.values, local, step, early, _evenly(late, JUDGED))


def _local(record: DeviceRecord, step: int) -> Ints:
    """Return wall-clock seconds of every row and of those of a day after, from slots and weekdays."""
    at = record.start + step * np.arange(len(record.values), dtype=np.int64)
    moved = (record.slots * step - at + DAY // 2) % DAY - DAY // 2
    other = ((at + moved) // DAY + 3) % 7 != record.weekdays  # a zone 12 hours ahead or more
    moved = moved + DAY * other
    later = at[-1:] + step * np.arange(1, DAY // step + 1)
    return np.concatenate([at + moved, later + moved[-1:]])


def _evenly(rows: Ints, most: int) -> Ints:
    """Return at most so many rows, at distances that visit every time of the day."""
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])


def _forecast(design: NDArray[np.float32], coefficients: Floats) -> Floats:
    return np.asarray(design @ coefficients.astype(np.float32), np.float64)


def _mean_squares(rows: ProfileRows) -> Floats:
    flat = rows.design.reshape(-1, len(rows.names))
    return np.asarray((flat.astype(np.float64) ** 2).mean(axis=0))


def _ratios(one: Floats, base: Floats) -> Floats:
    good = base > 0.0
    return np.asarray(one[good] / base[good])


def _mean_ratio(one: Floats, base: Floats) -> float:
    ratios = _ratios(one, base)
    return float(ratios.mean()) if len(ratios) else float("nan")


def tomorrow_verdict(found: TomorrowComparison) -> list[str]:
    """Return the sentences of tomorrow and of the first days, the answer first."""
    best = min((LAST_WEEK, AVERAGE, ALONE), key=lambda way: found.relative(way, AVERAGE))
    better, worse = found.better(FLEET, best)
    gains = [
        f"{_words(found.relative(FLEET, way) - 1.0)} than by {_NAMES[way]}"
        for way in dict.fromkeys((AVERAGE, best))
    ]
    days = next((d for d in KNOWN if found.after(d)[1] <= 1.0), None)
    count = f"better on {better} of {len(found.devices)} devices, worse on {worse}"
    return [
        f"With a fleet the error of tomorrow's 24 hours is {' and '.join(gains)} ({count}).",
        (
            f"A new device forecasts as well after {days} day{'s' * (days > 1)} with the fleet as after"
            f" {DAYS} days by its average day."
            if days is not None
            else f"A new device with a fleet is never as good as with {DAYS} days by its average day."
        ),
    ]


def tomorrow_table(found: TomorrowComparison) -> str:
    """Return the errors of tomorrow by way, and those of a new device by its days of history."""
    pairs = [found.after(days) for days in found.first]
    lines = [
        f"{'tomorrow, 24 hours':22}{'to the average day':>20}",
        *(f"{way:22}{found.relative(way, AVERAGE):20.3f}" for way in found.errors),
        "",
        f"{'days of history':22}" + "".join(f"{days:>8} d" for days in found.first),
        f"{AVERAGE:22}" + "".join(f"{own:10.3f}" for own, _ in pairs),
        f"{FLEET:22}" + "".join(f"{helped:10.3f}" for _, helped in pairs),
    ]
    return "\n".join(lines)


def tomorrow_json(found: TomorrowComparison) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "verdict": tomorrow_verdict(found),
        "relative_to_average_day": {way: found.relative(way, AVERAGE) for way in found.errors},
        "devices": [
            {"device": name, "mae": {way: float(e[i]) for way, e in found.errors.items()}}
            for i, name in enumerate(found.devices)
        ],
        "first_days": {
            str(days): dict(zip((AVERAGE, FLEET), found.after(days), strict=True))
            for days in found.first
        },
    }


def _words(relative: float) -> str:
    return f"{abs(100 * relative):.1f} % {'smaller' if relative <= 0 else 'larger'}"
