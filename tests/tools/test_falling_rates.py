"""Gradients of stations under falling rates: the rates of the tasks, the gradient, a stopped run."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from edge_sdk.protocol.contract.method import Task
from tools import reproduce
from tools.experiments import charging, ev, falling_rates
from tools.experiments.charging import Arm
from tools.experiments.resumable import Checkpoint

ARM = Arm("e1", ev.BOULDER, 1, "LSTM-PFL", 0, 4, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight days of two sites."""
    out = tmp_path_factory.mktemp("data")
    home = out / ev.BOULDER
    home.mkdir()
    rng, count = np.random.default_rng(0), 48 * 8
    day = np.maximum(np.sin(np.arange(count) * 2 * np.pi / 48), 0.0)
    table = {
        x: np.maximum(day * k + 0.1 * rng.normal(size=count), 0.0) for k, x in ((1, "A"), (2, "B"))
    }
    utc = pd.date_range("2018-01-01 07:00", periods=count, freq="30min")
    pd.DataFrame({"ts_utc": utc, "ts_local": utc, **table}).to_parquet(
        home / "demand_30min.parquet"
    )
    places = {"station": ["A", "B"], "Latitude": [40.0, 40.01], "Longitude": [-105.0] * 2}
    pd.DataFrame(places).to_csv(home / "stations.csv", index=False)
    return out


@pytest.fixture(scope="module")
def base(folder):
    return charging.ground(ARM, folder)


def test_the_tasks_of_a_round_have_its_rate(base, monkeypatch):
    seen = {}
    stage_of = falling_rates.chargers.stage_of

    def watched(*given):
        stage = stage_of(*given)
        device = stage.devices["A"]

        def apply(state, event):
            match event:
                case Task(round=number, values={"rate": rate, "optimiser": optimiser}):
                    seen[number] = (rate, optimiser)
            return device.apply(state, event)

        stage.devices["A"] = device._replace(apply=apply)
        return stage

    monkeypatch.setattr(falling_rates.chargers, "stage_of", watched)
    falling_rates.followed(ARM, base, 0.5, Checkpoint(None))
    plain = 1.0
    assert [seen[n] for n in (1, 2, 3, 4)] == [
        (pytest.approx(0.1 / n**0.5), plain) for n in (1, 2, 3, 4)
    ]


@pytest.mark.slow
def test_a_gradient_is_the_slope_of_the_loss_over_all_windows(base, monkeypatch):
    monkeypatch.setattr(falling_rates, "BLOCK", 100)
    rng = np.random.default_rng(1)
    vectors = dict.fromkeys(base.frames, base.bundle.initial)
    loss, g = falling_rates.gradients(base, vectors)["A"]
    way = rng.normal(size=len(g)).astype(np.float32)
    step = 1e-3 / float(np.linalg.norm(way))
    ends = [
        falling_rates.gradients(base, {**vectors, "A": vectors["A"] + sign * step * way})["A"][0]
        for sign in (-1.0, 1.0)
    ]
    assert ends[0] != loss
    assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(float(g @ way), rel=0.05)


def test_a_stopped_run_continues_to_the_same_points(base, tmp_path, monkeypatch):
    whole = falling_rates.followed(ARM, base, 0.5, Checkpoint(None))
    assert sorted(whole) == [0, 1, 4]
    assert whole[4].loss < whole[0].loss
    point, calls = falling_rates.point, []

    def stopped(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return point(*given)

    monkeypatch.setattr(falling_rates, "point", stopped)
    kept = partial(Checkpoint, tmp_path / "run.resume", seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        falling_rates.followed(ARM, base, 0.5, kept())
    assert falling_rates.followed(ARM, base, 0.5, kept()) == whole
    assert len(calls) == 4


def test_without_the_set_there_is_no_record(tmp_path):
    options = reproduce.parse(["figures", "--data", str(tmp_path), "--out", str(tmp_path)])
    assert falling_rates.falling(options) is None
