"""The evaluation of a feeder's forecast: its rows, its held-back days, and its table."""

import json
import math

import numpy as np
import pytest

from tools.experiments.marks import feeders

DAYS, DAY, DEVICES = 49, 24, 10


@pytest.fixture(scope="module")
def fleet():
    draw = np.random.default_rng(0)
    hours = np.arange(DAYS * DAY)
    rest = (hours // DAY) % 7 >= 5
    shape = 2.0 + (1.0 - 0.4 * rest) * np.sin(2 * np.pi * (hours % DAY - 8) / DAY)
    load = shape * draw.uniform(0.8, 1.2, (DEVICES, 1)) + draw.normal(
        0.0, 0.3, (DEVICES, len(hours))
    )
    train_end = 42 * DAY
    starts = np.arange(0, len(hours), DAY // 4) - 1
    learn = starts[(starts >= 3 * DAY - 1) & (starts + DAY < train_end)]
    test = starts[(starts >= train_end - 1) & (starts + DAY < len(hours))]
    return feeders.Fleet(
        np.maximum(load, 0.0), np.maximum(load, 0.0), 3600 * hours, 3600, learn, test, train_end
    )


@pytest.fixture(scope="module")
def found(fleet):
    patch = pytest.MonkeyPatch()
    patch.setattr(feeders, "read", lambda _data, _name: fleet)
    yield feeders.run(None, "cellular_milan")
    patch.undo()


def test_the_forecast_is_better_than_the_naive_one_also_with_silent_devices(found):
    assert (found["devices"], found["windows"]) == (DEVICES, 25)
    assert found["feeder"] < 0.95
    assert found["silent, number"] < 1.5 * found["feeder"]
    assert 0.5 < found["covered"] <= 1.0
    assert sum(found["shares"]) == pytest.approx(1.0)


def test_no_block_of_the_training_part_is_forecast_by_itself_or_later_ones(fleet, monkeypatch):
    monkeypatch.setattr(feeders, "STRENGTHS", (math.inf,))  # chosen by the whole training part
    learn, test = feeders.expected_values(fleet)
    blocks = fleet.blocks()
    assert np.isnan(learn[:, blocks == 0]).all()
    assert np.isfinite(learn[:, blocks > 0]).all()
    changed = fleet.truth.copy()
    changed[:, fleet.learn[blocks == 6][-1] :] *= 3.0
    later = feeders.Fleet(
        fleet.load, changed, fleet.local, fleet.step, fleet.learn, fleet.test, fleet.train_end
    )
    again = feeders.expected_values(later)
    same = (blocks > 0) & (blocks < 6)
    assert np.allclose(again[0][:, same], learn[:, same], rtol=1e-4)
    assert not np.allclose(again[1], test, rtol=1e-2)


def test_an_interrupted_call_reads_what_is_there(found, tmp_path, capsys, monkeypatch):
    (tmp_path / "feeder-cellular_milan.json").write_text(json.dumps(found))
    monkeypatch.setattr(feeders, "use", lambda _: None)
    given = ["--data", "x", "--anchors", "x", "--out", str(tmp_path), "--set", "cellular_milan"]
    assert feeders.main(given) == 0
    assert f"| Milan (10) | 0.856 | {found['devices alone']:.3f} |" in capsys.readouterr().out
