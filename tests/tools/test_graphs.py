"""E1 to E4 on made-up sites: the trainers, liars, calibration, the judge, the pages."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from aggregator.methods import METHODS
from tools import reproduce
from tools.experiments import (
    chargers,
    charging,
    ev,
    figures,
    graph_claims,
    graph_pages,
    graphs,
    long_run,
)
from tools.experiments.charging import Arm
from tools.experiments.graph_baselines import TABLE_V, marks
from tools.experiments.resumable import Checkpoint

NAMES = ("A", "B", "C")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Thirty days of three sites of one kind, which rest at night."""
    out = tmp_path_factory.mktemp("data")
    home = out / ev.BOULDER
    home.mkdir()
    rng, hours = np.random.default_rng(0), np.arange(48 * 30)
    day = np.maximum(np.sin((hours - 14) * 2 * np.pi / 48), 0.0)
    table = {
        x: np.maximum(day * k + 0.1 * rng.normal(size=len(day)), 0.0)
        for k, x in enumerate(NAMES, 1)
    }
    utc = pd.date_range("2018-01-01 07:00", periods=len(hours), freq="30min")
    pd.DataFrame({"ts_utc": utc, "ts_local": utc, **table}).to_parquet(
        home / "demand_30min.parquet"
    )
    north = {"station": NAMES, "Latitude": [40.0, 40.01, 40.02], "Longitude": [-105.0] * 3}
    pd.DataFrame(north).to_csv(home / "stations.csv", index=False)
    return out


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(chargers, "LONG", 100)
    monkeypatch.setattr(chargers, "TUNED", 50)
    monkeypatch.setattr(chargers, "STAGES", ((3, 2e-3), (2, 5e-4)))
    monkeypatch.setattr(charging, "LOOK", 20)


def arm(name, **more):
    plain = {"experiment": "e1", "dataset": ev.BOULDER, "horizon": 1, "seed": 0}
    return Arm(**{**plain, "name": name, "rounds": 3, "steps": 4, **more})


SLOW = [
    pytest.param(name, marks=pytest.mark.soak)
    for name in ("LSTM-FedAvg", "LSTM-PFL", "LSTM-CNN-PFL", "CNFGNN", "pooled, tuned")
]


@pytest.mark.parametrize("name", [name for name, row in charging.FIELD.items() if row.graph])
def test_a_rows_turns_are_settings_of_its_method(name):
    row = charging.FIELD[name]
    assert replace(METHODS[row.method].settings().turns, **row.turns)
    assert row.graph == "residual" or row.graph in METHODS[row.method].kinds


def test_every_cell_of_the_papers_table_of_attacks_has_an_arm():
    options = reproduce.parse(["e2", "--data", "x", "--seeds", "1"])
    made = {(x.attack, x.liars, x.name) for x in graphs.arms(options) if x.dataset == ev.BOULDER}
    wanted = {(*which, name) for which, row in TABLE_V.items() for name in row}
    assert len(wanted) == 60
    assert made >= wanted


@pytest.mark.usefixtures("hasty")
def test_a_stopped_arm_continues_and_gives_the_same_scores(folder, tmp_path, monkeypatch):
    whole = chargers.run(arm("PFGL"), folder)
    monkeypatch.setattr(chargers, "Checkpoint", partial(Checkpoint, seconds=0.0))
    look, calls = chargers._honest_mean, []

    def stopped(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return look(*given)

    monkeypatch.setattr(chargers, "_honest_mean", stopped)
    resume = tmp_path / "arm.resume"
    with pytest.raises(KeyboardInterrupt):
        chargers.run(arm("PFGL"), folder, resume)
    assert resume.is_file()
    again = chargers.run(arm("PFGL"), folder, resume)
    assert len(calls) == 4
    assert (again["stations"], again["credits"]) == (whole["stations"], whole["credits"])
    assert not resume.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_every_kept_middle_of_a_long_run_is_a_point_of_its_curve(folder, tmp_path, monkeypatch):
    """The last middle has the scores of the arm whose last round is the best."""
    monkeypatch.setattr(long_run, "ARM", arm("PFGL"))
    monkeypatch.setattr(long_run, "FOLDER", tmp_path)
    record = tmp_path / f"{long_run.NAME}.json"
    record.write_text(json.dumps(long_run.record({1: long_run.LengthPoint(0.5, 0.6)})))
    options = reproduce.parse(["figures", "--data", str(folder), "--out", str(tmp_path)])
    assert long_run.lengths(options) is None
    resume = (tmp_path / arm("PFGL").file).with_suffix(".resume")
    base = charging.ground(arm("PFGL"), folder)
    learnt, _, _ = chargers.federated(arm("PFGL"), base, Checkpoint(resume, seconds=0.0))
    found = long_run.points_of(long_run.lengths(options))
    assert sorted(found) == [1, 3]
    assert found[1] == long_run.LengthPoint(0.5, 0.6)
    stage = chargers.stage_at(arm("PFGL"), base, Checkpoint(resume).load()["stage"])
    last = chargers.learnt_now(arm("PFGL"), base, stage)
    test = ev.mean_of(charging.judged(base, charging.told(base, last, "test")))
    assert found[3].test == round(float(test["QS"]), 4)
    assert set(last.vectors) == set(learnt.vectors)


def test_the_heat_map_of_weights_is_that_of_the_last_round_of_a_kept_run(tmp_path):
    options = reproduce.parse(["figures", "--data", "x", "--out", str(tmp_path)])
    assert figures.station_weights(options) is None
    one = Arm("e1", ev.BOULDER, 6, "PFGL", 0, options.turns, options.pace)
    rounds = [{"A": {"A": 1.0}, "B": {"B": 1.0}}, {"A": {"A": 0.6, "B": 0.4}, "B": {"B": 1.0}}]
    (tmp_path / one.file).write_text(json.dumps({"credits": rounds}))
    found = figures.station_weights(options)
    assert found["names"] == ["A", "B"]
    assert found["rows"] == [[0.6, 0.4], [0.0, 1.0]]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["No_FL", "PFGL", "week, alone", "week, federated", *SLOW])
def test_every_kind_of_row_learns_and_is_scored_station_by_station(folder, name):
    result = chargers.run(arm(name), folder)
    assert list(result["stations"]) == list(NAMES)
    assert all(0.0 < row["QS"] < 3.0 for row in result["stations"].values())
    assert ("without graph" in result) == bool(charging.FIELD[name].graph)
    assert ("served" in result) == (name in chargers.KEPT)
    json.dumps(result)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_run_repeats(folder):
    one, two = (chargers.run(arm("PFGL"), folder)["stations"] for _ in range(2))
    assert one == two


@pytest.mark.usefixtures("hasty")
def test_whoever_flips_its_model_is_shut_out_and_its_own_stays_good(folder):
    result = chargers.run(arm("PFGL", experiment="e3", attack="flipping", liars=1), folder)
    assert result["liars"] == ["C"]
    for credit in result["credits"][1:]:
        assert graph_claims.weights_of_liars(credit, ["C"]) == [0.0, 0.0]
    assert result["stations"]["C"]["QS"] < 3.0


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_poisoned_signal_is_no_answer_that_was_tampered_with(folder):
    result = chargers.run(arm("PFGL", attack="signal_flip@encode", liars=1), folder)
    assert np.isfinite(result["mean"]["QS"])


def test_what_is_served_of_the_test_part_does_not_know_its_future(folder):
    """A later reading moves no interval that was served before it."""
    base = charging.ground(arm("week, alone"), folder)
    name = "A"
    choose, test = base.origins(name, "choose"), base.origins(name, "test")
    fans = {part: np.tile([0.2, 0.5, 0.8], (len(rows), 1, 1)) for part, rows in
            (("choose", choose), ("test", test))}  # fmt: skip
    one = charging.calibrated(
        charging.Ground(base.bundle, {name: base.stations[name]}, {name: base.frames[name]}, None),
        {name: fans["choose"]},
        {name: fans["test"]},
    )[name]
    assert one["below"] <= 0.2
    assert one["MIL"] >= 0.6 - 1e-9  # no end is moved inwards


def told(name, score, **more):
    row = {"QS": score, "MIL": 1.0, "ICP": 0.8, "below": 0.1, "above": 0.1}
    plain = {"experiment": "e1", "dataset": ev.BOULDER, "horizon": 6, "seed": 0, "attack": ""}
    fields = {**plain, "rounds": 1, "steps": 1, "liars": 0, "stations": None, "credit": None}
    result = {"arm": {**fields, "name": name, **more}, "mean": row, "stations": {"A": row}}
    return {**result, "credits": [], "liars": [], "seconds": 1.0}


def test_a_claim_holds_in_every_seed_or_not_at_all():
    rows = [
        told("PFGL", 1.0),
        told("No_FL", 1.1),
        told("PFGL", 1.2, seed=1),
        told("No_FL", 1.1, seed=1),
    ]
    (claim,) = graph_claims.less(rows, "PFGL", "No_FL")
    assert not claim.holds
    assert graph_claims.less(rows[:2], "PFGL", "No_FL")[0].holds
    assert "-9.1%" in graph_claims.less(rows[:2], "PFGL", "No_FL")[0].detail


def test_runs_of_different_lengths_are_judged_apart():
    rows = [
        told("PFGL", 1.2, rounds=12),
        told("No_FL", 1.1, rounds=12),
        told("pooled", 1, rounds=0),
    ]
    rows += [told(x, qs, rounds=n) for n in (48, 480) for x, qs in (("PFGL", 1.0), ("No_FL", 1.1))]
    short, longer, longest = graph_pages.parted(rows)
    lengths = [{r["arm"]["rounds"] for r in part} for part in (short, longer, longest)]
    assert lengths == [{0, 12}, {48}, {480}]
    page = graph_pages.e1(rows, {})
    held = {claim.text: claim.holds for claim in page.claims}
    assert not held["QS of PFGL is below No_FL's"]
    for rounds in (48, 480):
        text = f"in {rounds} rounds, QS of PFGL is below No_FL's of the same length"
        assert held[f"{text} (PFGL at its best held-back round, No_FL at its last step)"]


def stations(name, **scores):
    """A run whose stations have these scores of QS, MIL and ICP."""
    rows = {x: dict(zip(("QS", "MIL", "ICP"), y, strict=True)) for x, y in scores.items()}
    return {**told(name, 1.0), "stations": rows}


def test_the_improved_rate_counts_stations_that_are_better_than_alone():
    """Lower in QS and MIL, and closer to 0.8 in ICP: 0.9 is as far as 0.7, and not closer."""
    alone = stations("No_FL", A=(1.0, 2.0, 0.7), B=(1.0, 2.0, 0.75))
    others = [stations(x, A=(1.0, 2.0, 0.7), B=(1.0, 2.0, 0.75)) for x in TABLE_V["", 0]]
    others[-1] = stations("PFGL", B=(1.2, 1.5, 0.82), A=(0.9, 1.0, 0.9))
    lines = graph_pages.by_station([alone, *others])
    rates = [line.split("|")[-2].strip() for line in lines if line.startswith("| PFGL")]
    assert rates == ["50%", "100%", "50%"]
    assert "| PFGL | 0.9 | 1.2 | 1.05 | 50% |" in lines  # by name, whatever the order of a run
    assert sum("LSTM-PFL" in line and line.endswith("| 0% |") for line in lines) == 3
    assert graph_pages.by_station([alone, *others[1:]]) == []  # a row is missing


@pytest.mark.parametrize(("near", "far", "holds"), [(0.9, 0.8, True), (1.2, 1.1, False)])
def test_the_headline_needs_a_gain_that_grows_with_the_horizon(near, far, holds):
    """A smaller loss six steps ahead is no gain."""
    rows = [told("PFGL", qs, horizon=h, rounds=48) for h, qs in ((1, near), (6, far))]
    rows += [told("No_FL", 1.0, horizon=h, rounds=48) for h in (1, 6)]
    (claim,) = graph_claims._growing(rows)
    assert claim.text.startswith("in 48 rounds, PFGL gains over No_FL at p=6")
    assert claim.holds is holds


def test_a_rise_is_counted_against_the_same_seed_unharmed():
    hit = told("PFGL", 1.02, experiment="e2", attack="flipping", liars=1)
    assert graph_claims.rises([told("PFGL", 1.0), hit], "PFGL", "flipping", 1) == [
        pytest.approx(0.02)
    ]
    calm, worse = (told("PFGL", 1.0), told("PFGL", 1.5, experiment="e2", attack="ipm", liars=1))
    calm["stations"] = {"A": {"QS": 1.0}, "B": {"QS": 1.0}}
    worse |= {"stations": {"A": {"QS": 1.1}, "B": {"QS": 1.9}}, "liars": ["B"]}
    both = [graph_claims.rises([calm, worse], "PFGL", "ipm", 1, honest=x)[0] for x in (True, False)]
    assert both == [pytest.approx(0.1), pytest.approx(0.5)]
    claims = graph_claims.of_e2([told("PFGL", 1.0), told("No_FL", 1.01), hit])
    assert [x.holds for x in claims] == [True, True, False, False]
    assert ["honest" in x.text for x in claims] == [False, True, False, True]


def test_attacks_are_judged_set_by_set():
    rows = []
    for dataset, score in ((ev.BOULDER, 1.5), (ev.CALTECH, 1.0)):
        at = {"dataset": dataset}
        lie = {"experiment": "e2", "attack": "flipping", "liars": 1}
        rows += [told("PFGL", 1.0, **at), told("PFGL", score, **at, **lie)]
    found = [x for x in graph_claims.of_e2(rows) if "all stations" in x.text]
    assert [(x.text.split(":")[0], x.holds) for x in found] == [
        (ev.TITLES[ev.BOULDER], False),
        (ev.TITLES[ev.CALTECH], True),
    ]


def test_who_learnt_from_the_choosing_part_is_no_mark(tmp_path):
    (tmp_path / "results").mkdir()
    rows = {"conv_local": 3.0, "lgbm_pooled": 2.0, "lgbm_pooled_week": 1.0, "lgbm_refit": 0.5}
    table = {name: {"0": {"mean": {"QS": score}}} for name, score in rows.items()}
    (tmp_path / "results" / f"{ev.BOULDER}_p6.json").write_text(json.dumps(table))
    found = marks(tmp_path)[ev.BOULDER, 6]
    assert found == {
        "must beat": ("conv_local", 3.0),
        "same window": ("lgbm_pooled", 2.0),
        "stretch": ("lgbm_pooled_week", 1.0),
    }


def test_arms_come_once_and_seeds_one_after_the_other():
    options = reproduce.parse(["e1", "e2", "e3", "e4", "--data", "x", "--seeds", "2"])
    found = graphs.arms(options)
    assert len(set(found)) == len(found)
    assert [x.seed for x in found] == sorted(x.seed for x in found)
    assert len({x.file for x in found}) == len(found)


def test_pages_are_made_of_what_is_finished(folder, tmp_path, capsys):
    options = ["e1", "e2", "e3", "e4", "--data", str(folder), "--out", str(tmp_path), "--kept"]
    assert reproduce.main([*options, "--seeds", "1"]) == 2  # nothing is
    some = {"h6-PFGL": told("PFGL", 1.0), "h6-No_FL": told("No_FL", 1.1)}
    credit = [{"A": {"A": 1.0}}] * 3
    for sigma in graphs.CREDITS:
        fields = {"experiment": "e3", "attack": "flipping", "liars": 1, "credit": sigma}
        some[f"c{sigma}"] = told("PFGL", 1.0, **fields) | {"credits": credit}
    wanted = {x.file: x for x in graphs.arms(reproduce.parse([*options, "--seeds", "1"]))}
    for result in some.values():
        arm = Arm(**result["arm"])
        match = next(
            x for x in wanted.values()
            if (x.experiment, x.name, x.attack, x.credit, x.horizon, x.dataset)
            == (arm.experiment, arm.name, arm.attack, arm.credit, 6, ev.BOULDER)
        )  # fmt: skip
        (tmp_path / match.file).write_text(json.dumps(result))
    assert reproduce.main([*options, "--seeds", "1"]) == 0
    page = capsys.readouterr().out
    assert "| QS of PFGL is below No_FL's | **reproduced** | Boulder p=6 -9.1% |" in page
    assert "the entropy of a row's weights rises with sigma" in page
    assert (tmp_path / "E1.html").exists()


def test_the_papers_length_is_one_length_of_the_named_rows():
    words = ["e1", "--data", "x", "--seeds", "1", "--turns", "100", "--pace", "656"]
    listed = graphs.arms(reproduce.parse([*words, "--rows", "PFGL", "No_FL"]))
    assert {(x.name, x.rounds, x.steps) for x in listed} == {
        ("PFGL", 100, 656),
        ("No_FL", 100, 656),
    }
    assert {(x.dataset, x.horizon) for x in listed} == {(d, h) for d in ev.SETS for h in (1, 6)}
