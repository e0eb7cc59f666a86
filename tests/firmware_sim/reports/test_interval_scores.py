"""What a trial tells of intervals and of trust, for a person and for a program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.trial import TrialRow, table
from firmware_sim.reports.credit_report import CreditReport
from firmware_sim.reports.forecast_errors import Error, Errors, ForecastExample, IntervalCoverage
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, scenario

ROUNDS = {
    1: {"a": {"a": 0.5, "liar": 0.5}, "b": {"b": 1.0}, "liar": {"liar": 1.0}},
    2: {"a": {"a": 0.6, "b": 0.4}, "b": {"a": 0.5, "b": 0.5}, "liar": {"liar": 1.0}},
    3: {"a": {"a": 0.6, "b": 0.4}, "b": {"a": 0.5, "b": 0.5}},
}
TEXT = "what it means:\nversion  1  2\na .00 .50\nliar .25 0\nexcluded: liar"


def row(attack_plan=None):
    glimpse = ForecastExample(
        "a", np.array([0]), np.ones(1), np.array([[0.0, 2.0]]), np.array([1.5])
    )
    fared = {
        "a": IntervalCoverage(0.0, 0.08, 2.5, 0.1),
        "b": IntervalCoverage(0.02, 0.11, 9.0, 0.1),
    }
    errors = Errors({"a": Error(1.0, 2.0, 9), "b": Error(1.0, 2.0, 9)}, fared, (glimpse,))
    byzantine = frozenset({"liar"}) if attack_plan else frozenset()
    credit = CreditReport(ROUNDS, TEXT, Path("credit.svg"))
    clean = 2.0 if attack_plan else None
    learning = RunSettings("pfl", rounds=3)
    return TrialRow(
        learning, attack_plan, errors, {}, 3, clean, devices=3, credit=credit, byzantine=byzantine
    )


def test_an_attacked_run_shows_byzantine_devices_intervals_and_one_forecast():
    text = table([row(), row(AttackPlan("flipping", 0.34))], "kWh")
    (line,) = [one for one in text.splitlines() if one.endswith("Byzantine")]
    assert line.startswith("liar")
    assert "b       0.020  0.110  9.00" in text
    assert "1.00      0.00 to 2.00" in text
    assert text.count("what it means") == 1  # the run without liars has its numbers in the JSON


def test_the_json_gives_the_round_since_which_a_liar_is_excluded():
    told = json.loads(json.dumps(row(AttackPlan("flipping", 0.34)).as_json()))
    assert told["excluded_since"] == {"liar": 2}
    assert told["intervals"]["a"] == {"below": 0.0, "above": 0.08, "length": 2.5, "aim": 0.1}
    assert told["credit"]["1"]["a"]["liar"] == 0.5
    assert row().as_json()["excluded_since"] == {}


def test_a_device_that_has_weight_in_the_last_round_is_not_excluded():
    assert CreditReport(ROUNDS, TEXT, Path()).since("b") is None
    assert CreditReport({}, TEXT, Path()).since("b") is None


def test_misses_are_counted_per_side_without_gaps():
    ends = np.tile([0.0, 1.0], (5, 2, 1))
    truth = np.array([[2.0, 0.5], [-1.0, 2.0], [np.nan, 0.5], [0.5, 0.5], [0.5, 0.5]])
    fared = IntervalCoverage.of(ends, truth, 0.9)
    assert (fared.below, fared.above) == pytest.approx((1 / 9, 2 / 9))
    assert fared.aim == 0.05


def test_the_chargers_scenario_has_its_documented_settings():
    ev = scenario("ev")
    assert (ev.devices, ev.run.method) == (8, "pfl")
    samples = sample_set(ev.samples)
    assert len(samples.samples) == 8
    (attack_plan,) = ev.attacks
    assert attack_plan.count(ev.devices) == 2
    first, last = ev.span
    assert last - first == 42 * 86_400
