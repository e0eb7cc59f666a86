"""The charging loaders: splits, windows, lags and scores, on made-up tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from tools.experiments import ev

ROWS = 48 * 30


@pytest.fixture
def folder(tmp_path):
    """Thirty days around Denver's change of clocks, 2018-03-11."""
    home = tmp_path / ev.BOULDER
    home.mkdir()
    utc = pd.date_range("2018-03-01 07:00", periods=ROWS, freq="30min")
    wall = utc.tz_localize("UTC").tz_convert("America/Denver").tz_localize(None)
    wave = 2.0 + np.sin(np.arange(ROWS) * 2 * np.pi / 48)
    table = pd.DataFrame({"ts_utc": utc, "ts_local": wall, "A": wave, "B": 3.0 * wave})
    table.to_parquet(home / "demand_30min.parquet")
    places = {"station": ["A", "B"], "Latitude": [40.0, 40.1], "Longitude": [-105.0, -105.1]}
    pd.DataFrame(places).to_csv(home / "stations.csv", index=False)
    return tmp_path


def shipped(name):
    return Bundle.open(name, trust=TrustedKeys()).manifest


def test_parts_are_sixty_twenty_twenty_and_no_target_leaves_its_part(folder):
    one, two = ev.load(folder, ev.BOULDER)
    cut = ev.frame(one, shipped("chargers-week-6"))
    for part, (start, end) in {
        "learn": (0, 864),
        "choose": (864, 1152),
        "test": (1152, 1440),
    }.items():
        rows = ev.origins(one, cut, part)
        assert one.rows(part) == (start, end)
        assert rows[-1] + 6 == end - 1
        assert rows[0] + 1 >= start
    assert ev.origins(one, cut, "test")[0] == 1151  # inputs reach back over the boundary
    assert (two.name, two.site.latitude) == ("B", 40.1)


def test_only_what_is_learnt_from_gives_the_scale(folder):
    (one, _) = ev.load(folder, ev.BOULDER)
    grown = replace(one, demand=np.where(np.arange(ROWS) < 864, one.demand, 99.0))
    assert grown.scale == one.scale


def test_a_later_reading_changes_no_earlier_window(folder):
    (one, _) = ev.load(folder, ev.BOULDER)
    manifest, at = shipped("chargers-week-6"), np.array([1200])
    changed = one.demand.copy()
    changed[1201:] += 1000.0
    before = ev.frame(one, manifest).inputs(at)
    after = ev.frame(replace(one, demand=changed), manifest).inputs(at)
    assert np.array_equal(before, after)


def test_the_newest_rows_of_yesterdays_channel_are_around_the_targets(folder):
    (one, _) = ev.load(folder, ev.BOULDER)
    cut = ev.frame(one, shipped("chargers-week-6"))
    channel = cut.inputs(np.array([1000]))[0, :, 1]  # a day ago
    first = 1000 + 1 - 48 - 4  # four rows before the first target's slot of yesterday
    wanted = cut.scale.shrink(one.demand[first : first + 6 + 8])
    assert channel[-14:] == pytest.approx(wanted, abs=1e-6)


def test_an_hourly_bundle_keeps_its_days_on_half_hours():
    manifest = ev.form(shipped("chargers-6"))
    assert manifest.window.step_seconds == 1800
    assert [x.lag_steps for x in manifest.features if x.kind == "lag"] == [43, 331]


def test_the_calendar_is_the_walls(folder):
    (one, _) = ev.load(folder, ev.BOULDER)
    manifest = shipped("chargers-week-1")
    cut = ev.frame(one, manifest)
    at = [x.name for x in manifest.features].index("hour-cos")
    table = pd.read_parquet(folder / ev.BOULDER / "demand_30min.parquet")
    hours = (table.ts_local.dt.hour + table.ts_local.dt.minute / 60).to_numpy()
    wanted = (np.cos(2 * np.pi * hours / 24) + 1) / 2
    assert cut.channels[:, at] == pytest.approx(wanted, abs=1e-6)


def test_a_tolerance_counts_misses_and_nothing_else():
    y, told = np.array([[1.0], [0.0]]), np.array([[[0.0, 0.5, 0.99]], [[0.0, 0.0, 0.5]]])
    strict, loose = ev.scored(y, told), ev.scored(y, told, tolerance=0.02)
    assert (strict["above"], loose["above"]) == (0.5, 0.0)
    assert {x: strict[x] for x in ("QS", "MIL", "ICP")} == {
        x: loose[x] for x in ("QS", "MIL", "ICP")
    }


def test_sets_that_are_not_there_are_named(folder):
    assert ev.present(folder) == ([ev.BOULDER], [ev.PERTH, ev.PALO_ALTO, ev.CALTECH])
