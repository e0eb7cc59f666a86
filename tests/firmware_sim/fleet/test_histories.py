"""A fleet whose devices have no window of the bundle is refused before anything starts."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.bundle import shipped_folder
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, is_sealed
from edge_sdk.protocol.keys import read_public
from firmware_sim.fleet.histories import HistoryError, check_histories, manifest_of
from firmware_sim.fleet.in_process import readings
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import SampleError, sample_set
from firmware_sim.scenario import RunSettings, Scenario, bundle_at, scenario

WEATHER = {"temperature_c": 3.0, "wind_ms": 4.0}


def folder_of(
    path,
    *,
    minutes=60,
    days=20,
    devices=3,
    columns=("load_kwh", *WEATHER),
    name="h",
    kwh=lambda _: 1.0,
):
    """Write a file for each device: constant weather, and the energy of 1 kW by default."""
    path.mkdir(exist_ok=True)
    first = datetime(2024, 1, 1, tzinfo=UTC)
    for number in range(devices):
        with (path / f"{name}{number}.csv").open("w", newline="") as out:
            rows = csv.writer(out)
            rows.writerow(["time", *columns])
            for i in range(days * 1440 // minutes):
                time = (first + timedelta(minutes=minutes * i)).isoformat()
                values = {"load_kwh": kwh(i) * minutes / 60} | WEATHER
                rows.writerow([time, *(values[column] for column in columns)])
    return path


def homes(path, **changes):
    chosen = Scenario("test", **({"devices": 3, "bundle": "load-mlp"} | changes))
    return chosen, sample_set("homes").of_folder(path)


def test_complete_histories_are_accepted(tmp_path):
    assert check_histories(*homes(folder_of(tmp_path))) == []


def test_a_missing_column_is_refused_with_its_channel_and_fitting_bundles(tmp_path):
    chosen, samples = homes(folder_of(tmp_path, columns=("load_kwh",)))
    with pytest.raises(HistoryError, match=r"windows: 0 on 3 of 3 devices .*h0, h1, h2") as refusal:
        check_histories(chosen, samples)
    assert "no source for temperature, wind; columns of h0.csv: load_kwh" in str(refusal.value)
    assert "load-analytic" in refusal.value.hint
    assert refusal.value.exit_code == 2


def test_readings_longer_than_the_step_are_refused(tmp_path):
    chosen, samples = homes(folder_of(tmp_path, minutes=120))
    with pytest.raises(
        HistoryError, match=r"every 7200 s in h0\.csv, and the bundle's step is 3600"
    ):
        check_histories(chosen, samples)


def test_a_short_history_is_refused_with_the_rows_that_a_window_needs(tmp_path):
    chosen, samples = homes(folder_of(tmp_path, days=2))
    with pytest.raises(HistoryError, match=r"needs about \d+ rows .* 48 of 48 rows"):
        check_histories(chosen, samples)


def test_devices_without_a_window_are_listed_where_the_quorum_is_met(tmp_path):
    folder_of(tmp_path)
    folder_of(tmp_path, days=1, devices=1, name="short")
    chosen, samples = homes(tmp_path, devices=4, run=RunSettings(quorum=3))
    (one,) = check_histories(chosen, samples)
    assert (one.device, one.windows) == ("short0", 0)
    with pytest.raises(
        HistoryError, match=r"windows: 0 on 1 of 4 devices .short0., and a round needs 4"
    ):
        check_histories(*homes(tmp_path, devices=4))


def test_a_file_without_the_target_is_refused_with_its_columns(tmp_path):
    chosen, samples = homes(folder_of(tmp_path, columns=("temperature_c",)))
    with pytest.raises(SampleError, match=r"h0\.csv has no column 'load_kwh'; it has: time, temp"):
        check_histories(chosen, samples)


def test_quarter_hours_add_up_to_the_hours_of_the_bundle(tmp_path):
    chosen, samples = homes(folder_of(tmp_path, minutes=15, devices=1), devices=1)
    assert check_histories(chosen, samples) == []
    found = [
        x for x in readings(samples.samples[0], samples, chosen) if x.stream.startswith("elec")
    ]
    assert {reading.seconds for reading in found} == {900}
    assert sum(reading.value for reading in found) == pytest.approx(20 * 24)
    config = (
        prepare(
            tmp_path / "run", "x", chosen, samples, broker="mqtt://127.0.0.1:1", page="127.0.0.1:1"
        )
        .devices[0]
        .config
    )
    assert '"interval_seconds" = 900' in config.read_text()


@pytest.mark.parametrize("name", ["homes", "cells", "chargers"])
def test_the_default_bundle_of_each_shipped_set_has_windows(name):
    from firmware_sim.scenario import DEFAULT_BUNDLES  # noqa: PLC0415

    chosen = Scenario("test", samples=name, devices=2, bundle=DEFAULT_BUNDLES[name])
    samples = sample_set(name)
    assert check_histories(chosen.first_days(28, samples), samples) == []


def test_a_relative_bundle_is_resolved_and_an_unknown_one_refused(tmp_path, monkeypatch):
    shutil.copytree(shipped_folder() / "load-mlp", tmp_path / "mine")
    assert bundle_at("mine", tmp_path, "--bundle") == str(tmp_path / "mine")
    assert bundle_at("load-mlp", tmp_path, "--bundle") == "load-mlp"
    with pytest.raises(SettingsError, match="--bundle other: neither a shipped bundle nor"):
        bundle_at("other", tmp_path, "--bundle")
    (tmp_path / "own.toml").write_text('title = "own"\nbundle = "mine"\n')
    monkeypatch.chdir("/")
    assert scenario(str(tmp_path / "own.toml")).bundle == str(tmp_path / "mine")


def test_a_bundle_in_a_folder_is_signed_for_the_run(tmp_path):
    mine = shutil.copytree(shipped_folder() / "load-mlp", tmp_path / "mine")
    before = (mine / SIGNATURE).read_bytes()
    chosen, samples = homes(folder_of(tmp_path / "data"), bundle=str(mine))
    run = tmp_path / "run"
    prepare(run, "x", chosen, samples, broker="mqtt://127.0.0.1:1", page="127.0.0.1:1")
    manifest, proof = (run / "bundle" / "mine" / name for name in (MANIFEST, SIGNATURE))
    root = read_public(run / "aggregator" / "root.pub")
    assert is_sealed(manifest.read_bytes(), proof.read_bytes(), [root])
    assert (mine / SIGNATURE).read_bytes() == before, "the bundle of the user is not changed"


def test_every_shipped_manifest_is_read():
    assert manifest_of("load-mlp").name == "load-mlp"


def sim(*arguments, folder):
    program = "from firmware_sim.commands.main import main; raise SystemExit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )


def test_the_command_refuses_homes_without_weather_before_a_broker_starts(tmp_path):
    folder_of(tmp_path / "data", columns=("load_kwh",), devices=5)
    words = ["fleet", "--like", "homes", "--data", "data", "--bundle", "load-lstm-week"]
    done = sim(*words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "windows: 0 on 5 of 5 devices" in done.stderr
    assert "no source for temperature, wind" in done.stderr
    assert "hint: bundles that fit these readings: " in done.stderr
    assert "broker at" not in done.stderr


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize("where", ["--in-process", "--processes"])
def test_a_fleet_trains_a_relative_bundle_on_quarter_hours(tmp_path, where):
    shutil.copytree(shipped_folder() / "load-mlp", tmp_path / "mine")
    folder_of(tmp_path / "data", minutes=15, devices=2)
    options = [
        "--bundle",
        "mine",
        "--data",
        "data",
        "--rounds",
        "2",
        "--steps",
        "2",
        where,
        "--json",
    ]
    done = sim("fleet", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["devices"], told["rounds"]) == (2, 2)
    assert np.isfinite(told["seconds"])


@pytest.mark.slow
@pytest.mark.broker
def test_five_files_are_five_devices_and_seeds_fill_a_tidy_table(tmp_path):
    """Two methods, one of them with a setting of its own, twice each over a real broker."""
    folder_of(
        tmp_path / "data", columns=("load_kwh",), devices=5, kwh=lambda i: 1 + i * i % 24 / 24
    )
    options = ["--data", "data", "--rounds", "1", "--steps", "2", "--in-process"]
    options += ["--days", "14", "--evaluation-days", "5"]
    compared = ["--method", "fedavg,fedprox", "--setting", "fedprox.prox=0.1"]
    done = sim(
        "fleet", *options, *compared, "--seeds", "0", "1", "--csv", "runs.csv", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 5
    assert len({row["device"] for row in rows}) == 5
    settings = {(row["method"], row["settings"]) for row in rows}
    assert {("prox=0.1" in found) for name, found in settings if name == "fedprox"} == {True}
    assert {("prox" in found) for name, found in settings if name == "fedavg"} == {False}
    by_seed = [[row["mae"] for row in rows if row["seed"] == seed] for seed in ("0", "1")]
    assert by_seed[0] != by_seed[1]
    assert all(float(row["mae"]) > 0.0 for row in rows)
