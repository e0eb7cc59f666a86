"""The served forecast: chosen on values that no model had learned, kept over restarts, never sent."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.extensions.choice.candidates import SOURCES
from edge_sdk.extensions.choice.combination import (
    BLEND,
    CANDIDATES,
    FLEET_TREES,
    LAST_DAY,
    LAST_WEEK,
    OWN,
    TREES,
)
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice
from edge_sdk.extensions.choice.saved_selection import (
    BOOSTED_MODEL,
    GOOD_MODEL,
    OWN_MODEL,
    SELECTION,
    TUNED_MODEL,
    DeviceCandidates,
    compared,
)
from edge_sdk.extensions.evaluation.forecast import result_of
from edge_sdk.forecasting.forecast import FLEET, TUNED
from edge_sdk.forecasting.series import Reading
from tests.edge_sdk.days import BEGUN, DAY, NEAR, STREAM, live, load, observe


def served_errors(client, first, days):
    """Forecast every hour of some days as a user would, and return the absolute errors."""
    errors = []
    for hour in range(first * DAY, (first + days) * DAY):
        told = client.forecast()
        assert told.times[0] == BEGUN + hour * 3600
        errors.append(abs(float(told.values[0]) - load(hour)))
        observe_hour(client, hour)
    return np.array(errors)


def observe_hour(client, hour):
    client.observe(Reading(STREAM, BEGUN + hour * 3600, load(hour)))


@pytest.mark.slow
def test_a_federation_that_makes_a_device_worse_is_not_served(make):
    """Issue 13: within 1 % of the better of alone and naive, where the common model is far worse."""
    errors = {}
    for name, gate in (("gate", True), ("none", False)):
        fleet = make(name, forecast={"choose_best": gate})
        client = fleet.device.start()
        observe(client, 14)
        live(fleet, 14, 21)
        errors[name] = served_errors(client, 35, 7).mean()
        if gate:
            choice = client.extension("choice").candidates.selection.choice
            held = dict(choice.errors)
            assert choice.days >= 14
            best = min(held[OWN], held[LAST_DAY], held[LAST_WEEK])
            assert held[choice.name] <= 1.01 * best
            assert held[FLEET] > 3 * best
            models = client.extension("choice").candidates.models(client.learner, client.state)
            p, frame = client.learner.vector(client.state), client.learner.frame()
            later = frame.origins()[-7 * DAY :]
            fans = dict(zip(CANDIDATES, models.fans(p, frame, later), strict=True))
            alone = {
                name: np.nanmean(np.abs(fans[name][:, :, 0] - frame.truth(later)))
                for name in (OWN, LAST_DAY, LAST_WEEK)
            }
            assert errors[name] <= 1.01 * min(alone.values())
    assert errors["gate"] < 0.2 * errors["none"]


def test_where_the_common_model_is_good_it_stays(make):
    """The newest value repeated is the best forecast of a random walk."""
    fleet = make()
    client = fleet.device.start()

    steps = 50.0 + np.cumsum(np.random.default_rng(5).normal(size=2000))

    def walk(hour):
        return float(steps[hour])

    w = np.array([0, 0, 0, 1], np.float32)
    observe(client, 10, value=walk)
    fleet.run()
    client._active.adopt(replace(client.state, p=np.append(w, np.float32(0.0))))
    live(fleet, 10, 15, w=w, value=walk)
    choice = client.extension("choice").candidates.selection.choice
    assert choice.days >= 7
    assert choice.name in {FLEET, TUNED}
    assert choice.errors[LAST_DAY] > 2 * choice.errors[choice.name]


def test_with_almost_no_history_the_fleets_model_is_served(fleet):
    client = fleet.device.start()
    observe(client, 3)
    live(fleet, 3, 3)
    assert client.status()["forecast"]["served"] == FLEET
    assert client.status()["forecast"]["days compared"] < 7
    assert client.forecast().source == "model"


def test_values_count_only_if_they_came_after_the_training_before(fleet):
    client = fleet.device.start()
    observe(client, 10)
    live(fleet, 10, 4)
    table = client.extension("choice").candidates.selection.table
    days = (BEGUN // 86_400 + np.array([11, 12, 13])).tolist()
    assert table.days.tolist() == days  # nothing of the record before, nor of the first training
    assert table.counts.tolist() == [[DAY]] * 3


@pytest.mark.slow
def test_the_choice_survives_a_restart_and_a_power_cut(fleet):
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 21)
    before = client.extension("choice").candidates.selection
    assert before.choice.name != FLEET
    told = client.forecast()
    client.flush()
    fleet.device.kill()
    again = fleet.device.start()
    kept = again.extension("choice").candidates.selection
    assert kept.choice == before.choice
    assert np.array_equal(kept.table.sums, before.table.sums, equal_nan=True)
    assert np.array_equal(again.forecast().values, told.values)
    assert again.forecast().source == told.source


@pytest.mark.parametrize("damage", [b"rust", b"gfl1" + bytes(40)])
def test_a_damaged_record_begins_anew_with_the_fleets_model(fleet, damage, caplog):
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 10)
    client.flush()
    names = (SELECTION, TUNED_MODEL, OWN_MODEL, BOOSTED_MODEL, GOOD_MODEL)
    for name in names:
        client._store.file_paper(name, damage)
    fleet.device.kill()
    again = fleet.device.start()
    found = again.extension("choice").candidates
    assert (found.tuned, found.own, found.boosted) == (None, None, None)
    refused = [r.getMessage() for r in caplog.records if "saved record refused" in r.getMessage()]
    assert len(refused) == len(names)
    assert again.status()["forecast"]["served"] == FLEET
    assert again.forecast().source == "model"


def test_it_is_chosen_again_after_a_week_of_readings(fleet):
    client = fleet.device.start()
    steps = 50.0 + np.cumsum(np.random.default_rng(5).normal(size=24 * DAY))
    newest = {"w": np.array([0, 0, 0, 1], np.float32), "value": lambda hour: float(steps[hour])}
    observe(client, 14, value=newest["value"])
    live(fleet, 14, 1, **newest)
    first = client.extension("choice").candidates.selection.judged_row
    live(fleet, 15, 5, **newest)
    assert client.extension("choice").candidates.selection.judged_row == first
    live(fleet, 20, 3, **newest)
    assert client.extension("choice").candidates.selection.judged_row > first
    assert client.extension("choice").candidates.selection.monitor.alarms == 0


def test_a_gross_model_is_left_after_two_days(fleet, caplog):
    """Without the alarm it would be served for a week: no candidate is compared on fewer days."""
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 5)
    selection = client.extension("choice").candidates.selection
    assert selection.monitor.alarms == 1
    assert selection.choice.days < 7
    assert selection.choice.name not in {FLEET, TUNED}
    assert [r for r in caplog.records if "forecast has become worse" in r.getMessage()]
    assert client.status()["forecast"]["monitor"]["alarms"] == 1
    client.flush()
    fleet.device.kill()
    again = fleet.device.start().extension("choice").candidates.selection
    assert again.monitor.leaves()["sums"] == selection.monitor.leaves()["sums"]
    assert again.monitor.since == selection.monitor.since > 0


def test_days_are_scored_also_without_rounds(fleet):
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 1)
    for day in range(15, 19):
        observe(client, 1, first=day)
        fleet.clock.at += 100.0
        fleet.run(3)
    days = client.extension("choice").candidates.selection.monitor.scores.days
    assert days.tolist() == (BEGUN // 86_400 + np.arange(15, 19)).tolist()


def test_a_change_is_logged_with_both_errors(fleet, caplog):
    client = fleet.device.start()
    observe(client, 14)
    with caplog.at_level(logging.INFO):
        live(fleet, 14, 21)
    (line,) = {r.getMessage() for r in caplog.records if "forecast chosen" in r.getMessage()}
    assert "before=fleet" in line
    assert "fleet=" in line


def test_with_a_part_held_back_the_choice_needs_no_waiting(make):
    fleet = make(training={"holdout_fraction": 0.2})
    client = fleet.device.start()
    observe(client, 100)
    live(fleet, 100, 1)
    choice = client.extension("choice").candidates.selection.choice
    assert choice.days >= 7
    assert choice.name != FLEET


@pytest.mark.parametrize("own_model", [True, False])
def test_an_old_record_counts_at_the_first_choice(make, own_model):
    """Issue 32: 80 days of readings, an own model of half the fleet's error, and the fleet's was served."""
    fleet = make(forecast={"trees": False, "own_model": own_model})
    client = fleet.device.start()
    observe(client, 80)
    live(fleet, 80, 1)
    selection = client.extension("choice").candidates.selection
    choice = selection.choice
    assert choice.days == 21  # a quarter of the record, which begins within a day
    assert (OWN in choice.errors) == own_model
    assert TUNED not in choice.errors  # it was chosen by these days
    assert choice.errors[choice.name] < 0.2 * choice.errors[FLEET]
    assert choice.used & {LAST_DAY, LAST_WEEK, OWN}
    assert client.forecast().source == SOURCES[choice.name]
    live(fleet, 81, 8)
    table = client.extension("choice").candidates.selection.table
    assert table.days[-8:].tolist() == (BEGUN // 86_400 + np.arange(81, 89)).tolist()


def test_switched_off_nothing_is_compared_or_tuned(make):
    fleet = make(forecast={"choose_best": False})
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 10)
    assert client.status()["forecast"] == {
        "served": FLEET,
        "why": "switched off: forecast.choose_best = false",
    }
    assert client._store.paper(SELECTION) is None
    assert client._store.paper(TUNED_MODEL) is None


def test_an_interval_below_an_hour_is_refused(make):
    with pytest.raises(SettingsError, match=r"choice_interval: 5m is below 1h"):
        make(forecast={"choice_interval": "5m"})


def test_a_person_reads_what_is_served_and_why(fleet):
    client = fleet.device.start()
    observe(client, 14)
    choice = ForecastChoice(LAST_DAY, {LAST_DAY: 1.0}, {FLEET: 2.0, LAST_DAY: 0.5}, 12)
    forecast = client.forecast()
    found = result_of(forecast, compared(choice, forecast.unit, len(forecast.times)))
    assert found.data["candidates"] == {FLEET: 2.0, LAST_DAY: 0.5}
    assert found.text.splitlines()[-3:] == [
        "held-back error of 12 days, kWh:",
        "  last day        0.5  served",
        "  fleet           2",
    ]
    json.dumps(found.data)


# --- trees and blend ----------------------------------------------------------------------------------


def steps_of_work(hour):
    """A load that is high on working days from 9 to 17 after a cold night."""
    cold = np.random.default_rng(hour // DAY).integers(0, 2)
    is_on = 9 <= hour % DAY < 17 and hour // DAY % 7 < 5 and cold
    noise = 0.05 * np.random.default_rng(10_000 + hour).normal()
    return float(2.0 + 0.5 * cold * (hour % DAY < 6) + 4.0 * is_on + noise)


def with_trees(make, name="trees", **forecast):
    fleet = make(name, training={"holdout_fraction": 0.2}, forecast=forecast)
    client = fleet.device.start()
    observe(client, 120, value=steps_of_work)
    live(fleet, 120, 1, w=NEAR, value=steps_of_work)
    return fleet, client


def test_trees_are_served_where_they_were_best(make):
    _, client = with_trees(make)
    choice = client.extension("choice").candidates.selection.choice
    assert choice.used & {TREES, FLEET_TREES, BLEND}
    without = {name: choice.errors[name] for name in (FLEET, OWN, LAST_DAY, LAST_WEEK)}
    assert choice.errors[choice.name] < 0.9 * min(without.values())
    assert client.forecast().source == SOURCES[choice.name]
    assert client.status()["counts"]["trees fitted"] == 1
    assert client.status()["forecast"]["served"] == choice.name


def test_without_trees_by_configuration_nothing_is_fitted(make):
    _, client = with_trees(make, trees=False)
    choice = client.extension("choice").candidates.selection.choice
    assert not {TREES, FLEET_TREES, BLEND} & {*choice.errors}
    assert client._store.paper(BOOSTED_MODEL) is None
    assert "trees fitted" not in client.status()["counts"]


@pytest.mark.slow
def test_trees_survive_a_power_cut_and_are_not_grown_again(make):
    fleet, client = with_trees(make)
    told, choice = client.forecast(), client.extension("choice").candidates.selection.choice
    client.flush()
    fleet.device.kill()
    again = fleet.device.start()
    assert again.extension("choice").candidates.selection.choice == choice
    assert np.array_equal(again.forecast().values, told.values)
    live(fleet, 121, 1, w=NEAR, value=steps_of_work)
    assert "trees fitted" not in again.status()["counts"]
    live(fleet, 122, 8, w=NEAR, value=steps_of_work)
    assert again.status()["counts"]["trees fitted"] == 1


def test_without_the_memory_for_trees_the_choice_is_made_without_them(make, monkeypatch, caplog):
    def no_memory(*_args):
        raise MemoryError("64 MiB")

    monkeypatch.setattr("edge_sdk.extensions.analytic.boosting.fit_trees", no_memory)
    _, client = with_trees(make)
    choice = client.extension("choice").candidates.selection.choice
    assert choice.days >= 7
    assert OWN in choice.errors
    assert TREES not in choice.errors
    assert "trees not fitted" in caplog.text


def test_trees_that_lead_astray_on_held_back_days_are_not_served(make):
    """The load changes its kind at the held-back days: what was learned before is wrong there."""

    def changed(hour):
        return steps_of_work(hour) if hour < 96 * DAY else 3.0 + 0.01 * (hour % DAY)

    fleet = make(training={"holdout_fraction": 0.2})
    client = fleet.device.start()
    observe(client, 120, value=changed)
    live(fleet, 120, 1, w=NEAR, value=changed)
    choice = client.extension("choice").candidates.selection.choice
    assert choice.errors[TREES] > 2 * choice.errors[choice.name]
    assert 0.99 * choice.errors[choice.name] <= min(choice.errors.values())
    assert not choice.used & {TREES, FLEET_TREES, BLEND}


TREES_KILLED = """
import os, signal, sys
from pathlib import Path
from edge_sdk import client as client_module
from edge_sdk.extensions.analytic import boosting
from tests.edge_sdk.conftest import NumpyBundle, make_fleet
from tests.edge_sdk.days import NEAR, live, observe
from tests.edge_sdk.extensions.choice.test_forecast_selection import steps_of_work
client_module.open_bundle = lambda _config, _announced: NumpyBundle()
fleet = make_fleet(Path(sys.argv[1]), forecast={"choice_interval": "2d"})
client = fleet.device.start()
observe(client, 30, value=steps_of_work)
live(fleet, 30, 1, w=NEAR, value=steps_of_work)
client.flush()
print(client.extension("choice").candidates.boosted.row, flush=True)
batches = []
def between():
    batches.append(1)
    if client._agenda.current is None and fits:
        os.kill(os.getpid(), signal.SIGKILL)
fits = []
grow = boosting.fit_trees
def growing(*args):
    fits.append(1)
    return grow(*args)
boosting.fit_trees = growing
client.learner.between_batches = between
live(fleet, 31, 4, w=NEAR, value=steps_of_work)
print("not killed", flush=True)
"""


@pytest.mark.slow
def test_killed_while_trees_grow_the_last_ones_are_in_use(tmp_path, numpy_bundle, make):
    folder = tmp_path / "killed"
    ended = subprocess.run(
        [sys.executable, "-c", TREES_KILLED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[4],
        timeout=120,
    )
    assert ended.returncode == -9, ended.stderr
    (row,) = ended.stdout.split()
    client = make("killed").device.start()
    assert client.extension("choice").candidates.boosted.row == int(row)
    assert client.extension("choice").candidates.boosted.model.windows > 0


# --- fine-tuning --------------------------------------------------------------------------------------


def test_a_tuned_copy_is_kept_where_the_held_back_tail_says_that_it_helps(fleet):
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 1, w=NEAR)
    tuned = client.extension("choice").candidates.tuned
    assert tuned.p is not None
    assert tuned.after < tuned.before
    assert client.status()["counts"]["models tuned"] == 1
    assert not np.array_equal(tuned.p, client.learner.vector(client.state))


def test_a_copy_that_does_not_help_is_discarded(make):
    fleet = make(fine_tuning={"rate": 1.0, "steps": 4})  # every step overshoots
    client = fleet.device.start()
    observe(client, 14)
    x = np.array([[load(h) for h in range(i, i + 4)] + [1.0] for i in range(14 * DAY - 4)])
    y = np.array([load(h) for h in range(4, 14 * DAY)])
    best = np.linalg.lstsq(x, y, rcond=None)[0][:4].astype(np.float32)
    live(fleet, 14, 1, w=best)
    tuned = client.extension("choice").candidates.tuned
    assert tuned.p is None
    assert tuned.before == tuned.after
    assert (
        TUNED
        not in client.extension("choice").candidates.models(client.learner, client.state).available
    )


def test_the_tuned_copy_is_served_and_no_update_changes_by_it(make):
    """Two devices of the same life, one that tunes and one that does not, send the same bytes."""
    blobs, sources = [], []
    for name, enabled in (("tunes", True), ("does not", False)):
        fleet = make(
            name,
            fine_tuning={"enabled": enabled, "min_interval": "1h"},
            forecast={"choose_best": enabled},
        )
        client = fleet.device.start()
        observe(client, 14)
        live(fleet, 14, 16, w=NEAR, task={})
        blobs.append([update.blob for update in fleet.server.updates])
        sources.append(client.status()["forecast"].get("gain of tuning"))
    assert blobs[0] == blobs[1]
    assert len(blobs[0]) == 16
    assert sources[0] is not None
    assert sources[1] is None


def test_no_more_often_than_the_interval_but_at_once_after_the_last_round(make):
    fleet = make(fine_tuning={"min_interval": "10h"})
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 3, w=NEAR)
    assert client.status()["counts"]["models tuned"] == 1
    fleet.clock.at += 36_000
    live(fleet, 17, 1, w=NEAR * 0.9)
    assert client.status()["counts"]["models tuned"] == 2
    fleet.server.open_round(18, 18, NEAR * 0.8, phase="stop")
    fleet.run(20)
    assert client.is_done
    assert client.status()["counts"]["models tuned"] == 3
    assert client.is_settled


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        pytest.param(
            {"limits": {"upload_windows": ["03:00-03:01"]}},
            "outside the upload windows",
            marks=pytest.mark.extension,
        ),
        ({"fine_tuning": {"wake_share": 0.0}, "limits": {"daily_wake_time": "24h"}}, ""),
    ],
)
def test_without_means_nothing_is_tuned(make, settings, why):
    fleet = make(**settings)
    client = fleet.device.start()
    observe(client, 14)
    client.learner.learnable()
    client.learner._fix_scale()
    live(fleet, 14, 2, w=NEAR)
    assert client.extension("choice").candidates.tuned is None
    assert client.status()["held"] == why
    assert "models tuned" not in client.status()["counts"]


def test_a_newer_round_interrupts_the_tuning_and_leaves_no_trace(fleet, monkeypatch):
    client = fleet.device.start()
    observe(client, 14)
    fleet.run()
    batches = []
    turn = client._between_batches

    def between():
        if client.status()["round"] == 0 and client._agenda.current is None:
            batches.append(1)
            if len(batches) == 5:
                fleet.server.open_round(1, 1, NEAR * 0.9)
        turn()

    client.learner.between_batches = between
    fleet.server.open_round(0, 0, NEAR)
    fleet.run(14)
    assert client.status()["counts"]["selections given up"] == 1
    assert client._store.paper(TUNED_MODEL) is None
    fleet.run(20)
    assert client.status()["round"] == 1
    fleet.run(8, seconds=20.0)
    assert client.extension("choice").candidates.tuned is not None


def test_what_the_last_round_interrupted_is_done_before_the_run_counts_as_settled(fleet):
    client = fleet.device.start()
    observe(client, 14)
    fleet.run()
    turn = client._between_batches

    def between():
        if client.status()["round"] == 0 and client._agenda.current is None:
            fleet.server.open_round(1, 1, NEAR * 0.9, phase="stop")
        turn()

    client.learner.between_batches = between
    fleet.server.open_round(0, 0, NEAR)
    for _ in range(40):
        fleet.run(1)
        if client.is_settled:
            break
    assert client.is_done
    assert client.status()["counts"]["selections given up"] == 1
    assert client.status()["counts"]["models tuned"] == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edge_sdk import client as client_module
from tests.edge_sdk.conftest import NumpyBundle, make_fleet
from tests.edge_sdk.days import NEAR, observe
client_module.open_bundle = lambda _config, _announced: NumpyBundle()
fleet = make_fleet(Path(sys.argv[1]))
client = fleet.device.start()
observe(client, 14)
client.flush()
fleet.server.open_round(0, 0, NEAR)
fleet.run(20)
print(client.extension("choice").candidates.tuned.after, flush=True)
batches = []
def between():
    batches.append(1)
    if client._agenda.current is None and len(batches) > 40:
        os.kill(os.getpid(), signal.SIGKILL)
fleet.clock.at += 7200
fleet.server.open_round(1, 1, NEAR * 0.5)
client.learner.between_batches = between
fleet.run(40)
print("not killed", flush=True)
"""


def test_killed_in_the_middle_of_a_tuning_the_last_copy_is_in_use(tmp_path, numpy_bundle, make):
    folder = tmp_path / "killed"
    root = Path(__file__).parents[4]
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        timeout=120,
    )
    assert ended.returncode == -9, ended.stderr
    (after,) = ended.stdout.split()
    fleet = make("killed")
    client = fleet.device.start()
    assert client.status()["round"] == 1
    assert client.extension("choice").candidates.tuned.after == float(after)
    assert client.extension("choice").candidates.tuned.tunings == 1


def test_what_is_saved_for_another_bundle_is_not_used(fleet, monkeypatch):
    client = fleet.device.start()
    observe(client, 14)
    live(fleet, 14, 1, w=NEAR)
    learner = client.learner
    assert DeviceCandidates.recall(learner, client._store).tuned is not None
    other = replace(learner.bundle, manifest=replace(learner.manifest, version=2))
    monkeypatch.setattr(learner, "bundle", other)
    monkeypatch.setattr(learner, "manifest", other.manifest)
    found = DeviceCandidates.recall(learner, client._store)
    assert (found.tuned, found.own, found.selection.judged) == (None, None, 0)
