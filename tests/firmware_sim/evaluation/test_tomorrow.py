"""Tomorrow's 24 hours and the first days of a new device, compared on a fleet of one rhythm."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from firmware_sim.evaluation import tomorrow
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords, _calendar
from firmware_sim.evaluation.tomorrow import (
    ALONE,
    AVERAGE,
    FLEET,
    KNOWN,
    LAST_WEEK,
    compare_tomorrow,
    tomorrow_json,
    tomorrow_table,
    tomorrow_verdict,
)

BEGUN = 1_735_689_600  # 1 January 2025, a Wednesday


def home(name, seed, days=100, step=3600, zone="UTC"):
    """A load with working days, weekends, and a level that wanders as a temperature does."""
    rng, rows = np.random.default_rng(seed), np.arange(days * 86_400 // step)
    slots, weekdays = _calendar(BEGUN, len(rows), step, zone)
    turn = 2.0 * np.pi * slots * step / 86_400
    shape = 1.0 + np.where(weekdays < 5, np.maximum(np.sin(turn), 0.0), 0.3)
    level = np.repeat(np.exp(0.3 * np.cumsum(rng.normal(size=days) * 0.3)), 86_400 // step)
    values = (seed + 1.0) * shape * level[: len(rows)] * np.exp(0.05 * rng.normal(size=len(rows)))
    return DeviceRecord(name, BEGUN, values, slots, weekdays)


def fleet(count=5, **options):
    step = options.get("step", 3600)
    devices = [home(f"d{i}", i, **options) for i in range(count)]
    return FleetRecords(devices, step, "UTC", [])


@pytest.mark.slow
def test_a_fleet_is_better_than_the_average_day_and_the_first_days_gain_most():
    parts = []
    found = compare_tomorrow(fleet(), on_part=lambda *seen: parts.append(seen))
    assert parts == [(i, len(KNOWN)) for i in range(1, len(KNOWN) + 1)]
    assert found.devices == ("d0", "d1", "d2", "d3", "d4")
    assert set(found.errors) == {LAST_WEEK, AVERAGE, ALONE, FLEET}
    assert found.relative(FLEET, AVERAGE) < 0.9
    assert found.relative(FLEET, ALONE) < 1.02
    own, helped = found.after(3)
    assert helped < own
    assert found.after(28)[0] == pytest.approx(1.0)
    lines = tomorrow_verdict(found)
    assert lines[0].startswith("With a fleet the error of tomorrow's 24 hours is ")
    assert "smaller than by each device's average day" in lines[0]
    assert " of 5 devices, worse on " in lines[0]
    assert lines[1].startswith("A new device forecasts as well after ")
    assert tomorrow_table(found).splitlines()[1].startswith("last week")
    data = json.loads(json.dumps(tomorrow_json(found)))
    assert list(data["first_days"]) == [str(days) for days in KNOWN]
    assert data["devices"][0]["mae"][FLEET] == pytest.approx(found.errors[FLEET][0])


def test_a_fleet_that_does_not_help_is_said_to_be_worse():
    same = np.ones(2)
    found = tomorrow.TomorrowComparison(
        ("a", "b"),
        {LAST_WEEK: 0.9 * same, AVERAGE: same, ALONE: 0.95 * same, FLEET: 1.1 * same},
        dict.fromkeys(KNOWN, (same, 1.1 * same)),
    )
    first, second = tomorrow_verdict(found)
    assert "10.0 % larger than by each device's average day" in first
    assert "22.2 % larger than by last week's same hours" in first
    assert "better on 0 of 2 devices, worse on 2" in first
    assert (
        second == "A new device with a fleet is never as good as with 28 days by its average day."
    )


@pytest.mark.parametrize("days", [1, 7, 28])
def test_a_window_has_its_known_days_alone(days):
    record = home("a", 1)
    origins = np.array([60 * 24 - 1])
    site = tomorrow._site(record, 3600, 90 * 24)
    before = site.windows(origins, days)
    hidden = np.arange(len(record.values))
    hidden = (hidden > origins[0]) | (hidden <= origins[0] - days * 24 - 1)
    changed = replace(site, values=np.where(hidden, 99.0, record.values))
    after = changed.windows(origins, days)
    assert np.array_equal(before.rows.design, after.rows.design)
    assert before.rows.known.tolist() == [days]
    assert not np.array_equal(before.truth, after.truth)


def test_test_days_teach_nothing():
    records = fleet(3)
    site = tomorrow._site(records.devices[0], 3600, 75 * 24)
    assert site.learn.max() + 24 < 75 * 24 <= site.judge.min() + 1
    assert {int(one) for one in site.local[site.judge + 1] % 86_400} == {0, 21_600, 43_200, 64_800}


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles", "Asia/Kolkata"])
def test_the_wall_clock_is_that_of_the_zone(zone):
    record = home("a", 1, days=200, zone=zone)
    local = tomorrow._local(record, 3600)
    rows = len(record.values)
    assert len(local) == rows + 24
    assert np.array_equal(local[:rows] % 86_400 // 3600, record.slots)
    assert np.array_equal((local[:rows] // 86_400 + 3) % 7, record.weekdays)
    moved = local[:rows] - record.start - 3600 * np.arange(rows)
    assert moved.min() >= -9 * 3600
    assert moved.max() <= 14 * 3600


def test_gaps_are_neither_learned_nor_judged():
    records = fleet(3)
    values = records.devices[0].values.copy()
    values[40 * 24 : 43 * 24] = values[85 * 24 : 88 * 24] = np.nan
    records.devices[0] = replace(records.devices[0], values=values)
    found = compare_tomorrow(records)
    assert all(np.isfinite(one).all() for one in found.errors.values())


@pytest.mark.parametrize("options", [{"step": 7200}, {"days": 33}, {"count": 1}])
def test_records_that_are_too_short_or_coarse_are_not_compared(options):
    assert compare_tomorrow(fleet(**options)) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [(0,), (0, 1, 2)])
def test_a_load_of_zeros_and_one_far_beyond_its_level_do_no_harm(odd):
    records = fleet(3)
    for place in odd:
        values = np.zeros(len(records.devices[place].values))
        if place == 1:
            values[::24], values[75 * 24 :] = 1e-6, 1e6
        records.devices[place] = replace(records.devices[place], values=values)
    found = compare_tomorrow(records)
    assert all(np.isfinite(one).all() for one in found.errors.values())
    assert tomorrow_verdict(found)
