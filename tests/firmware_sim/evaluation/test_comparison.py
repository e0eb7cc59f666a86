"""The comparison on fleets whose right answer is known."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from edge_sdk.extensions.analytic.personal import fit_personal
from firmware_sim.evaluation import closed_form, networks
from firmware_sim.evaluation.comparison import (
    FEDERATED,
    LOCAL,
    REPEATED,
    SERVED,
    WAYS,
)
from firmware_sim.evaluation.comparison import compare as compare_all
from firmware_sim.evaluation.page import page
from firmware_sim.evaluation.records import DeviceRecord, FleetRecords
from firmware_sim.evaluation.tables import TableError
from firmware_sim.evaluation.verdict import as_json, table, verdict
from firmware_sim.evaluation.windows import MOST_LEARNED, thinned

DAY = 24
compare = partial(compare_all, is_quick=True)


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
    assert found.best in {"fleet", "personal", "served"}
    assert found.ways == (*REPEATED, "alone", "personal", "fleet", SERVED)


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
        np.testing.assert_array_equal(one.served[: -DAY + 1], two.served[: -DAY + 1])
        assert not np.array_equal(one.served, two.served)


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
    assert [line.split("  ")[0] for line in table(found, records).splitlines()][2:9] == [
        *found.ways
    ]
    text = page([found], records, "a & b")
    assert "<script>" not in text
    assert "a &amp; b" in text
    data = json.loads(json.dumps(as_json([found], records)))
    assert list(data["horizons"][0]["relative_to_last_week"]) == list(found.ways)
    assert data["horizons"][0]["devices"][0]["serves"] in found.served_by


@pytest.fixture
def few_rounds(monkeypatch):
    monkeypatch.setattr(networks, "STAGES", ((6, 2e-3), (2, 5e-4)))


@pytest.mark.usefixtures("few_rounds")
def test_networks_are_trained_alone_and_as_a_fleet_and_their_bytes_are_counted():
    rounds = []
    found = compare_all(fleet(count=3), 1, cold=(), on_round=lambda *seen: rounds.append(seen))
    assert {"local net", "FedAvg", "PL-FL"} < set(found.ways) <= set(WAYS)
    assert rounds[-1] == ("PL-FL", 8, 8)
    assert len([seen for seen in rounds if seen[0] in networks.NETWORKS]) == 24
    assert ("regressions, own model of each device", 3, 3) in rounds
    assert found.relative("PL-FL") < found.relative("last value")
    whole = found.traffic["FedAvg"][0]
    assert found.traffic["PL-FL"][0] < whole == 8 * 4 * 9514
    assert "network: bundle load-week-1, 8 rounds" in found.notes
    assert found.federated in FEDERATED
    assert found.local in LOCAL


@pytest.mark.usefixtures("few_rounds")
def test_a_step_without_a_bundle_is_compared_without_networks_and_says_so():
    rows = np.arange(40 * 12)
    values = 3 + np.sin(2 * np.pi * rows / 12) + np.random.default_rng(0).normal(size=len(rows)) / 5
    records = FleetRecords(
        [DeviceRecord("a", 0, values, rows % 12, rows // 12 % 7)], 7200, "UTC", []
    )
    found = compare_all(records, 1, cold=())
    assert "FedAvg" not in found.ways
    assert any("no shipped bundle forecasts 2 h ahead in steps of 2 h" in n for n in found.notes)


def test_without_lightgbm_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(networks, "STAGES", ((1, 1e-3),))
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    found = compare_all(fleet(count=2), 1, cold=())
    assert "LightGBM" not in found.ways
    assert any("pip install 'gridfed[compare]'" in note for note in found.notes)


@pytest.mark.usefixtures("few_rounds")
def test_lightgbm_is_a_mark_and_never_the_answer():
    pytest.importorskip("lightgbm", reason="a centralised mark (extra: compare)")
    found = compare_all(fleet(count=3), 1, cold=())
    assert found.ways[-1] == "LightGBM"
    assert found.relative("LightGBM") < found.relative("last value")
    assert found.best != "LightGBM"
    assert "in one place" in " ".join(verdict(found, fleet(count=3)))


def test_where_nothing_can_be_learned_the_answer_says_that_neither_fleet_nor_device_should():
    """Of a random walk the last reading is the best forecast that there is."""
    rng, rows = np.random.default_rng(4), np.arange(60 * DAY)
    walks = [
        DeviceRecord(
            f"d{i}", 0, 1e3 + np.cumsum(rng.normal(size=len(rows))), rows % DAY, rows // DAY % 7
        )
        for i in range(4)
    ]
    records = FleetRecords(walks, 3600, "UTC", [])
    found = compare(records, 1, cold=(7,), is_quick=True)
    answer = verdict(found, records)[0]
    assert answer == (
        "1 h ahead: neither a fleet nor a model of its own helps these devices:"
        " repeating the last value is as good."
    )
    assert answer in page([found], records, "walks")


def test_the_gate_serves_no_fleet_model_that_held_back_days_show_to_be_worse():
    """Seven equal homes and one that lives the other way round: its gate leaves the fleet."""
    records = fleet(count=7, noise=0.05)
    rows = np.arange(60 * DAY)
    odd = 5.0 + 3.0 * (rows // 7 % 2) + np.random.default_rng(9).normal(size=len(rows)) / 10
    records.devices.append(DeviceRecord("odd", 0, odd, rows % DAY, rows // DAY % 7))
    found = compare(records, 1, cold=())
    score = next(s for s in found.scores if s.device == "odd")
    assert score.mae["served"] <= 1.01 * min(score.mae["alone"], score.mae[found.federated])


def test_the_penalty_is_chosen_over_seasons_where_the_record_is_long(monkeypatch):
    given = []

    def spy(*args, days, **options):
        given.append(days)
        return fit_personal(*args, days=days, **options)

    monkeypatch.setattr(closed_form, "fit_personal", spy)
    compare(fleet(count=2, days=260), 1, cold=(7,))
    assert max(given) == pytest.approx(260 - 56)
    assert min(given) == pytest.approx(7)


def test_a_long_record_is_thinned_over_its_whole_length_and_every_slot_of_the_day():
    rows = np.arange(96 * 365)
    found = thinned(rows, 15_000)
    assert len(found) == MOST_LEARNED
    assert (found[0], found[-1]) == (0, rows[-1])
    assert np.diff(found).max() <= 3
    assert len(np.unique(found % 96)) == 96
    assert np.bincount(found % 96).min() > 100
