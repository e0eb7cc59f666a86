"""``gridfed-sim fleet --direct``: its output, its repeated runs, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from firmware_sim.commands.main import main
from firmware_sim.direct import simulation

SMALL = ("fleet", "--direct", "--devices", "4", "--bundle", "load-mlp", "--steps", "1")


def run(capsys, *more):
    code = main([*SMALL, *more, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


@pytest.mark.slow
def test_repeated_asynchronous_runs_give_the_same_bits(capsys):
    code, found = run(capsys, "--method", "fedasync", "--rounds", "12", "--repeat", "3")
    assert code == 0
    assert found["repeated"] == len(found["seconds"]) == 3
    assert found["rounds"] == 12
    assert found["updates"] >= 12
    again = run(capsys, "--method", "fedasync", "--rounds", "12")[1]
    assert again["state"] == found["state"]
    other = run(capsys, "--method", "fedasync", "--rounds", "12", "--seed", "7")[1]
    assert other["state"] != found["state"]


def test_sleeps_and_losses_are_drawn_from_the_seed(capsys):
    plan = ("spread=1", "sleep=0.5", "nap=50", "loss=0.2", "again=5")
    drawn = [word for one in plan for word in ("--arrivals", one)]
    buffered = ("--method", "fedasync", "--rounds", "6")
    code, found = run(capsys, *buffered, *drawn, "--repeat", "2")
    assert code == 0
    plain = run(capsys, *buffered)[1]
    assert found["virtual_seconds"] > 3 * plain["virtual_seconds"]
    assert found["state"] != plain["state"]


def test_answers_take_the_drawn_times():
    plan = simulation.ArrivalPlan(spread=0.0, sleep=0.1, loss=0.25)
    drawn = simulation.ArrivalTimes(1, plan)
    late = np.array([drawn.next("a") for _ in range(4000)]) - 1.0
    assert np.median(late) < 1.0
    assert late.mean() == pytest.approx(0.13 + 0.1 * 100 + 10 * 0.25 / 0.75, rel=0.1)


def test_runs_that_differ_are_reported(capsys, monkeypatch):
    draws = iter(range(10_000))
    monkeypatch.setattr(simulation.ArrivalTimes, "next", lambda *_: 1.0 / (1 + next(draws) % 7))
    code = main([*SMALL, "--method", "fedasync", "--rounds", "9", "--repeat", "2"])
    assert code != 0
    assert "other bits than run 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_comparison_of_methods_and_attacks_needs_no_broker(capsys, tmp_path):
    table = tmp_path / "runs.csv"
    options = ("--method", "fedavg,fedprox", "--attack", "flipping", "--csv", str(table))
    code, found = run(capsys, "--rounds", "2", *options)
    assert code == 0
    assert [row["attack"] for row in found["runs"]] == [None, "flipping"] * 2
    assert all(row["rmse"] > 0 for row in found["runs"])
    assert [row["outcome"] for row in found["runs"][::2]] == ["", ""]
    assert len(table.read_text().splitlines()) == 1 + 4 * 3


@pytest.mark.parametrize("rate", ["0", "1e-9"])
def test_runs_with_a_rate_of_zero_learn_nothing_and_say_so(capsys, rate):
    code, found = run(capsys, "--rounds", "1", "--rate", rate, "--attack", "fdi_bias")
    assert code == 0
    assert [row["outcome"] for row in found["runs"]] == ["nothing was learned"] * 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--broker", "mqtt://127.0.0.1:1"), "--direct"),
        (("--repeat", "0"), "at least 1"),
        (("--workers", "-1"), "expected 0 to"),
        (("--fault", "brownouts=1"), "--direct"),
        (("--attack", "delay"), "link"),
        (("--arrivals", "sped=1"), "--arrivals sped: unknown key"),
        (("--arrivals", "loss=1"), "--arrivals loss"),
        (("--arrivals", "loss=0.1", "--seeds", "0"), "of one run"),
    ],
)
def test_what_does_not_fit_is_refused(capsys, more, words):
    assert main([*SMALL, *more]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_workers_change_no_bit_of_the_printed_digests(capsys):
    found = [run(capsys, "--rounds", "3", "--workers", number)[1] for number in ("0", "2")]
    assert [one["workers"] for one in found] == [0, 2]
    assert found[0]["state"] == found[1]["state"]
    assert found[0]["model"] == found[1]["model"]


def test_workers_without_direct_or_beside_a_comparison_are_refused(capsys):
    assert main(["fleet", "--devices", "2", "--workers", "2"]) == 2
    assert "add --direct" in capsys.readouterr().err
    assert main([*SMALL, "--workers", "2", "--attack", "flipping"]) == 2
    assert "train their devices in one process" in capsys.readouterr().err


def test_repeat_without_direct_is_refused(capsys):
    assert main(["fleet", "--devices", "2", "--repeat", "2"]) == 2
    assert "add --direct" in capsys.readouterr().err
