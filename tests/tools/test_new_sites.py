"""New charging sites: what they learn from, whose net they start with, and that nothing looks ahead."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is in the dev extra")
pytest.importorskip("pyarrow", reason="pyarrow is in the dev extra")
pytest.importorskip("torch", reason="the charging experiments need torch")

import pandas as pd

from tools.experiments import charging, ev
from tools.experiments.marks import new_sites

ROWS = 48 * 60
ARM = charging.Arm("e1", ev.BOULDER, 1, "week, federated", 0, 1, 1)
TEST = int(ROWS * 0.8)


@pytest.fixture
def folder(tmp_path):
    """Three sites, 60 days; ``write(name, rows, value)`` changes some readings of a site."""

    def write(changed="", rows=slice(0), value=9.0):
        home = tmp_path / ev.BOULDER
        home.mkdir(exist_ok=True)
        utc = pd.date_range("2018-03-01 07:00", periods=ROWS, freq="30min")
        wave = np.maximum(np.sin(np.arange(ROWS) * 2 * np.pi / 48), 0.0)
        sites = {x: (1.0 + i) * wave for i, x in enumerate("ABC")}
        if changed:
            sites[changed][rows] = value
        pd.DataFrame({"ts_utc": utc, "ts_local": utc, **sites}).to_parquet(
            home / "demand_30min.parquet"
        )
        places = {"station": list(sites), "Latitude": 40.0, "Longitude": -105.0}
        pd.DataFrame(places).to_csv(home / "stations.csv", index=False)
        return tmp_path

    return write


@pytest.mark.parametrize("history", [7, 14])
def test_a_new_site_has_its_newest_days_before_the_test_part_only(folder, history):
    base = new_sites.new_ground(ARM, folder(), history)
    early, late = base.origins("A", "learn"), base.origins("A", "choose")
    assert early[0] >= TEST - 1 - history * 48 - 48  # a target at the end of each part is lost
    assert early[-1] + 1 < late[0] + 1 <= late[-1] + 1 < TEST
    assert len(late) == history * 48 // new_sites.HELD
    assert base.origins("A", "test")[0] == TEST - 1
    assert np.array_equal(base.origins("A", "choose", 7), late[::7])


def test_older_readings_are_not_in_the_range_of_a_new_site(folder):
    before = new_sites.new_ground(ARM, folder(), 7)
    after = new_sites.new_ground(ARM, folder("A", slice(0, TEST - 7 * 48)), 7)
    assert before.frames["A"].scale == after.frames["A"].scale
    known = new_sites.new_ground(ARM, folder("A", slice(TEST - 48, TEST)), 7)
    assert known.frames["A"].scale != before.frames["A"].scale


def test_a_site_starts_with_a_net_that_has_not_seen_it(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(new_sites.chargers, "STAGES", ((2, 2e-3),))
    runs = {}
    for kind, given in {"plain": (), "changed": ("A", slice(0, ROWS), 3.0)}.items():
        out = tmp_path / kind
        out.mkdir()
        runs[kind] = new_sites.nets_of_others(f"{ev.BOULDER}:1", 0, folder(*given), out)
        again = new_sites.nets_of_others(f"{ev.BOULDER}:1", 0, tmp_path / "nothing", out)
        assert np.array_equal(again["A"], runs[kind]["A"])  # kept
    assert np.array_equal(runs["plain"]["A"], runs["changed"]["A"])
    assert not np.array_equal(runs["plain"]["B"], runs["changed"]["B"])


def test_a_new_site_serves_the_fleet_before_its_own_few_windows():
    truth = np.linspace(0.0, 2.0, 24)[:, None]
    fan = truth[..., None] + np.array([-0.1, 0.0, 0.1])
    held = {"trees": fan, "net": fan + 1.0, "tuned": fan + 1.0}
    told = {
        name: np.full((5, 1, 3), value)
        for name, value in (("trees", 1.0), ("net", 2.0), ("tuned", 2.0))
    }
    one = new_sites.NewSite(held, told)
    assert new_sites.blend(one, truth, is_alone=True) == pytest.approx(np.ones((5, 1, 3)))
    served = new_sites.blend(one, truth, is_alone=False)
    assert (served > 1.5).all()  # 24 windows against a prior of 100
