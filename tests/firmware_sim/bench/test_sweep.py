"""``gridfed-sim sweep``: its records and table; killed sweeps continue."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firmware_sim.bench.results import COLUMNS
from firmware_sim.commands.main import main

SMALL = ("--devices", "4", "--rounds", "2", "--steps", "1", "--bundle", "load-mlp", "--days", "14")
GRID = ("--method", "fedavg,fedprox", "--attack", "flipping", "--seeds", "0", "1")
RUNS = 8


def sweep(folder, *more):
    return main(["sweep", str(folder), *SMALL, *GRID, *more])


def records_of(folder):
    return {path.name: json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")}


def outcome(record):
    """What a repeated run must give again: everything but times."""
    kept = {k: v for k, v in record["result"].items() if not k.endswith("seconds")}
    return (
        kept | {"virtual": record["result"]["virtual_seconds"]},
        record["errors"],
        record["rounds"],
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    assert sweep(folder) == 0
    return folder


def test_every_run_has_a_record_of_what_produced_it(done):
    found = records_of(done)
    assert len(found) == RUNS
    definition = json.loads((done / "sweep.json").read_text())
    assert definition["seeds"] == [0, 1]
    assert len(definition["readings"]) == 4
    for record in found.values():
        assert record["versions"]["numpy"]
        assert record["machine"]["cores"] >= 1
        assert len(record["result"]["state"]) == 64
        assert record["result"]["rounds"] == 2
        assert len(record["errors"]) == 3


@pytest.mark.slow
def test_the_table_has_a_row_for_each_run_and_device(done):
    with (done / "results.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == RUNS * 3
    assert {row["attack"] for row in rows} == {"none", "flipping"}
    assert all(float(row["rmse"]) > 0 for row in rows)


def test_a_finished_sweep_runs_nothing_again(done, capsys):
    before = {path: path.stat().st_mtime_ns for path in (done / "runs").iterdir()}
    capsys.readouterr()
    assert sweep(done, "--json") == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == RUNS
    assert {path: path.stat().st_mtime_ns for path in (done / "runs").iterdir()} == before


def test_a_damaged_record_is_made_again(done, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(done, folder)
    wanted = records_of(folder)
    first = min((folder / "runs").iterdir())
    first.write_text(first.read_text()[:-40])
    capsys.readouterr()
    assert sweep(folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == RUNS - 1
    assert {n: outcome(r) for n, r in records_of(folder).items()} == {
        n: outcome(r) for n, r in wanted.items()
    }


def test_another_sweep_in_the_folder_is_refused(done, capsys):
    assert sweep(done, "--rate", "0.01") == 2
    assert "another sweep" in capsys.readouterr().err


def test_a_method_that_needs_a_broker_is_refused_before_anything_is_written(tmp_path, capsys):
    assert main(["sweep", str(tmp_path / "new"), *SMALL, "--method", "fedavg,dfl_sgd"]) == 2
    assert "exchange models with one another" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_killed_sweep_continues_and_gives_the_same(done, tmp_path):
    folder = tmp_path / "killed"
    code = "import sys; from firmware_sim.commands.main import main; raise SystemExit(main())"
    line = [sys.executable, "-c", code, "sweep", str(folder), *SMALL, *GRID]
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    for wanted in (1, 3):
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=tmp_path
        )
        try:
            until = time.monotonic() + 120
            while len(list((folder / "runs").glob("*.json"))) < wanted:
                assert process.poll() is None or len(list((folder / "runs").glob("*.json"))) == RUNS
                assert time.monotonic() < until
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        kept = {path: path.read_bytes() for path in (folder / "runs").glob("*.json")}
    assert len(kept) >= 3
    assert sweep(folder) == 0
    assert all(path.read_bytes() == data for path, data in kept.items())
    assert {n: outcome(r) for n, r in records_of(folder).items()} == {
        n: outcome(r) for n, r in records_of(done).items()
    }
