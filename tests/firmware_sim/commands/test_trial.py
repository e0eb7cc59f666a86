"""What a trial's table says: by rule, about those who never lie."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.trial import Trial, TrialRow, available_updates, table, verdicts
from firmware_sim.reports.forecast_errors import Error, Errors
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

FLIP = AttackPlan("flipping", 0.25)


def row(rmse, attack_plan=FLIP, rounds=20, **learning):
    clean = None if attack_plan is None else 2.0
    errors = Errors({"a": Error(1.0, rmse, 9), "b": Error(3.0, rmse, 9)})
    return TrialRow(RunSettings(**learning), attack_plan, errors, {"LATE": 3}, rounds, clean)


@pytest.mark.parametrize(
    ("rmse", "rounds", "word"),
    [
        (1.9, 20, "holds"),
        (2.3, 20, "holds"),
        (2.31, 20, "suffers"),
        (4.0, 20, "doubles"),
        (20.0, 20, "diverges"),
        (math.inf, 20, "diverges"),
        (math.nan, 20, "diverges"),
        (2.0, 19, "stalled"),
        (1e40, 19, "diverges"),
    ],
)
def test_the_outcome_follows_from_the_rise(rmse, rounds, word):
    assert row(rmse, rounds=rounds).outcome == word


def test_equal_errors_of_runs_in_which_nothing_was_learned_are_no_success():
    clean, attacked = row(2.0, None), row(2.0)
    untrained = replace(clean.errors, is_untrained=True)
    assert (clean.outcome, attacked.outcome) == ("", "holds")
    rows = [
        replace(clean, errors=untrained),
        replace(attacked, errors=untrained),
        replace(attacked, is_clean_untrained=True),
    ]
    assert {one.outcome for one in rows} == {"nothing was learned"}
    assert verdicts(rows) == ["fedavg with mean: nothing was learned under 25 % flipping, flipping"]
    assert replace(
        row(math.inf), errors=replace(row(math.inf).errors, is_untrained=True)
    ).outcome == ("diverges")


def test_the_table_has_a_line_per_run_and_a_verdict_per_configuration():
    rows = [row(2.0, None), row(1e41), row(2.0, None, method="bafdp"), row(2.1, method="bafdp")]
    text = table(rows, "kWh")
    assert "x 5e+40" in text
    assert "means over the 2 devices that are honest in every run, kWh" in text
    assert text.splitlines()[-2:] == verdicts(rows) == [
        "fedavg with mean: diverges under 25 % flipping",
        "bafdp with its own: holds under 25 % flipping",
    ]  # fmt: skip
    assert all(" 2 " in line or "e+41 " in line for line in text.splitlines()[1:5])


def test_non_finite_numbers_are_null_in_json():
    told = json.loads(json.dumps(row(math.inf).as_json(), allow_nan=False))
    assert (told["rmse"], told["rise"], told["outcome"]) == (None, None, "diverges")
    assert told["mae"] == 2.0


def test_devices_byzantine_in_any_run_are_not_evaluated(tmp_path):
    homes = sample_set("homes")
    some = (FLIP, AttackPlan("alie", 0.25, selection="seeded", seed=3))
    trial = Trial(Scenario("x", devices=8, attacks=some), homes, tmp_path, shown=None)
    ids = [sample.device for sample in homes.samples]
    byzantine = some[0].malicious(ids) | some[1].malicious(ids)
    assert set(trial.evaluated) == set(ids) - byzantine
    assert 2 <= len(byzantine) <= 4


@pytest.mark.parametrize(
    ("attack", "answers"), [("flipping", 8), ("delay", 8), ("nan", 6), ("empty_payload", 6)]
)
def test_no_round_waits_for_updates_that_never_arrive(attack, answers):
    assert available_updates(Scenario("x", devices=8), AttackPlan(attack, 0.25)) == answers
