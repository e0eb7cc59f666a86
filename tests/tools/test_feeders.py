"""The evaluation of a feeder's forecast: its rows, its held-back days, and its table."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tools.experiments.marks import feeders
from tools.experiments.marks.days import SetOfDevices

pytestmark = pytest.mark.extension

DAYS, DAY, DEVICES = 49, 24, 4


@pytest.fixture(scope="module")
def fleet():
    draw = np.random.default_rng(0)
    hours = np.arange(DAYS * DAY)
    rest = (hours // DAY) % 7 >= 5
    shape = 2.0 + (1.0 - 0.4 * rest) * np.sin(2 * np.pi * (hours % DAY - 8) / DAY)
    load = shape * draw.uniform(0.8, 1.2, (DEVICES, 1)) + draw.normal(
        0.0, 0.3, (DEVICES, len(hours))
    )
    load, train_end = np.maximum(load, 0.0), 42 * DAY
    starts = np.arange(0, len(hours), DAY // 4) - 1
    learn = starts[(starts >= 3 * DAY - 1) & (starts + DAY < train_end)]
    test = starts[(starts >= train_end - 1) & (starts + DAY < len(hours))]
    times = np.datetime64(0, "s") + 3600 * hours
    series = [
        SimpleNamespace(name=str(n), value=one, times=times, tod=hours % DAY, train_end=train_end)
        for n, one in enumerate(load)
    ]
    devices = SetOfDevices(SimpleNamespace(name="set", series=series, day=DAY), "load-day-1")
    return feeders.Fleet(devices, load, load, 3600 * hours, 3600, learn, test, train_end)


@pytest.fixture(scope="module")
def found(fleet, tmp_path_factory):
    folder, patch = tmp_path_factory.mktemp("runs"), pytest.MonkeyPatch()
    patch.setattr(feeders, "read", lambda _data, _name: fleet)
    first = feeders.run(None, "cellular_milan", folder)
    patch.setattr(feeders, "_expected", None)  # what the devices expect is in the files
    assert feeders.run(None, "cellular_milan", folder) == first
    patch.undo()
    return first


@pytest.mark.slow
def test_the_forecast_is_better_than_the_naive_one_also_with_silent_devices(found):
    assert (found["devices"], found["windows"]) == (DEVICES, 25)
    assert found["feeder"] < 0.95
    assert found["silent, number"] < 1.5 * found["feeder"]
    assert 0.5 < found["covered"] <= 1.0
    assert sum(found["shares"]) == pytest.approx(1.0)


@pytest.mark.slow
def test_what_a_device_expects_in_the_training_part_follows_from_the_time_before(fleet):
    learn, test = feeders.expected_values(fleet)
    blocks = fleet.blocks()
    assert np.isnan(learn[:, blocks < feeders.SOLVED[0]]).all()
    assert np.isfinite(learn[:, blocks >= feeders.SOLVED[0]]).all()
    assert np.isfinite(test).all()
    series = fleet.devices.task.series
    later = [SimpleNamespace(**{**vars(one), "value": one.value.copy()}) for one in series]
    first = fleet.learn[blocks >= feeders.SOLVED[1]][0] + 1
    for one in later:
        one.value[first:] *= 3.0
    task = SimpleNamespace(name="set", series=later, day=DAY)
    again = feeders.expected_values(replace(fleet, devices=SetOfDevices(task, "load-day-1")))
    same = (blocks >= feeders.SOLVED[0]) & (blocks < feeders.SOLVED[1])
    assert np.array_equal(again[0][:, same], learn[:, same])
    assert not np.allclose(again[1], test, rtol=1e-2)


def test_an_interrupted_call_reads_what_is_there(tmp_path, capsys, monkeypatch):
    rows = ("devices alone", "history", "feeder", *(f"silent, {of}" for of in feeders.SCALES))
    found = dict.fromkeys(rows, 0.5) | {
        "set": "cellular_milan", "devices": 25, "mark": 0.856, "covered": 0.81,
    }  # fmt: skip
    monkeypatch.setattr(feeders, "use", lambda _: None)
    given = ["--data", "x", "--anchors", "x", "--out", str(tmp_path), "--set", "cellular_milan"]
    (tmp_path / "feeder-cellular_milan.json").write_text(json.dumps(found))
    assert feeders.main(given) == 0
    assert "| Milan (25) | 0.856 | 0.500 |" in capsys.readouterr().out
    (tmp_path / "feeder-cellular_milan-fleet.json").write_text(json.dumps(found | {"covered": 0.8}))
    assert feeders.main([*given, "--fleet"]) == 0
    assert "| 80 % |" in capsys.readouterr().out
