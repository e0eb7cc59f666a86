"""The real programs, over a real broker: a small fleet, a small demo, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        not (has_embedded() or mosquitto_program()), reason="neither iotcore nor mosquitto here"
    ),
]

SMALL = """
title = "two homes, two rounds"
devices = 2
bundle = "load-week-1"
start = "2018-01-01T08:00Z"
until = "2018-02-01T08:00Z"
newcomer_days = 10
validation = ["2018-02-01T08:00Z", "2018-02-02T08:00Z"]
evaluation = ["2018-02-02T08:00Z", "2018-02-04T08:00Z"]
tuning_notes = "small"
[run]
shared = ["body."]
rounds = 2
settings = { steps = 4, rate = 0.003 }
"""


def sim(*arguments, timeout=850):
    line = [
        sys.executable,
        "-c",
        "from firmware_sim.commands.main import main; raise SystemExit(main())",
    ]
    return subprocess.run(
        [*line, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def left_of(folder):
    """Processes whose command line names the folder."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = line.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in text and int(line.parent.name) != os.getpid():
            found.append(text.replace("\0", " "))
    return found


@pytest.mark.slow
def test_a_fleet_with_power_failures_completes_its_rounds(tmp_path):
    options = ["--devices", "3", "--rounds", "4", "--steps", "8", "--bundle", "load-mlp"]
    fault = [
        "--processes",
        "--fault",
        "brownouts=10",
        "--seed",
        "194",
    ]  # the first cut is due after 0.3 s, whatever the machine does
    done = sim("fleet", *options, *fault, "--days", "14", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"] == 4
    assert told["brownouts"] > 0
    assert left_of(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fault", "noise=1"], "--fault noise: unknown; known: brownouts"),
        (["--fault", "brownouts=-1"], "-1 is not a rate"),
        (["--fault", "brownouts=1", "--in-process"], "only a process can lose its power"),
    ],
)
def test_an_unknown_fleet_fault_is_refused(words, said):
    done = sim("fleet", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["--in-process", "--processes"])
def test_a_fleet_completes_its_rounds_and_prints_their_cost(tmp_path, where):
    options = ["--devices", "3", "--rounds", "3", "--steps", "2", "--bundle", "load-mlp", where]
    done = sim("fleet", *options, "--days", "14", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["devices"], told["rounds"]) == (3, 3)
    each = told["per_device_and_round"]
    assert 4 * 8384 < each["bytes_up"] < 3 * 4 * 8384, "one update of float32 a round, and words"
    assert each["device_cpu_ms"] > 0
    assert told["refused"] == {}
    assert sum(told["served"].values()) == (3 if where == "--processes" else 0)
    own = told["own_process"]
    assert set(own) == (
        {"setup_ms", "device_kb", "store_kb", "peak_mb"} if where == "--in-process" else set()
    )
    if own:
        assert own["setup_ms"] > 0
        assert 50 < own["store_kb"] < 1_000, "a store with a short log"
        assert 10 < own["peak_mb"] < 1_000
    assert left_of(tmp_path) == []


@pytest.mark.slow
def test_a_method_with_noisy_signs_runs_with_a_privacy_file(tmp_path):
    noise = tmp_path / "noise.toml"
    noise.write_text(
        '[privacy]\nmode = "honest"\nbudget = { epsilon = 8.0 }\n'
        'mechanism = { name = "sign_gaussian", point = "sign", clip_norm = 1.0, noise_multiplier = 20.0 }\n'
    )
    options = ["--like", "cells", "--bundle", "cells-mlp-1", "--method", "dp_rsa", "--devices", "3"]
    files = ["--privacy", str(noise)]
    done = sim("fleet", *options, "--rounds", "2", "--in-process", "--json", *files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2


@pytest.mark.slow
def test_devices_without_a_server_exchange_over_a_real_broker(tmp_path):
    options = ["--method", "dfl_gt", "--devices", "4", "--rounds", "2", "--bundle", "load-mlp"]
    graph = ["--graph", "torus", "--days", "14", "--out", str(tmp_path), "--json"]
    done = sim("fleet", *options, *graph)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["runs"]
    assert (row["rule"], row["rounds"]) == ("torus", 2)
    assert row["disagreement"][-1] > 0
    assert row["windows"] > 0
    assert left_of(tmp_path) == []


@pytest.mark.soak
def test_a_fleet_of_cells_trains_a_day_ahead_model(tmp_path):
    options = ["--devices", "3", "--rounds", "2", "--steps", "2", "--samples", "cells"]
    done = sim("fleet", *options, "--bundle", "cells-mlp-24", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rounds"], told["refused"]) == (2, {})
    assert told["per_device_and_round"]["bytes_up"] > 4 * 10584


@pytest.mark.slow
def test_the_demo_evaluates_every_device_and_writes_its_page(tmp_path):
    scenario = tmp_path / "small.toml"
    scenario.write_text(SMALL)
    out = tmp_path / "out"
    done = sim("demo", "--scenario", str(scenario), "--out", str(out), "--json", timeout=850)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["devices"]) == 2
    for row in told["devices"]:
        assert row["windows"] == 48
        assert row["scores"]["persistence"]["mase"] == pytest.approx(1.0, abs=0.05)
        assert 0 < row["bytes"]["pl-fl"]["up"] <= row["bytes"]["federated"]["up"]
        assert row["bytes"]["local"]["up"] < 2_000, "alone, a device says hello and no more"
    assert told["chosen"] in {"federated", "pl-fl"}
    assert told["chosen"] == min(("federated", "pl-fl"), key=told["validation_mase"].get)
    assert told["verdict"].startswith("The 1 older devices: ")
    new = told["newcomer"]
    assert (new["device"], new["days"]) == (told["devices"][-1]["device"], 10)
    assert {"local", "persistence", "own regression", told["chosen"]} <= set(new["mae"])
    assert set(new["each_home_in_turn"]) == {row["device"] for row in told["devices"]}
    configs = [out / "local" / "devices" / f"{row['device']}.toml" for row in told["devices"]]
    histories = [config.read_text(encoding="utf-8") for config in configs]
    assert "2018-01-22T08:00:00+00:00" in histories[1]
    assert "2018-01-22T08:00:00+00:00" not in histories[0]
    assert "<table>" in (out / "index.html").read_text(encoding="utf-8")
    assert left_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_started_program_outlives_the_command(tmp_path, number):
    code = "from firmware_sim.commands.main import main; raise SystemExit(main())"
    options = ["--devices", "2", "--rounds", "10000", "--bundle", "load-mlp", "--days", "14"]
    line = [sys.executable, "-c", code, "fleet", "--processes", *options, "--out", str(tmp_path)]
    if number == signal.SIGINT:  # a shell has what it starts in the background ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 600
        while sum("edge_sdk" in text for text in left_of(tmp_path)) < 2:
            assert time.monotonic() < until
            time.sleep(0.1)
        running.send_signal(number)
        assert running.wait(120) == (-9 if number == signal.SIGKILL else 130)
    until = time.monotonic() + 600
    while left := left_of(tmp_path):
        assert time.monotonic() < until, left
        time.sleep(0.1)


@pytest.mark.slow
def test_a_trial_runs_without_and_with_the_attack_and_scores_honest_devices(tmp_path):
    options = ["--devices", "5", "--rounds", "6", "--steps", "2", "--bundle", "load-mlp"]
    attack = ["--attack", "gaussian,nan", "--byzantine", "0.2", "--rule", "mean,trimmed_mean"]
    where = ["--days", "14", "--out", str(tmp_path)]
    done = sim("fleet", *options, *attack, *where, "--json", timeout=850)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    runs = {(row["rule"], row["attack"]): row for row in told["runs"]}
    clean, noisy, nan = (runs["mean", attack] for attack in (None, "gaussian", "nan"))
    assert len(told["evaluated"]) == len(clean["devices"]) == 4
    assert clean["windows"] == 4 * 7 * 24
    assert clean["refused"] == noisy["refused"] == {}
    assert noisy["rise"] > 0.15, "the mean believes noise of variance 1"
    refused = [runs[rule, "nan"]["refused"] for rule in ("mean", "trimmed_mean")]
    of_time = {"LATE", "TOO_STALE"}  # a liar's answer that arrives after its round, or later still
    assert {reason for each in refused for reason in each} <= {"NOT_FINITE"} | of_time
    # no round waits for a liar's answer, so that none may come; tests/fleet/test_attacks.py counts one
    assert nan["rise"] < 0.15, "what is not finite is never believed"
    assert runs["trimmed_mean", "gaussian"]["rise"] < 0.15
    assert told["verdicts"][1].startswith("fedavg with trimmed_mean: holds under 20 % gaussian")
    assert left_of(tmp_path) == []
