"""The benchmark of rules measures what it says, and judges as it says; no time is asserted."""

import json
import sys

import pytest

from tools import bench_rules


@pytest.fixture
def found():
    """Times made up so that every judgement is one that a reader can check."""
    krum = {"wall": 0.1, "cpu": 0.1, "extra": 0.2}
    out = bench_rules.Found(1000, 1000, 1, {"bandwidth": 4e9, "flops": 1e11})
    out.cases = {
        "ours": {
            "mean": {"wall": 1e-3, "cpu": 1e-3, "extra": 0.1},
            "median": {"wall": 2e-3, "cpu": 2e-3, "extra": 0.6},
            "krum": krum,
            "bulyan": {"wall": 0.2, "cpu": 0.2, "extra": 0.1},
            "nnm, mean": {"wall": 0.14, "cpu": 0.14, "extra": 0.1},
        },
        "byzfl": {"median": {"wall": 9e-3, "cpu": 9e-3}, "mean": {"failed": "MemoryError"}},
        "krum": {"median": {"wall": 4e-3, "cpu": 4e-3}, "krum": {"wall": 0.2, "cpu": 0.2}},
    }
    out.absent = {"byzpy": "No module named 'byzpy'"}
    return out


def test_the_fastest_peer_is_the_mark(found):
    assert found.fastest("median") == (4e-3, "krum")
    assert found.fastest("mean") is None


def test_what_was_reached_and_missed_is_said(found):
    said = bench_rules.judged(found)
    assert "missed: median: 2.00 x krum, wanted 3" in said
    assert not any("krum: " in line and "missed: krum" in line for line in said)
    assert "missed: bulyan: 2.00 x krum, wanted at most 1.5" in said
    assert "reached: nnm, mean: 1.40 x krum, wanted at most 1.5" in said
    assert "reached: mean: 100% of the bandwidth" in said
    assert "missed: memory: at most 1.60 x the matrix (median)" in said


def test_the_table_shows_times_ratios_limits_and_failures(found):
    lines = bench_rules.told(found).splitlines()
    (mean,) = [line for line in lines if line.startswith("| mean")]
    assert [cell.strip() for cell in mean.split("|")[2:5]] == ["1", "MemoryError", ""]
    (krum,) = [line for line in lines if line.startswith("| krum")]
    assert "2.0 | 10% flops | 1.20" in krum
    assert "- not there: byzpy: No module named 'byzpy'" in lines


@pytest.mark.soak
def test_one_child_measures_ours_on_a_small_matrix():
    found = bench_rules.Found(9, 70, 1)
    bench_rules.measure(sys.executable, "ours", found, limit=60)
    assert set(found.yardsticks) == {"bandwidth", "flops"}
    cases = found.cases["ours"]
    assert {"mean", "bulyan", "nnm, rows written out"} <= set(cases)
    assert all(said["cpu"] > 0 and said["extra"] >= 0 for said in cases.values())
    json.dumps(vars(found))
