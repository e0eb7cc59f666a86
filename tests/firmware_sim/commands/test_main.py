"""The commands say what they would do and refuse what they should not touch."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

import pytest

from firmware_sim.commands import main as cli
from firmware_sim.commands import run_options
from firmware_sim.commands.demo import OutputFolderError, clear
from firmware_sim.commands.options import arguments


def test_list_names_every_sample_with_its_licence(capsys):
    assert cli.main(["list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {x["licence"] for x in told["samples"].values()} >= {"CC BY 4.0"}
    assert "demo" in told["scenarios"]


def test_options_override_a_scenario():
    parser_defaults = {
        "graph": None,
        "graph_option": [],
        "scenario": "demo",
        "like": None,
        "devices": 3,
        "bundle": None,
        "method": None,
        "encoding": None,
        "downlink": None,
        "rounds": 5,
        "shared": ("lstm.",),
        "steps": 7,
        "rate": None,
        "data": None,
        "days": 28,
        "evaluation_days": 7,
        "quorum": 2,
        "privacy": None,
        "setting": ["server_rate=0.5", "optimiser=sgd"],
        "seed": 0,
    }
    parser = ArgumentParser()
    arguments(parser)
    told = vars(parser.parse_args([])) | parser_defaults
    chosen, samples = run_options.chosen_scenario(Namespace(**told))
    assert (chosen.devices, chosen.run.rounds) == (3, 5)
    assert chosen.run.quorum == 2
    own = {"server_rate": 0.5, "optimiser": "sgd"}
    assert chosen.run.settings == {"steps": 7, "rate": 0.0005} | own
    assert chosen.until.startswith("2018-06-25"), "the scenario's own history"
    assert samples.name == "homes"


def test_an_unknown_set_and_scenario_are_refused_in_one_sentence(capsys):
    assert cli.main(["fleet", "--like", "meters"]) == 2
    assert "gridfed-sim: no sample set 'meters'; there are: cells" in capsys.readouterr().err
    assert cli.main(["demo", "--scenario", "nothing", "--out", "/nonexistent/x"]) != 0


def test_a_foreign_output_folder_is_not_emptied(tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputFolderError, match="is not empty"):
        clear(out)
    assert (out / "chapter.tex").exists()


def test_an_earlier_demo_is_replaced(tmp_path):
    out = tmp_path / "demo"
    clear(out)
    (out / "index.html").write_text("old")
    clear(out)
    assert [x.name for x in out.iterdir()] == [".gridfed-sim"]


def test_a_fleet_without_shared_layers_is_refused(capsys):
    assert cli.main(["fleet", "--shared", "none", "--devices", "2"]) == 2
    assert "no rounds" in capsys.readouterr().err


def test_attacks_are_listed_with_their_definitions(capsys):
    assert cli.main(["attacks", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["alie"]["omniscient"]
    assert told["scaling"]["options"] == {"factor": 10.0}
    assert all(row["definition"] for row in told.values())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--attack", "aliee"], "unknown attack 'aliee'; known: alie"),
        (["--attack", "alie", "--attack-option", "q=1"], "unknown option 'q'"),
        (["--attack", "alie", "--attack-option", "z"], "expected KEY=VALUE, got 'z'"),
        (["--byzantine", "0.2"], "--byzantine needs --attack"),
        (["--attack", "alie", "--byzantine", "1.5"], "--byzantine: expected"),
        (["--attack", "alie", "--start-round", "0"], "--start-round: expected"),
        (["--attack", "alie", "--patience", "soon"], "--patience: expected"),
        (["--attack", "signal_flip"], "devices of fedavg send no activations"),
        (
            ["--method", "fedsgd", "--attack", "alie", "--attack-option", "target=weights"],
            "part 'grad' has no weights",
        ),
        (
            ["--attack", "twin", "--start-round", "3"],
            "must be 1 for twin, which cannot observe rounds",
        ),
        (["--method", "dp_rsa"], "devices must make their signs noisy"),
        (["--privacy", "nothing.toml"], "nothing.toml: "),
        (["--attack", "alie", "--processes"], "share one process"),
        (["--attack", "alie", "--aggregator", "x.toml"], "starts its own aggregator"),
        (["--graph", "ring"], "--graph: fedavg has no graph"),
        (["--method", "pfgl"], "--method pfgl: needs a graph of sites"),
        (["--method", "cnfgnn", "--graph", "torus"], "--graph torus: cnfgnn has no such graph"),
    ],
)
def test_an_invalid_attack_is_refused_before_anything_starts(capsys, options, why):
    assert cli.main(["fleet", *options]) == 2
    assert why in capsys.readouterr().err
