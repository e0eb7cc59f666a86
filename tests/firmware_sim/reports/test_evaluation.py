"""Forecasts meet the readings of the same hour, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_sim.fleet.processes import ProgramDied
from firmware_sim.fleet.run_files import Device, Prepared
from firmware_sim.reports import evaluation
from firmware_sim.results import Traffic
from firmware_sim.samples import sample_set

HOMES = sample_set("homes")
DAY = (1_530_000_000 // 3600 * 3600, 1_530_000_000 // 3600 * 3600 + 86_400)


def prepared(folder):
    folder.mkdir(exist_ok=True)
    device = Device("home", folder / "home.toml", HOMES.samples[0])
    return Prepared(folder, folder / "aggregator.toml", (device,), "")


@pytest.fixture
def fleet(tmp_path):
    return prepared(tmp_path)


def answer(monkeypatch, rows):
    def run(arguments):
        assert "--beyond" in arguments
        out = arguments[arguments.index("--out") + 1]
        with open(out, "w") as file:  # noqa: PTH123 - what the command does
            file.write("origin,step,forecast,truth\n" + "".join(rows))

    monkeypatch.setattr(evaluation, "run", run)


def test_a_perfect_forecaster_has_no_error_and_persistence_a_mase_near_one(tmp_path, monkeypatch):
    times, values = HOMES.samples[0].column("load_kwh")
    answer(monkeypatch, [f"{t},1,{v},{v}\n" for t, v in zip(times, values, strict=True)])
    arms = {arm: prepared(tmp_path / arm) for arm in ("local", "federated", "pl-fl")}
    rows, panels = evaluation.evaluate(arms, HOMES, DAY, {"pl-fl": {"home": Traffic(1, 2)}})
    assert rows[0].windows == 24
    assert rows[0].scores["local"].mae == 0
    assert 0.7 < rows[0].scores["persistence"].mase < 1.4
    assert rows[0].traffic == {"pl-fl": Traffic(1, 2)}
    assert len(panels[0].times) == 24


def test_only_the_first_step_is_scored_and_gaps_stay_gaps(fleet, monkeypatch):
    start = DAY[0]
    lines = [f"{start},1,5.0,1\n", f"{start},2,9.0,1\n", f"{start + 7200},1,7.0,1\n"]
    answer(monkeypatch, lines)
    times, told = evaluation.rolling(fleet.devices[0], DAY, fleet.folder / "x.csv")
    assert told.tolist() == [5.0, 7.0]
    placed = evaluation._placed(np.arange(start, start + 4 * 3600, 3600), times, told)
    np.testing.assert_array_equal(placed, [5.0, np.nan, 7.0, np.nan])


def test_a_device_without_forecasts_is_an_error(fleet, monkeypatch):
    answer(monkeypatch, [])
    with pytest.raises(ProgramDied, match="home has no forecast"):
        evaluation.rolling(fleet.devices[0], DAY, fleet.folder / "x.csv")
