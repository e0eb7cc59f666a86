"""The net of the cells' table: what it learns from, and that it does not look ahead."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is in the dev extra")
pytest.importorskip("pyarrow", reason="pyarrow is in the dev extra")
pytest.importorskip("torch", reason="torch makes the net (make torch)")

import pandas as pd

from tools.experiments.marks import cell_nets

HOURS, WEEK = 30 * 24, 7 * 24
TASK = "cellular_milan:1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_nets, "STAGES", ((1, 1e-3), (1, 5e-4)))
    monkeypatch.setattr(cell_nets, "TUNING", 2)

    def write(changed_from=HOURS):
        draw = np.random.default_rng(0)
        clock = np.arange(HOURS)
        cells = {
            f"cell_{i}": 100.0
            + 50.0 * np.sin(2 * np.pi * (clock + i) / 24)
            + draw.normal(size=HOURS)
            for i in range(2)
        }
        for values in cells.values():
            values[changed_from:] = 160.0 - values[changed_from:] / 2.0
        table = pd.DataFrame(
            {"ts_local": pd.date_range("2013-11-04", periods=HOURS, freq="h"), **cells}
        )
        (tmp_path / "cellular_milan").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "cellular_milan" / "internet_hourly.parquet")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("judged", "first"), [("test", HOURS - WEEK), ("choose", HOURS - 2 * WEEK)]
)
def test_nothing_of_the_judged_part_or_after_it_is_learnt(folder, judged, first):
    before = cell_nets.tuned(folder(), TASK, judged, seed=0)
    after = cell_nets.tuned(folder(changed_from=first + 24), TASK, judged, seed=0)
    for cell, made in before.items():
        assert made.origins[0] == first - 1  # its target is the part's first hour
        assert made.forecast.shape == (WEEK, 1)
        assert np.isfinite(made.forecast).all()
        assert np.array_equal(made.forecast[:25], after[cell].forecast[:25])
        assert not np.array_equal(made.forecast[26:], after[cell].forecast[26:])


def test_the_week_before_the_test_part_is_learnt_for_the_test(folder):
    before = cell_nets.tuned(folder(), TASK, "test", seed=0)
    after = cell_nets.tuned(folder(changed_from=HOURS - 2 * WEEK), TASK, "test", seed=0)
    assert not np.array_equal(before["cell_0"].forecast[0], after["cell_0"].forecast[0])


def test_seeds_differ_and_repeat(folder):
    data = folder()
    first, again, other = (cell_nets.tuned(data, TASK, "choose", seed=s) for s in (1, 1, 2))
    assert np.array_equal(first["cell_0"].forecast, again["cell_0"].forecast)
    assert not np.array_equal(first["cell_0"].forecast, other["cell_0"].forecast)


def test_a_net_is_charged_for_every_round():
    rounds = sum(count for count, _ in cell_nets.STAGES)
    assert cell_nets.payload_bytes(TASK) == 4 * 26_986 * rounds
