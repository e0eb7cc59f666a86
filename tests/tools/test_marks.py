"""The accuracy command on a made-up fleet: nobody looks ahead, results are kept, tables are made of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is in the dev extra")

from edge_sdk.extensions.analytic import boosted_fit
from edge_sdk.extensions.analytic.boosted_fit import BoostedForm
from edge_sdk.extensions.analytic.hurdle import HurdleForm
from edge_sdk.extensions.analytic.trees import TreeForm
from tests.edge_sdk.extensions.analytic.test_boosted_model import repeated
from tests.edge_sdk.extensions.choice.test_own_model import frame_of
from tools.experiments.marked_block import replace_block
from tools.experiments.marks import charging, command, points, tables, tasks, tomorrow

DATASETS = """
import numpy as np
from types import SimpleNamespace

class Task(SimpleNamespace):
    def origins(self, s, part, first=None):
        first = max(first or 0, self.lookback)
        lo, hi = {"train": (first, s.train_end), "val": s.val, "test": s.test}[part]
        return np.arange(max(lo, first) - 1, hi - self.p)

    def truth(self, s, o):
        return s.value[o[:, None] + 1 + np.arange(self.p)]

def load(root, name):
    draw = np.random.default_rng(0)
    n, series = 24 * 60, []
    clock = np.arange(n)
    domain = "ev" if name.startswith("ev") else "building"
    for i in range(3):
        x = 10 + (3 + i) * np.sin(2 * np.pi * clock / 24) + draw.normal(size=n) * 0.3
        x = np.maximum(x - 9, 0) if domain == "ev" else x
        times = np.datetime64("2020-01-01") + clock.astype("timedelta64[h]")
        series.append(SimpleNamespace(name=f"s{i}", times=times, value=x, filled=x, tod=clock % 24,
            dow=clock // 24 % 7, exog=draw.normal(size=(n, 1)), train_end=1100, val=(1100, 1250),
            test=(1250, 1400), scale=float(x[:1100].std()), shift=float(x[:1100].mean())))
    p = int(name.split(":")[1])
    return Task(name=name, domain=domain, p=p, lookback=12, day=24, series=series)
"""
METRICS = """
import numpy as np

def evaluate(task, told):
    per = {}
    for s in task.series:
        y = task.truth(s, task.origins(s, "test"))
        f = np.asarray(told[s.name])
        point = f[..., 1] if f.ndim == 3 else f
        per[s.name] = dict.fromkeys(("MAE", "MASE", "QS"), float(np.abs(y - point).mean()))
    mean = float(np.mean([v["MAE"] for v in per.values()]))
    return {"mean": dict.fromkeys(("MAE", "MASE", "QS"), mean), "per_station": per}
"""
TASK, SITES = "building_bdg2_fl_az_ca:1", "ev_boulder:6"
FEW_TREES = HurdleForm(TreeForm(trees=5), TreeForm(trees=5))
SMALL = points.PointForm(units=12, passes=1, trees=TreeForm(trees=5))


@pytest.fixture
def anchors(tmp_path, monkeypatch):
    folder = tmp_path / "anchors"
    (folder / "results").mkdir(parents=True)
    (folder / "datasets.py").write_text(DATASETS)
    (folder / "metrics.py").write_text(METRICS)
    for name in (TASK, SITES):
        (tmp_path / "data" / name.split(":")[0]).mkdir(parents=True)
    central = {"lgbm_pooled_week": {"0": {"mean": {"MASE": 0.5, "QS": 0.5}}}}
    for name in (TASK, SITES):
        (folder / "results" / f"{name.replace(':', '_p')}.json").write_text(json.dumps(central))
    monkeypatch.setattr(sys, "path", [*sys.path])
    tasks.use(folder)
    yield folder
    for name in ("datasets", "metrics"):
        sys.modules.pop(name, None)


def fake_nets(name, way, seed, data, out):
    """Return nets that know the truth of one station less well than of the next."""
    task = tasks.read(data, name)
    draw = np.random.default_rng(seed)
    found = {"seconds": 1.0, "size": 100}
    for part, theirs in (("choose", "val"), ("test", "test")):
        for series in task.series:
            origins = task.origins(series, theirs)
            truth = task.truth(series, origins)[..., None]
            fan = truth + np.array([-0.5, 0.0, 0.5]) + draw.normal(size=(*truth.shape[:2], 1)) * 0.2
            found |= {f"{part}|{series.name}|rows": origins, f"{part}|{series.name}|fan": fan}
    return found


def new_site(task, data, out, *, seed, history):
    """Return the scores of new sites as if they had been run."""
    arms = {arm: {"score": 0.5, "by device": {"s0": 0.5}} for arm in ("fleet", "alone", "served")}
    return {"devices": 1, "seconds": 1.0, "sent": 0, "received": 0} | arms


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(command, "_apart", command.one)
    monkeypatch.setattr(points, "form_of", lambda task: SMALL)
    monkeypatch.setattr(points, "NEW", replace(SMALL, trees=TreeForm(trees=0)))
    monkeypatch.setattr(command.new_sites, "run", new_site)
    monkeypatch.setattr(charging, "nets", fake_nets)
    small = charging.ChargingForm(FEW_TREES, rows=600)
    monkeypatch.setattr(command.charging, "ChargingForm", lambda: small)


def options(anchors, out, *more):
    data = anchors.parent / "data"
    given = ["--data", data, "--anchors", anchors, "--out", out, "--seeds", "2", *more]
    return command.parse([str(x) for x in given])


@pytest.mark.slow
def test_the_command_makes_one_table_and_keeps_every_result(anchors, quick, tmp_path, capsys):
    out = tmp_path / "runs"
    assert command.main(options(anchors, out, "--history", "7")) == 0
    page = capsys.readouterr().out
    assert page.count("| BDG2 |") == 2  # the tasks, and the new devices
    assert page.count("| Boulder, p = 6 |") == 2
    assert "| 0.500 |" in page  # the anchors' centralised method
    made = sorted(out.glob("accuracy-*.json"))
    assert len(made) == 9  # three tasks, two seeds; one history
    for path in made:
        path.write_text(path.read_text().replace('"devices": 3', '"devices": 99'))
    assert command.main(options(anchors, out, "--kept", "--history", "7")) == 0
    assert "| 99 |" in capsys.readouterr().out  # read, not computed again


def test_tomorrows_errors_stand_beside_the_marks(tmp_path):
    assert not tomorrow.report(tmp_path)
    year = tmp_path / "days-building_bdg2_fl_az_ca-own.json"
    year.write_text(json.dumps({"error": 0.69, "pinball": 0.45}))
    errors = {"3": {"profile": [1.0, 2.0, 0.0], "bundle": [0.8, 1.8, 1.0]}}
    first = tmp_path / "first-days-building_bdg2_fl_az_ca.json"
    first.write_text(json.dumps({"errors": errors}))
    page = tomorrow.report(tmp_path)
    assert "| BDG2 | own | 0.690 | 0.701 | 0.684 | 0.657 | must | 0.450 | 0.456 |" in page
    assert "| BDG2 | 3 | bundle | 0.850 | 0.900 | 0.878 | mark |" in page


def test_nothing_finished_is_said(anchors, quick, tmp_path, capsys):
    assert command.main(options(anchors, tmp_path / "empty", "--kept")) == 2
    assert "nothing is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_tables_go_between_the_marks_of_each_page(anchors, quick, tmp_path):
    docs = tmp_path / "docs" / "domains"
    docs.mkdir(parents=True)
    for page in tables.PAGES:
        (docs / f"{page}.md").write_text(f"before\n{tables.MARKER}\nold\n{tables.MARKER}\nafter\n")
    assert command.main(options(anchors, tmp_path / "runs", "--docs", docs.parent)) == 0
    buildings = (docs / "buildings.md").read_text()
    assert "| BDG2 |" in buildings
    assert "Boulder" not in buildings
    assert "old" not in buildings
    assert buildings.startswith("before")
    assert buildings.endswith("after\n")
    assert "Boulder" in (docs / "charging-demand.md").read_text()
    assert "old" in (docs / "cells.md").read_text()  # nothing was run for it
    page = docs / "cells.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has 0 lines"):
        replace_block(page, tables.MARKER, "new")
    assert page.read_text() == "nothing"


@pytest.mark.parametrize("history", [0, 7])
def test_no_forecast_looks_ahead(anchors, history):
    task = tasks.read(Path(), TASK)
    form = SMALL if not history else replace(SMALL, trees=TreeForm(trees=0))
    before, _, _ = points.forecasts(task, form, history=history)
    at = int(task.origins(task.series[0], "test")[50])
    for series in task.series:
        series.value = series.value.copy()
        series.value[at + 1 :] += 1000.0
    after, _, _ = points.forecasts(task, form, history=history)
    for arm, told in before.items():
        for name, values in told.items():
            assert np.array_equal(values[:51], after[arm][name][:51]), (arm, name)
            assert arm == "fleet" or not np.array_equal(values[52:], after[arm][name][52:])


def test_a_hurdle_model_of_a_site_does_not_look_ahead(anchors):
    task = tasks.read(Path(), SITES)
    series = task.series[0]
    form = charging.ChargingForm(FEW_TREES, rows=600)
    wanted = {"test": task.origins(series, "test")}
    before = charging.own_hurdle(task, series, form, 0, wanted)["test"]
    at = int(wanted["test"][50])
    series.value = series.filled = np.where(np.arange(len(series.value)) > at, 99.0, series.value)
    after = charging.own_hurdle(task, series, form, 0, wanted)["test"]
    assert np.array_equal(before[:51], after[:51])
    assert (np.diff(before, axis=-1) >= 0.0).all()
    assert (before >= 0.0).all()


def growing(seed=0, hours=24 * 60):
    """A load whose level grows, with a day of its own: its newest values were never seen before."""
    rng, clock = np.random.default_rng(seed), np.arange(hours)
    day = 6.0 * ((clock % 24 >= 8) & (clock % 24 < 18)) + np.sin(2 * np.pi * clock / 24)
    return 1000.0 + 0.05 * clock + day + rng.normal(size=hours)


def test_an_agent_forecasts_what_the_table_is_computed_with():
    """The path of a device and that of the tables, on the same windows of the same record."""
    levels = (0.1, 0.5, 0.9)  # as shipped bundles have them
    frame = frame_of(growing(), 1)
    begin = len(frame) - 10 * 24
    series = [
        SimpleNamespace(name=f"s{seed}", value=x, tod=np.arange(len(x)) % 24, train_end=begin,
            dow=(frame.times[0] // 86_400 + 3 + np.arange(len(x)) // 24) % 7, scale=x[:begin].std(),
            shift=x[:begin].mean(), exog=np.empty((len(x), 0)))
        for seed in (0, 1) for x in [growing(seed)]
    ]  # fmt: skip
    origins = frame.origins()
    early, late = origins[origins < begin - 1], origins[origins >= begin - 1]
    task = SimpleNamespace(
        p=1, day=24, lookback=12, domain="building", series=series,
        origins=lambda _s, part, first=0: late if part == "test" else early[early >= first],
    )  # fmt: skip
    trees = TreeForm(trees=8, rate=0.2)
    told, _, _ = points.forecasts(task, replace(SMALL, trees=trees))
    fleet = repeated(frame, levels)
    form = BoostedForm(units=12, trees=trees)
    model = boosted_fit.fit(frame, early, levels, lambda _early, _late: fleet, form=form)
    common = {"fleet": fleet["fleet"].final(late)}
    found = model.fans(frame, late, levels, common)
    truth, persisted = frame.truth(late)[:, 0], frame.last[late]
    table = told["alone"]["s0"][:, 0]
    missed = np.abs(table - truth).mean()
    assert missed < 0.8 * np.abs(persisted - truth).mean()
    for name in ("trees", "blend"):
        agent = getattr(found, name)[:, 0, levels.index(0.5)]
        assert np.abs(agent - truth).mean() < 1.05 * missed
        assert np.abs(agent - table).mean() < 0.25 * missed


def test_another_fleet_changes_its_model_and_what_is_served(anchors):
    task = tasks.read(Path(), TASK)
    form = replace(SMALL, units=0)
    whole, _, _ = points.forecasts(task, form)
    assert not np.array_equal(whole["alone"]["s0"], whole["served"]["s0"])
    for series in task.series[1:]:
        series.value = series.value[::-1].copy()
    other, _, _ = points.forecasts(task, form)
    assert not np.allclose(whole["fleet"]["s0"], other["fleet"]["s0"])


def test_half_of_what_a_short_record_serves_owes_nothing_to_the_fleet():
    truth = np.sin(np.arange(500.0))
    held = {"fleet": truth, "alone": 0.5 * truth}
    told = {"fleet": np.ones(3), "alone": np.full(3, 3.0), "personal": np.zeros(3)}

    def served(is_short, form, net=None):
        one = points.Candidates(held, told, truth, is_short)
        arms = points.blends(one, form, {"served": [], "alone": []}, net)
        return arms["served"]

    assert served(False, SMALL) == pytest.approx(np.ones(3), abs=0.05)
    assert served(True, SMALL) == pytest.approx(np.full(3, 2.0), abs=0.05)
    new = replace(SMALL, is_new=True)
    assert (served(True, new) < served(True, SMALL)).all()  # a new device has too little of its own
    net = np.array([4.0, 4.0, np.nan])
    assert served(True, SMALL, net) == pytest.approx([3.0, 3.0, 2.0], abs=0.05)


def test_a_history_that_was_not_run_is_an_empty_cell():
    arms = {arm: {"score": 0.5, "by device": {"a": 1.0}} for arm in points.ARMS}
    results = [{"task": TASK, "seed": 0, "history": 7, "devices": 1} | arms]
    results += [{"task": "building_fontana_ca:1", "seed": 0, "history": 14, "devices": 1} | arms]
    found = tables.cold_start(results)
    assert "| BDG2 | 0.500 | 0.500 | **0.500** | 0 of 1 |  |  |  |  |" in found
    assert "| Fontana |  |  |  |  | 0.500 |" in found
    results += [{"task": "cellular_milan:1", "seed": 0, "history": 28, "devices": 1} | arms]
    assert "28 days" not in tables.cold_start(results, ("buildings",))  # another page's


def test_new_devices_that_a_fleet_makes_worse_are_counted():
    def arm(*errors):
        return {"score": sum(errors), "by device": dict(zip("abc", errors, strict=True))}

    arms = {"fleet": arm(3, 3, 3), "alone": arm(1, 1, 2), "served": arm(1.02, 0.98, 1)}
    found = tables.cold_start([{"task": TASK, "seed": 0, "history": 7, "devices": 3} | arms])
    assert "- After 7 days the error is -25.0 % to -25.0 % against alone; 1 of 3 devices" in found


def test_worse_devices_are_counted_by_the_mean_over_seeds():
    def seed(number, served, alone):
        arms = {"served": served, "alone": alone}
        return {"task": TASK, "seed": number, "history": 0} | {
            arm: {"score": 0.7, "by device": {"a": a, "b": b}} for arm, (a, b) in arms.items()
        }

    results = [seed(0, (1.0, 1.1), (1.0, 1.0)), seed(1, (1.0, 0.8), (0.9, 1.0))]
    assert "1 of 2 devices are more than 1 % worse" in tables.summary(results)


def test_reproduce_needs_the_anchors(tmp_path):
    tool = Path(__file__).resolve().parents[2] / "tools" / "reproduce.py"
    line = [sys.executable, tool, "accuracy", "--data", tmp_path, "--out", tmp_path]
    done = subprocess.run([str(x) for x in line], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "accuracy needs --anchors" in done.stderr


@pytest.mark.slow
def test_reproduce_runs_the_command_in_a_process_a_task(anchors, tmp_path):
    tool = Path(__file__).resolve().parents[2] / "tools" / "reproduce.py"
    line = [sys.executable, tool, "accuracy", "--data", anchors.parent / "data"]
    line += ["--anchors", anchors, "--out", tmp_path / "runs", "--tasks", TASK, "--seeds", "1"]
    done = subprocess.run([str(x) for x in line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| BDG2 | 3 |" in done.stdout
    kept = json.loads(
        (tmp_path / "runs" / "accuracy-building_bdg2_fl_az_ca_p1-s0.json").read_text()
    )
    assert kept["peak"] > 0
    assert kept["sent"] > 0
