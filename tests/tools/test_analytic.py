"""The analytic experiment on a made-up fleet: no look ahead, kept results, tables from results."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is in the dev extra")

from tools.experiments import analytic

ANCHORS = """
import numpy as np
from types import SimpleNamespace

class Task(SimpleNamespace):
    def origins(self, s, part, first=None):
        lo, hi = {"train": (first or 12, s.train_end), "val": s.val, "test": s.test}[part]
        return np.arange(max(lo, first or 12) - 1, hi - self.p)

def load(root, name):
    draw = np.random.default_rng(0)
    n, series = 24 * 80, []
    clock = np.arange(n)
    for i in range(3):
        wave = (3 + i) * np.sin(2 * np.pi * clock / 24)
        x = 10 + wave + np.cumsum(draw.normal(size=n)) * 0.05 + draw.normal(size=n) * 0.3
        times = np.datetime64("2020-01-01") + clock.astype("timedelta64[h]")
        series.append(SimpleNamespace(name=f"s{i}", times=times, value=x, filled=x, tod=clock % 24,
            dow=clock // 24 % 7, exog=draw.normal(size=(n, 1)), train_end=1500, val=(1300, 1500),
            test=(1500, 1700), scale=float(x[:1500].std()), shift=float(x[:1500].mean())))
    return Task(name=name, domain="building", p=1, lookback=12, day=24, series=series)
"""
METRICS = """
import numpy as np

def evaluate(task, told):
    per = {}
    for s in task.series:
        y = s.value[task.origins(s, "test") + 1]
        naive = np.abs(np.diff(s.value[s.test[0]:s.test[1]])).mean()
        error = float(np.abs(y - told[s.name][:, 0]).mean())
        per[s.name] = {"MAE": error, "MASE": error / naive}
    return {"mean": {"MASE": float(np.mean([v["MASE"] for v in per.values()]))}, "per_station": per}
"""
TASK = "building_bdg2_fl_az_ca:1"


@pytest.fixture
def anchors(tmp_path, monkeypatch):
    (tmp_path / "datasets.py").write_text(ANCHORS)
    (tmp_path / "metrics.py").write_text(METRICS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    changes = {name: analytic.CHANGES[name] for name in ("200 random units", "mean of 3 draws")}
    monkeypatch.setattr(analytic, "CHANGES", {**changes, "200 random units": {"units": 12}})
    yield tmp_path
    for name in ("datasets", "metrics"):
        sys.modules.pop(name, None)


@pytest.fixture
def task(anchors):
    space: dict[str, object] = {}
    exec(ANCHORS, space)
    return space["load"](None, TASK)


@pytest.mark.parametrize("known", [False, True])
def test_nothing_from_the_judged_part_on_changes_what_was_learnt_or_told_before(task, known):
    form = analytic.AnalyticForm(units=5, known=known)
    before = list(analytic.device_rows(task, form, 1, "val"))
    for s in task.series:
        s.value = s.value.copy()
        s.value[1400:] += 1000.0
        s.filled = s.value
    after = list(analytic.device_rows(task, form, 1, "val"))
    one, two = (analytic.forecasts(rows, form)[0] for rows in (before, after))
    for arm in analytic.ARMS:
        for s in task.series:
            same = task.origins(s, "val") < 1400
            assert same.sum() > 50
            assert np.array_equal(one[arm][s.name][same], two[arm][s.name][same])


def test_a_call_learns_keeps_its_results_and_writes_tables(anchors, tmp_path, capsys):
    out = tmp_path / "out"
    call = ["--data", str(anchors), "--anchors", str(anchors), "--out", str(out)]
    call += ["--tasks", TASK, "--history", "7"]
    assert analytic.main(call) == 0
    first = capsys.readouterr().out
    assert (out / "RESULTS.md").read_text() == first
    kept = {p: p.stat().st_mtime_ns for p in out.glob("*.json")}
    found = json.loads(next(p for p in kept if "-test-" in p.name).read_text())
    assert found["personal"] < 0.9  # the made-up wave can be learnt
    new = [json.loads(p.read_text()) for p in kept if p.name.endswith("-h7.json")]
    assert new[0]["personal"] < 0.97 * new[0]["alone"]  # a week of windows is little
    assert new[0]["fleet"] != found["fleet"]  # its own windows are not in it
    assert analytic.main(call) == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("*.json")} == kept
    assert capsys.readouterr().out == first


def test_the_tables_say_what_helped_and_which_mark_was_passed():
    arms = {f"{arm} by device": {"a": 1.0, "b": 2.0} for arm in analytic.ARMS}
    worse = {"personal by device": {"a": 1.02, "b": 2.0}}
    score = {"fleet": 0.8, "alone": 0.7, "bytes": 2000, "seconds": 3.0, **arms, **worse}
    ladder = [["named features", 0.8, 1.0, True], ["200 random units", 0.72, 1.0, True]]
    ladder += [[name, 0.73, 1.0, False] for name in list(analytic.CHANGES)[1:]]
    result = {"task": TASK, "devices": 2, "ladder": ladder}
    result["histories"] = {7: {"fleet": 0.9, "alone": 1.2, "personal": 0.8}}
    result |= {"plain": {**score, "personal": 0.9}, "chosen": {**score, "personal": 0.735}}
    text = analytic.tables([result])
    assert (
        "| BDG2 | 2 | 0.800 | 0.700 | **0.735** | 0.768 ✓ | 0.737 ✓ | 0.697 | 1 | 2 | 3 |" in text
    )
    assert "| 200 random units | -10.0 % |" in text
    assert "| mean of 3 draws | +1.4 % (left out) |" in text
    assert "| BDG2 | 0.900 | 1.200 | **0.800** |" in text
    assert "| named features → chosen, on the test part | 0.900 → 0.735 |" in text


def test_holidays_are_those_of_the_day_and_the_sun_is_up_at_noon():
    times = np.array(["2017-07-04T12", "2017-07-05T12", "2017-07-05T00"], "datetime64[h]")
    task = SimpleNamespace(name=TASK, domain="building")
    known = analytic.known_columns(task, SimpleNamespace(times=times))
    assert known["holiday"].tolist() == [1.0, 0.0, 0.0]
    assert known["sun"][1] > 0.9
    assert known["sun"][2] == 0.0
