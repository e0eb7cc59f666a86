"""PFGL's tables by station: which results make a table, what stays, and what the page counts."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pandas")

from tools import reproduce
from tools.experiments import ev, graphs
from tools.experiments.charging import Arm
from tools.experiments.station_scores import station_scores
from tools.papers import stations

KNOWN = {x: {"old": {"QS": 1.0, "MIL": 1.0, "ICP": 0.8}} for x in graphs.PAPERS}


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(stations, "FOLDER", tmp_path)
    known = {"rounds": 12, "steps": 20, "stations": {"ACN Caltech p=6": KNOWN}}
    (tmp_path / f"{stations.NAME}.json").write_text(json.dumps(known))


def options(out, *more):
    return reproduce.parse(["figures", "--data", "x", "--out", str(out), *more])


def keep(out, names, dataset=ev.BOULDER, horizon=1):
    for number, name in enumerate(names):
        arm = Arm("e1", dataset, horizon, name, 0, 12, 20)
        scores = {"QS": 0.123456 + number, "MIL": 2.0, "ICP": 0.9, "MAE": 1.0}
        (out / arm.file).write_text(json.dumps({"stations": {"A": scores}}))


@pytest.mark.usefixtures("record")
def test_a_set_has_a_table_once_all_seven_rows_are_kept(tmp_path):
    keep(tmp_path, graphs.PAPERS[:-1])
    assert list(station_scores(options(tmp_path))["stations"]) == ["ACN Caltech p=6"]
    keep(tmp_path, graphs.PAPERS)
    found = station_scores(options(tmp_path))["stations"]
    assert list(found) == ["Boulder p=1", "ACN Caltech p=6"]
    assert list(found["Boulder p=1"]) == list(graphs.PAPERS)
    assert found["Boulder p=1"]["No_FL"] == {"A": {"QS": 0.1235, "MIL": 2.0, "ICP": 0.9}}
    assert found["ACN Caltech p=6"] == KNOWN


@pytest.mark.usefixtures("record")
def test_tables_of_another_length_are_not_mixed(tmp_path):
    assert station_scores(options(tmp_path, "--turns", "48")) is None


def test_the_page_counts_where_a_row_is_better_than_alone_and_where_it_is_the_best():
    rows = {x: {s: {"QS": 3.0, "MIL": 3.0, "ICP": 0.5} for s in "AB"} for x in graphs.PAPERS}
    rows["No_FL"] = {s: {"QS": 2.0, "MIL": 2.0, "ICP": 0.9} for s in "AB"}
    rows["PFGL"] = {
        "A": {"QS": 1.0, "MIL": 1.0, "ICP": 0.75},
        "B": {"QS": 2.5, "MIL": 2.5, "ICP": 0.7},
    }
    lines = stations.page(
        {"rounds": 12, "steps": 20, "stations": {"Boulder p=6": rows}}
    ).splitlines()
    assert "| Boulder p=6 | 2 | 1 | 1 | 1 | 1 | 1 | 1 |" in lines
    assert "| PFGL | 1 | 2.5 | 1.75 | 50% | 1 |" in lines
    assert "| No_FL | 0.9 | 0.9 | 0.9 |  | 1 |" in lines  # as close as 0.7, and before it
