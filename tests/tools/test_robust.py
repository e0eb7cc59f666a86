"""E9 to E13 on made-up cells: the driver, the noise, the liars, the judge, the pages, a corner."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.errors import ConfigError
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of, refuse_method
from edge_sdk.protocol.contract.method import CONTRACTS, Task, Update
from tools import reproduce
from tools.experiments import (
    bafdp,
    cell_curves,
    cells,
    cellular_setup,
    matrix,
    noise,
    rankings,
    resilience,
    robust,
    verdicts,
    wire,
)
from tools.experiments.byzantine import liars
from tools.experiments.cellular_setup import Arm
from tools.experiments.matrix import Square
from tools.experiments.method_rows import FIELD, Case
from tools.experiments.synthetic import cells as made_up

FORMER = {"l1": 0.01, "server_rate": 0.1, "dual_max": 0.01}
CASE = Case(("cell-00", "cell-01"), samples=100, rounds=10, budget=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data")
    (out / cells.MILAN).mkdir()
    table = {x.name: x.traffic for x in made_up(4, seed=0, days=35)}
    hours = pd.date_range("2013-11-01", periods=35 * 24, freq="h")
    path = out / cells.MILAN / "internet_hourly.parquet"
    pd.DataFrame({"ts_local": hours, **table}).to_parquet(path)
    return out


def arm(name="BAFDP", **more):
    plain = {"experiment": "e12", "dataset": cells.MILAN, "horizon": 1, "net": "mlp"}
    return Arm(**{**plain, "budget": None, "work": 12, "seed": 0, "name": name, **more})


@pytest.mark.parametrize("name", ["FedAvg", "BAFDP", "RSA", "DP-RSA", "NbAFL", "AFL", "FedDA"])
def test_every_kind_of_method_learns_and_is_scored_cell_by_cell(folder, name):
    result = bafdp.run(arm(name), folder)
    assert len(result["cells"]) == 4
    assert all(np.isfinite(row["RMSE"]) and row["n"] == 168 for row in result["cells"].values())
    assert result["path"][-1]["RMSE"] == pytest.approx(
        rankings.score(result)["RMSE"], rel=0.5 if name == "AFL" else 1e-6
    )


def test_the_same_arm_gives_the_same_numbers(folder):
    one, two = (bafdp.run(arm(budget=30.0), folder) for _ in range(2))
    assert one["cells"] == two["cells"]
    assert one["cells"] != bafdp.run(arm(budget=30.0, seed=1), folder)["cells"]


def test_noise_is_on_what_is_learnt_and_never_on_what_is_judged(folder):
    clean, noisy = (cellular_setup.ground(arm(budget=a), folder) for a in (None, 30.0))
    for name, cut in noisy.served.items():
        assert (cut.raw == clean.served[name].raw).all()
        assert (noisy.learnt[name].raw != cut.raw).all()
        assert noisy.learnt[name].scale == cut.scale


def test_a_reading_carries_the_same_noise_wherever_it_occurs(folder):
    base = cellular_setup.ground(arm(budget=30.0), folder)
    cut = base.learnt["cell-00"]
    rows = np.array([100, 101])
    window, target = cut.inputs(rows), cut.targets(rows)
    assert window[1, -2, -1] == window[0, -1, -1]
    assert window[1, -1, -1] == pytest.approx(target[0, 0], rel=1e-5)


@pytest.mark.parametrize("name", [name for name, row in FIELD.items() if row.privacy(CASE)])
def test_a_rows_noise_is_one_that_a_device_accepts_for_its_method(name):
    row = FIELD[name]
    plan = plan_of(row.privacy(CASE), DeviceFacts(None, keep=8760, max_steps=64, shared=100))
    refuse_method(plan, row.method, CONTRACTS[row.method])


def test_an_experiment_refuses_noise_that_a_device_refuses():
    manifest = Bundle.open("cells-mlp-1", trust=TrustedKeys()).manifest
    section = replace(FIELD["UDP"].privacy(CASE), metrics="sent")
    with pytest.raises(ConfigError, match=r"privacy\.metrics"):
        noise.mechanism(section, manifest, made_up(1, seed=0, days=35)[0], seed=0)


def test_at_least_the_stated_share_lies_and_is_not_scored(folder):
    result = bafdp.run(arm("FedAvg", attack="flipping", ratio=0.3), folder)
    assert len(result["liars"]) == 2
    honest = {x: row for x, row in result["cells"].items() if x not in result["liars"]}
    assert rankings.score(result) == cellular_setup.together(honest)


def test_how_large_a_lie_is_does_not_matter_to_bafdp(folder):
    lies = ("constant:value=1e3", "constant:value=1e30")
    one, two = (bafdp.run(arm(attack=x, ratio=0.25), folder)["cells"] for x in lies)
    assert one == two


@pytest.mark.slow
def test_bafdps_defaults_hold_under_flipped_models(tmp_path, monkeypatch):
    """Ten made-up cells, three of which flip: +3.8 %; with the former defaults +22.8 %."""
    (tmp_path / cells.MILAN).mkdir()
    table = {x.name: x.traffic for x in made_up(10, seed=0, days=35)}
    hours = pd.date_range("2013-11-01", periods=35 * 24, freq="h")
    path = tmp_path / cells.MILAN / "internet_hourly.parquet"
    pd.DataFrame({"ts_local": hours, **table}).to_parquet(path)
    rises = {}
    for name, given in {"now": {}, "before": FORMER}.items():
        row = replace(FIELD["BAFDP"], settings=lambda _, given=given: {"rate": 1e-3, **given})
        monkeypatch.setattr(bafdp, "FIELD", {"BAFDP": row})
        free = bafdp.run(arm(work=60), tmp_path)
        hit = bafdp.run(arm(work=60, attack="flipping", ratio=0.3), tmp_path)
        without = rankings.score(free, leave=hit["liars"])["RMSE"]
        rises[name] = rankings.score(hit)["RMSE"] / without - 1.0
    assert rises["now"] < 0.1
    assert rises["before"] > 2.0 * rises["now"]


def test_bafdps_parts_work_together(folder):
    """Noise on readings, a device ten times slower, and flipped models, all in one run."""
    one = bafdp.run(
        arm("BAFDP, defaults", budget=30.0, clock="straggler", attack="flipping", ratio=0.25),
        folder,
    )
    assert one["liars"]
    assert set(one["liars"]).isdisjoint(one["cells"].keys() - set(one["liars"]))
    assert one["path"][-1]["RMSE"] < 3.0 * one["path"][0]["RMSE"]


@pytest.fixture
def few(folder, tmp_path):
    words = [
        "figures",
        "--data",
        str(folder),
        "--out",
        str(tmp_path),
        "--cells",
        "4",
        "--work",
        "8",
    ]
    return reproduce.parse(words)


def test_both_horizons_of_the_figure_show_the_same_hours(few):
    """What was measured at an hour does not depend on how far ahead it was forecast."""
    panels = cell_curves.forecasts(few)["panels"]
    near, far = panels[: cell_curves.FORECAST], panels[cell_curves.FORECAST :]
    assert [x["lines"]["measured"] for x in near] == [x["lines"]["measured"] for x in far]
    assert all(len(set(x["lines"]["measured"])) > 1 for x in near)
    assert near[0]["lines"]["forecast"] != far[0]["lines"]["forecast"]


def test_lines_over_time_have_values_at_their_own_times(few):
    """One method waits and the other does not: each time belongs to a run of them."""
    made = cell_curves.waiting(few)
    assert [one["title"] for one in made["panels"]] == [
        "Milan: training loss",
        "Milan: RMSE",
        "Milan: MAE",
    ]
    for one in made["panels"]:
        kept = [
            {at for at, y in zip(made["across"], line, strict=True) if y is not None}
            for line in one["lines"].values()
        ]
        assert len(kept) == 2
        assert all(kept)
        assert set.union(*kept) == set(made["across"])


def test_attackers_and_budgets_have_a_line_each(few, monkeypatch):
    monkeypatch.setattr(robust, "FIGURE_8", (0.25, 0.75))
    (panel,) = cell_curves.attackers(few)["panels"]
    assert list(panel["lines"]) == ["0%", "25%", "75%"]
    assert panel["lines"]["75%"][-1] > panel["lines"]["0%"][-1]
    made = cell_curves.budgets(few)
    assert [one["title"] for one in made["panels"]] == ["Milan, a=30", "Milan, a=50"]
    assert all(one["lines"]["epsilon"][-1] > one["lines"]["epsilon"][0] for one in made["panels"])


def test_a_liar_sees_honest_answers_and_keeps_its_header():
    (lie,) = liars("mimic", ["c"], 3, CONTRACTS["fedavg"], seed=0).values()
    task = Task("_all", 3, "train", base=2, arrays={"w": np.zeros(2, np.float32)})
    honest = {x: Update(x, 3, 2, np.full(2, v)) for x, v in (("b", 7.0), ("a", 5.0))}
    told = lie(Update("c", 3, 2, np.ones(2), {"n": 4.0}), task, honest)
    assert told.vector.tolist() == [5.0, 5.0]
    assert (told.sender, told.base, dict(told.values)) == ("c", 2, {"n": 4.0})


def test_votes_are_lied_about_in_votes():
    (lie,) = liars("constant", ["a"], 2, CONTRACTS["rsa"], seed=0).values()
    task = Task("a", 1, "step", arrays={"z": np.zeros(3, np.float32)})
    told = lie(Update("a", 1, 0, np.array([-1.0, 0.0, 1.0])), task, {})
    assert told.vector.tolist() == [1.0, 1.0, 1.0]


def test_the_attacker_does_not_beat_what_the_noise_allows():
    for budget in (0.5, 2.0, 30.0):
        won = noise.told_apart(budget, seed=0)
        assert won <= noise.promised(budget) + 3 * 0.5 / noise.TRIALS**0.5
        assert won == pytest.approx(noise.bound_by_sigma(budget), abs=0.02)


def test_less_noise_lets_more_readings_be_rebuilt():
    cell = made_up(1, 0)[0]
    manifest = Bundle.open("cells-mlp-1", trust=TrustedKeys()).manifest
    found = []
    for budget in (1.0, 30.0, 300.0):
        noisy = noise.noised(cell, budget, 0, manifest)
        found.append(noise.rebuilt(cell, noisy, noise.spread(budget))[0])
    assert found[0] < found[1] < found[2] < 1.0
    assert noise.rebuilt(cell, cell, 0.0)[0] == 1.0


def result(name, rmse, seed=0, horizon=1, **more):
    path = more.pop("path", [])
    fields = {"dataset": cells.MILAN, "net": "mlp", "budget": None, "attack": "", "ratio": 0.0}
    fields |= {"name": name, "seed": seed, "horizon": horizon, "work": 1, **more}
    row = {"RMSE": rmse, "MAE": rmse / 2, "n": 10.0}
    return {"arm": fields, "liars": [], "cells": {"a": row}, "path": path}


def test_ranks_are_over_columns_and_ties_share():
    some = [result("x", 1.0), result("y", 1.0), result("z", 3.0)]
    assert rankings.ranks(some, ["x", "y", "z"]) == {"x": 1.5, "y": 1.5, "z": 3.0}


def test_a_rise_is_judged_at_its_worst_seed():
    some = [result("BAFDP", 100.0, s) for s in (0, 1)]
    some += [result("BAFDP", x, s, attack="flipping", ratio=0.3) for s, x in enumerate((110, 116))]
    (claim,) = (x for x in verdicts.of_e12(some) if "BAFDP's" in x.text)
    assert claim.verdict == "NOT reproduced"
    assert claim.detail == "+10.0%, +16.0%"


def test_a_run_that_left_the_finite_numbers_has_diverged():
    some = [result("FedAvg", 100.0)]
    some += [result("FedAvg", float("inf"), attack="scaling", ratio=0.3)]
    (claim,) = (x for x in verdicts.of_e12(some) if "FedAvg's" in x.text)
    assert claim.holds


def test_a_race_is_to_the_slow_ones_final_loss():
    slow = [{"time": t, "loss": x} for t, x in ((10.0, 3.0), (20.0, 2.0), (30.0, 1.0))]
    fast = [{"time": t, "loss": x} for t, x in ((5.0, 2.0), (15.0, 0.9), (30.0, 0.8))]
    some = [result("BSFDP", 100.0, path=slow), result("BAFDP", 102.0, path=fast)]
    sooner, close = verdicts.of_e11(some)
    assert (sooner.holds, sooner.detail) == (True, "2.00 times")
    assert (close.holds, close.detail) == (True, "+2.0%")


def test_more_budget_must_not_cost_accuracy():
    good = [result("BAFDP", 90.0 - a, budget=a) for a in (10.0, 20.0, 30.0)]
    bad = [result("BAFDP", 90.0 + a, budget=a) for a in (10.0, 20.0, 30.0)]
    assert [verdicts.of_e10(x)[0].holds for x in (good, bad)] == [True, False]


def test_a_plateau_needs_a_rise_before_it_and_none_after():
    def judged(after):
        errors = {10.0: 90.0, 30.0: 80.0, 50.0: 70.0, 70.0: after}
        claims = verdicts.of_e10([result("BAFDP", e, budget=a) for a, e in errors.items()])
        return claims[1].holds

    assert judged(71.0)
    assert not judged(60.0)


def test_bytes_are_judged_against_the_papers_product():
    size = 4.0 * Bundle.open(wire.BUNDLE, trust=TrustedKeys()).manifest.size
    fair = {"2": 1.1 * wire.product(size, 2, wire.ROUNDS)}
    assert wire.judge(fair).holds
    assert not wire.judge({"2": 2 * fair["2"]}).holds


@pytest.fixture(scope="module")
def corner():
    rules, attacks = ("mean", "median", "krum"), ("", "flipping", "alie")
    return [matrix.run(x) for x in matrix.squares(1, 20, rules, attacks, ("",))]


def test_three_rules_against_three_attacks(corner):
    found = matrix.ratios(corner)
    assert found["mean", "", ""] == [1.0]
    assert found["mean", "flipping", ""][0] > 1.5
    for rule in ("median", "krum"):
        assert max(found[rule, a, ""][0] for a in ("", "flipping", "alie")) < 1.5
    table = matrix.rank_table(found)
    assert max(table, key=lambda x: table[x][1]) == ("mean", "")


def test_the_trusted_device_never_lies_and_the_same_two_lie_under_every_rule(corner):
    named = {tuple(r["liars"]) for r in corner if r["square"]["attack"]}
    assert len(named) == 1
    assert matrix.TRUSTED not in next(iter(named))


def test_a_rule_with_too_few_answers_is_named_not_run():
    refused = matrix.run(Square("krum", "alie", "bucketing", 0))
    assert (refused["error"], refused["needs"]) == (None, 13)
    assert "`krum` (13)" in "\n".join(resilience.matrix_lines([refused]))


def test_a_page_stands_alone(corner):
    page = resilience.e13(corner)
    assert 'src="data:image/png;base64,' in page.html()
    assert "http" not in page.html()
    assert "data:image" not in page.markdown()
    assert "| `mean` | 1.00 |" in page.markdown()


def test_the_command_resumes_and_tells_its_claims_as_json(folder, tmp_path, capsys, monkeypatch):
    few = [arm(x, experiment="e11", clock="straggler", work=6) for x in ("BAFDP", "BSFDP")]
    monkeypatch.setattr(robust, "arms", lambda options: few)
    words = ["e11", "--data", str(folder), "--out", str(tmp_path), "--workers", "1", "--json"]
    assert reproduce.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"claim", "holds", "by"} == set(told["e11"][0])
    times = {x: x.stat().st_mtime_ns for x in tmp_path.glob("e11-*.json")}
    assert len(times) == 2
    assert reproduce.main(words) == 0
    assert {x: x.stat().st_mtime_ns for x in tmp_path.glob("e11-*.json")} == times
    assert (tmp_path / "E11.html").exists()


def test_results_are_pasted_between_their_marks_and_nowhere_else(tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "rules.md").write_text("before\n<!-- e13 -->\n<!-- /e13 -->\nafter\n")
    (docs / "other.md").write_text("no marks")
    words = ["e13", "--quick", "--out", str(tmp_path / "out"), "--workers", "1", "--json"]
    assert reproduce.main([*words, "--docs", str(docs)]) == 0
    told = (docs / "rules.md").read_text()
    assert told.startswith("before\n<!-- e13 -->\n\n### E13")
    assert told.endswith("<!-- /e13 -->\nafter\n")
    assert (docs / "other.md").read_text() == "no marks"
    assert len(json.loads(capsys.readouterr().out)["e13"]) == 2


def test_every_experiment_lists_each_run_once():
    options = argparse.Namespace(
        experiments=list(robust.EXPERIMENTS), seeds=2, work=9, cells=None, quick=False
    )
    options.cellular = [cells.MILAN, cells.BARCELONA]
    listed = robust.arms(options)
    assert len({x.file for x in listed}) == len(listed)
    assert {x.experiment for x in listed} == {"e9", "e10", "e11", "e12", "e14"}
    assert len(robust.squares(options)) == 2 * 11 * 9 * 3


@pytest.mark.slow
def test_the_sweep_on_trento_is_made_where_trento_is_there(folder, tmp_path):
    """Its budgets and numbers are those of Table III, and its best budget is a claim."""
    shutil.copytree(folder / cells.MILAN, tmp_path / cells.MILAN)
    words = ["e10", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--seeds", "1"]
    words += ["--cells", "2", "--work", "2", "--workers", "1"]
    options = reproduce.parse(words)
    options.cellular = [cells.MILAN]
    assert {x.dataset for x in robust.arms(options)} == {cells.MILAN}
    assert reproduce.main(words) == 0
    said = (tmp_path / "out" / "E10.md").read_text()
    assert "Trento is not in the data folder" in said
    assert "38.3569" not in said
    shutil.copytree(folder / cells.MILAN, tmp_path / cells.TRENTO)
    assert reproduce.main(words) == 0
    said = (tmp_path / "out" / "E10.md").read_text()
    assert "Trento is not" not in said
    (row,) = [line for line in said.splitlines() if "38.3569 / 16.6541" in line]
    assert row.startswith("| 20 |")
    assert "the best budget is 20, cellular_trento H=1" in said


def test_data_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["e9"])
    assert "--data" in capsys.readouterr().err


def test_a_label_flip_leaves_the_inputs():
    cell = made_up(1, 0)[0]
    bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
    cut = matrix._spoilt(Square("mean", "label_flip", "", 0), cell, bundle)
    fair = cells.frame(cell, bundle.manifest)
    assert (cut.channels[200:] == fair.channels[200:]).all()
    assert np.corrcoef(cut.raw, fair.raw)[0, 1] == pytest.approx(-1.0)
    both = matrix._spoilt(Square("mean", "fdi_scale", "", 0), cell, bundle)
    assert (both.channels[200:] != fair.channels[200:]).any()
