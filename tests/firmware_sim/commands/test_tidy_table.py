"""The table of repeated runs has a row for each seed, run and device."""

from __future__ import annotations

import csv

from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.fleet import COLUMNS, over_seeds, write_csv
from firmware_sim.commands.trial import TrialRow
from firmware_sim.reports.forecast_errors import Error, Errors
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings


def rows(seed, mae):
    name = sample_set("homes").with_seed(seed).samples[0].device
    errors = Errors({name: Error(mae, 2 * mae, 9)})
    plain = RunSettings("fedprox", settings={"prox": 0.1, "steps": 4})
    return [
        TrialRow(plain, None, errors, {}, 3),
        TrialRow(plain, AttackPlan("alie"), errors, {}, 3, clean=1.0),
    ]


def test_every_seed_run_and_device_has_a_row_and_devices_keep_their_names(tmp_path):
    path = tmp_path / "runs.csv"
    write_csv({0: rows(0, 1.0), 7: rows(7, 3.0)}, path)
    with path.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert [(row["seed"], row["attack"]) for row in table] == [
        ("0", "none"), ("0", "alie"), ("7", "none"), ("7", "alie"),
    ]  # fmt: skip
    assert {row["device"] for row in table} == {"home-102040"}
    assert table[2]["settings"] == "prox=0.1;steps=4"
    assert (table[2]["mae"], table[2]["rmse"], table[2]["windows"]) == ("3.0", "6.0", "9")


def test_runs_are_averaged_over_seeds():
    text = over_seeds({0: rows(0, 1.0), 7: rows(7, 3.0)})
    assert text.splitlines()[0].startswith("over 2 seeds")
    assert "fedprox mean f4, attack none" in text
    assert "2 +- 1.4" in text


def test_a_seed_renames_the_devices_so_that_they_draw_other_minibatches():
    homes = sample_set("homes")
    assert homes.with_seed(0) == homes
    assert {one.device for one in homes.with_seed(1).samples}.isdisjoint(
        one.device for one in homes.with_seed(2).samples
    )
