"""``gridfed-aggregator replay`` on the database of a real daemon, with Byzantine devices."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

from aggregator.commands import main as cli
from firmware_sim.attacks.attack_plan import AttackPlan
from tests.fleet.conftest import STREAMS, World, history
from tests.fleet.test_attacks import begin, learned

RULES = {
    "trimmed_mean": {"name": "trimmed_mean", "f": 1},
    "nnm+krum": {"name": "krum", "f": 1, "preaggregation": ["nnm"]},
}


def incident(world, **run):
    one = world(devices=5, run=run)
    begin(one, AttackPlan("alie", byzantine=0.2))
    learned(one, 3)
    return one


def printed(capsys, *args, code=0):
    capsys.readouterr()
    assert cli.main(["replay", *map(str, args)]) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err


@pytest.mark.parametrize("rule", RULES)
def test_first_round_equals_a_run_with_that_rule(world, capsys, tmp_path, rule):
    """The model of round 1 is that of a fleet which had the rule from the start, to the bit."""
    one = incident(world)
    args = (one.config, "--rounds", "1:3", "--rule", rule, "--f", "1")
    picture = tmp_path / "replay.svg"
    found = json.loads(printed(capsys, *args, "--out", picture, "--json"))
    anew = incident(world, rule=RULES[rule])
    again = json.loads(printed(capsys, anew.config, "--rounds", "1:3", "--json"))
    models = [[round_[c]["model"] for round_ in found["rounds"]] for c in ("recorded", "chained")]
    recorded = [round_["recorded"]["model"] for round_ in again["rounds"]]
    assert models[1][0] == recorded[0] != models[0][0]
    assert models[1][1] != recorded[1], "devices answered another model"
    assert found["rule"] == {"recorded": {"name": "mean"}, "replayed": RULES[rule]}
    assert picture.read_text("utf-8").startswith("<svg")
    assert all(np.isfinite(round_["recorded"]["loss"]) for round_ in found["rounds"])


def test_a_replay_by_layer_is_a_run_by_layer(world, capsys):
    by_layer = {"name": "geometric_median", "f": 1, "scope": "layer"}
    one, anew = incident(world), incident(world, rule=by_layer)
    args = (
        "--rounds",
        "1",
        "--rule",
        "geometric_median",
        "--f",
        "1",
        "--parameter",
        'scope="layer"',
        "--json",
    )
    (replayed,) = json.loads(printed(capsys, one.config, *args))["rounds"]
    (whole,) = json.loads(printed(capsys, one.config, *args[:6], "--json"))["rounds"]
    (recorded,) = json.loads(printed(capsys, anew.config, "--rounds", "1", "--json"))["rounds"]
    assert replayed["chained"]["model"] == recorded["recorded"]["model"]
    assert whole["chained"]["model"] != replayed["chained"]["model"]


def test_a_replay_beside_the_daemon_changes_nothing(world, capsys):
    one = incident(world)
    path = one.config.parent / "aggregator" / "aggregator.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        before = list(db.iterdump())
        text = printed(capsys, one.config, "--rounds", "2", "--rule", "nnm+krum", "--f", "1")
        assert list(db.iterdump()) == before
    assert "round 2" in text
    assert "excluded home-" in text
    assert "exact for the first round" in text


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A fleet of three with one closed round; every refusal leaves it as it is."""
    one = World(tmp_path_factory.mktemp("fleet"), run={"quorum": 3})
    one.start_all()
    learned(one, 1)
    yield one
    one.close()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--rounds", "2:1"), "--rounds: expected I:J with 1 <= I <= J, got '2:1'"),
        (("--rounds", "x"), "--rounds: expected I:J"),
        (("--rounds", "1:99"), "rounds 1:99: expected rounds of 1:"),
        (("--rounds", "1", "--rule", "krumm"), "run.rule.name: unknown rule 'krumm'"),
        (("--rounds", "1", "--rule", "krum", "--f", "9"), "run.rule.f: 9 Byzantine updates"),
        (("--rounds", "1", "--without", "home-7"), "--without: 'home-7' is not enrolled"),
        (("--rounds", "1", "--run", "7"), "no run 7 under this configuration; it has: 1"),
        (("--rounds", "1", "--parameter", "b"), "--parameter: expected KEY=VALUE, got 'b'"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(recorded, capsys, args, says):
    assert cli.main(["replay", str(recorded.config), *args]) in {1, 2}
    assert says in capsys.readouterr().err


def held_out(folder, hours=300):
    """Readings of a home that is in no fleet."""
    lines = ["time,elec.import.energy,weather.temperature,weather.wind_speed"]
    rows = {}
    for one in history(9, hours):
        rows.setdefault(int(one.time), {})[one.stream] = one.value
    lines += [f"{at}," + ",".join(str(row[name]) for name in STREAMS) for at, row in rows.items()]
    path = folder / "trusted.csv"
    path.write_text("\n".join(lines))
    return path


def test_choose_f_names_the_device_that_did_harm(world, capsys, tmp_path):
    """One home of five scales its updates; the median was recorded, and without a rule is worse."""
    one = world(devices=5, run={"rule": {"name": "median", "f": 1}})
    begin(one, AttackPlan("scaling", byzantine=0.2))
    learned(one, 3)
    args = ["choose-f", str(one.config), "--readings", str(held_out(tmp_path))]
    capsys.readouterr()
    assert cli.main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["f"] for each in found["curve"]] == [0, 1, 2]
    assert (found["f"], found["configured"], found["rounds"][0]) == (1, 1, 1)
    assert found["curve"][0]["error"] > 1.1 * found["curve"][1]["error"]
    assert cli.main(args) == 0
    assert "f = 1: the least within 0.01 of the least error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--readings", "none.csv"), "none.csv: "),
        (("--readings", "short.csv"), "short.csv has fewer than 24 complete windows for load-mlp"),
        (("--readings", "long.csv", "--rounds", "9"), "rounds 9:9: expected rounds of 1:"),
        (("--readings", "none.csv", "--rule", "krumm"), "--rule: unknown rule 'krumm'"),
    ],
)
def test_what_choose_f_cannot_score_is_one_sentence(recorded, capsys, monkeypatch, args, says):
    monkeypatch.chdir(recorded.folder)
    held_out(recorded.folder).rename(recorded.folder / "long.csv")
    (recorded.folder / "short.csv").write_text("time,kwh\n3600,1\n")
    assert cli.main(["choose-f", str(recorded.config), *args]) in {1, 2}
    assert says in capsys.readouterr().err
