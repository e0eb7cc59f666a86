"""What a command line says of liars and rules becomes what the aggregator and the cast are told."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from edge_sdk.app.settings import SettingsError
from firmware_sim.commands.options import arguments, pairs, rule
from firmware_sim.commands.run_options import is_trial, with_trial
from firmware_sim.scenario import RunSettings, Scenario

TEN = Scenario("ten", devices=10)


def told(*line):
    parser = ArgumentParser()
    parser.add_argument("--method")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--encoding")
    parser.add_argument("--setting", action="append", default=[])
    arguments(parser)
    return with_trial(TEN, parser.parse_args(line))


def test_without_options_nothing_changes():
    assert told() == TEN
    assert not is_trial(told())


def test_f_of_every_rule_is_the_number_of_byzantine_devices():
    chosen = told("--attack", "alie", "--byzantine", "0.3", "--rule", "mean,krum,nnm+median")
    tables = [way.rule for way in (chosen.run, *chosen.comparisons)]
    assert tables == [
        {"name": "mean"},
        {"name": "krum", "f": 3},
        {"name": "median", "f": 3, "preaggregation": ["nnm"]},
    ]
    assert [way.rule_name for way in chosen.comparisons] == ["krum", "nnm+median"]


def test_f_can_be_configured():
    assert told("--attack", "alie", "--rule", "krum", "--f", "1").run.rule["f"] == 1
    assert "f" not in told("--attack", "alie", "--rule", "krum", "--f", "0").run.rule


def test_options_reach_their_rule_and_their_attack():
    table = rule("bucketing+multi_krum", pairs(["m=4", "bucketing.size=3"], "--rule-option"), 2)
    assert table == {
        "name": "multi_krum", "f": 2, "m": 4, "preaggregation": [{"name": "bucketing", "size": 3}],
    }  # fmt: skip
    (one,) = told("--attack", "scaling", "--attack-option", "factor=-4").attacks
    assert one.bound.act.keywords == {"factor": -4.0}
    assert one.seed == 7


def test_every_method_is_combined_with_every_rule():
    chosen = told("--method", "fedavg,fedadam", "--rule", "mean,median")
    ways = [(way.method, way.rule_name) for way in (chosen.run, *chosen.comparisons)]
    assert ways == [(m, r) for m in ("fedavg", "fedadam") for r in ("mean", "median")]
    assert is_trial(chosen)
    assert chosen.run.rounds == RunSettings().rounds


@pytest.mark.parametrize("who", ["first", "seeded"])
def test_the_byzantine_devices_are_fixed_for_the_run(who):
    chosen = told("--attack", "alie,ipm", "--byzantine", "0.3", "--malicious", who)
    ids = [f"home-{n}" for n in range(10)]
    sets = {one.malicious(ids) for one in chosen.attacks}
    assert len(sets) == 1
    assert len(sets.pop()) == 3


def test_a_setting_goes_to_all_methods_or_to_the_one_that_it_names():
    chosen = told(
        "--method", "fedavg,fedprox", "--setting", "rate=0.1", "--setting", "fedprox.prox=2"
    )
    ways = {way.method: way.settings for way in (chosen.run, *chosen.comparisons)}
    assert ways == {"fedavg": {"rate": 0.1}, "fedprox": {"rate": 0.1, "prox": 2}}


def test_a_setting_of_a_method_without_a_run_is_refused():
    with pytest.raises(
        SettingsError, match=r"--setting fedprox\.prox: no run has the method 'fedprox'"
    ):
        told("--method", "fedavg", "--setting", "fedprox.prox=2")


def test_a_seed_reaches_the_aggregator_and_the_attacks_of_every_run():
    chosen = told("--method", "fedavg,fedprox", "--attack", "alie").with_seed(5)
    assert [chosen.run.seed, *(one.seed for one in chosen.comparisons)] == [5, 5]
    assert [one.seed for one in chosen.attacks] == [5]
