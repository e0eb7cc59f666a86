"""The cellular loaders, splits and plain forecasts, on made-up tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from tools.experiments import cells


@pytest.fixture
def folder(tmp_path):
    hours = pd.date_range("2013-11-01", periods=720, freq="h")
    grid = tmp_path / cells.MILAN
    grid.mkdir()
    wave = np.sin(np.arange(720) * 2 * np.pi / 24)
    table = {"ts_local": hours, "cell_1": 100 + 50 * wave, "cell_2": 7 + wave}
    pd.DataFrame(table).to_parquet(grid / "internet_hourly.parquet")
    lte = tmp_path / cells.BARCELONA
    lte.mkdir()
    times = pd.date_range("2018-03-28 15:56", periods=5 * 1008, freq="2min")
    bits = pd.DataFrame({"ts_local": times, "down_bits": np.arange(len(times)) * 1e6})
    bits.to_parquet(lte / "ElBorn_2min.parquet")
    return tmp_path


@pytest.fixture(scope="module")
def manifest():
    return Bundle.open("load-mlp", trust=TrustedKeys()).manifest


def plain(manifest):
    """Without weather, which a cell has not got."""
    lag = next(x for x in manifest.features if x.kind == "lag")
    kept = [x if x.kind != "stream" else replace(lag, name=x.name) for x in manifest.features]
    return replace(manifest, features=tuple(kept))


def test_an_hourly_set_is_split_by_weeks(folder):
    one, two = cells.load(folder, cells.MILAN)
    assert (one.name, one.day, one.rows("test"), two.rows("learn")) == (
        "cell_1",
        24,
        (552, 720),
        (0, 384),
    )
    assert two.scale.high == pytest.approx(8)


def test_only_whole_bins_of_a_station_count(folder):
    (station,) = cells.load(folder, cells.BARCELONA)
    assert (station.day, station.start % 600) == (144, 0)
    assert station.traffic[0] == sum(range(2, 7))
    assert len(station.traffic) == 1007
    assert station.rows("test") == (806, 1007)


def test_what_is_missing_is_named(folder):
    assert cells.present(folder) == ([cells.MILAN, cells.BARCELONA], [cells.TRENTO])


def test_no_target_crosses_a_boundary(folder, manifest):
    cell = cells.load(folder, cells.MILAN)[0]
    cut = cells.frame(cell, plain(manifest))
    cut = replace(cut, window=replace(cut.window, horizon=24))
    for part in ("learn", "choose", "train", "test"):
        rows, (start, end) = cells.origins(cell, cut, part), cell.rows(part)
        assert rows.min() + 1 >= start
        assert rows.max() + 24 == end - 1


def test_a_day_stays_a_day_on_another_step(folder, manifest):
    (station,) = cells.load(folder, cells.BARCELONA)
    made = cells.form(plain(manifest), station)
    assert {x.lag_steps for x in made.features if x.kind == "lag"} == {144, 2 * 144}
    hourly = replace(station, step=3600)
    assert cells.form(plain(manifest), hourly) == plain(manifest)


def test_forecasts_read_nothing_after_their_origin(folder, manifest):
    cell = cells.load(folder, cells.MILAN)[0]
    cut = cells.frame(cell, plain(manifest))
    cut = replace(cut, window=replace(cut.window, horizon=24))
    rows = cells.origins(cell, cut, "test")[:3]
    later = cut.last.copy()
    later[rows[-1] + 1 :] += 1e6
    for lag in (1, 24, 168):
        told = cells.repeated(cut, rows, lag)
        assert (told == cells.repeated(replace(cut, last=later), rows, lag)).all()
    assert cells.repeated(cut, rows, 24)[0, 0] == cut.last[rows[0] - 23]


def test_the_median_of_the_hour_is_of_the_training_part(folder, manifest):
    cell = cells.load(folder, cells.MILAN)[0]
    cut = cells.frame(cell, plain(manifest))
    rows = cells.origins(cell, cut, "test")
    assert cells.by_hour(cell, cut, rows) == pytest.approx(cut.truth(rows))
    other = replace(cell, traffic=np.where(np.arange(720) < 552, cell.traffic, 0.0))
    assert (cells.by_hour(other, cut, rows) == cells.by_hour(cell, cut, rows)).all()
