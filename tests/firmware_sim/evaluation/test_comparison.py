"""The comparison on fleets whose right answer is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from firmware_sim.evaluation.comparison import WAYS, compare
from firmware_sim.evaluation.page import page
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords
from firmware_sim.evaluation.tables import TableError
from firmware_sim.evaluation.verdict import as_json, table, verdict

DAY = 24


def home(name, seed, days, noise=0.2):
    """A home: the fleet's daily and weekly shape, its own size, and noise."""
    rng = np.random.default_rng(seed)
    rows = np.arange(days * DAY)
    shape = np.sin(2 * np.pi * rows / DAY) + 0.5 * np.cos(4 * np.pi * rows / DAY)
    shape = shape + 0.8 * (rows // DAY % 7 >= 5)
    values = (1.0 + seed % 3) * (3.0 + shape + noise * rng.normal(size=len(rows)))
    return DeviceRecord(name, 0, values, rows % DAY, rows // DAY % 7)


def fleet(count=6, days=60, **options):
    return FleetRecords([home(f"h{k}", k, days, **options) for k in range(count)], 3600, "UTC", [])


def test_every_way_is_scored_on_the_same_windows_and_learning_beats_repeating():
    found = compare(fleet(), 24)
    assert [score.device for score in found.scores] == [f"h{k}" for k in range(6)]
    assert {score.windows for score in found.scores} == {15 * DAY - 24}
    assert found.relative("last value") == found.relative("yesterday")
    assert found.relative("personal") < 0.85 < found.relative("last week") == 1.0
    assert found.best in {"fleet", "personal"}


def test_a_short_record_gains_from_the_fleet():
    found = compare(fleet(count=8, days=90, noise=0.5), 24, cold=(7, 14))
    alone, helped = found.cold[7]
    assert helped < 0.95 * alone
    assert list(found.cold) == [7, 14]


def test_no_forecast_depends_on_later_readings():
    records = fleet(count=3)
    before = compare(records, 1, cold=())
    changed = [replace(d, values=d.values.copy()) for d in records.devices]
    for record in changed:
        record.values[-DAY:] = 1e6
    after = compare(FleetRecords(changed, 3600, "UTC", []), 1, cold=())
    for one, two in zip(before.examples, after.examples, strict=True):
        np.testing.assert_array_equal(one.personal[: -DAY + 1], two.personal[: -DAY + 1])
        assert not np.array_equal(one.personal, two.personal)


def test_missing_readings_are_neither_learnt_nor_judged():
    records = fleet(count=3)
    records.devices[0].values[-100:-50] = np.nan
    records.devices[0].values[200:260] = np.nan
    found = compare(records, 1, cold=())
    assert found.scores[0].windows < found.scores[1].windows
    assert all(np.isfinite(v) for score in found.scores for v in score.mae.values())


def test_a_record_that_is_too_short_for_a_horizon_is_refused():
    with pytest.raises(TableError, match="no device has 100 windows") as error:
        compare(fleet(days=8), 7 * DAY)
    assert "--ahead" in error.value.hint


def test_the_texts_say_who_gains_and_the_page_escapes_names():
    records = fleet(count=3)
    records.devices[0] = replace(records.devices[0], device="<script>")
    found = compare(records, 1, cold=(7,))
    lines = verdict(found, records)
    assert lines[0].startswith("1 h ahead: ")
    assert "of 3 devices gain more than 1 %" in " ".join(lines)
    assert "h1" in table(found, records)
    text = page([found], records, "a & b")
    assert "<script>" not in text
    assert "a &amp; b" in text
    data = json.loads(json.dumps(as_json([found], records)))
    assert set(data["horizons"][0]["relative_to_last_week"]) == set(WAYS)
