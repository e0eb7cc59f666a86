"""The measurement of rules over stored rows runs every case, at a small size."""

from math import isfinite

import pytest

from tools import bench_stored_rows


@pytest.mark.soak
def test_every_case_has_a_line(tmp_path, monkeypatch, capsys):
    words = ["", "--rows", "3000", "--width", "70", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*words, "--markdown", str(tmp_path / "table.md")])
    monkeypatch.setattr(bench_stored_rows, "IN_MEMORY", 0)
    bench_stored_rows.main()
    lines = (tmp_path / "table.md").read_text("utf-8").splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]]
    assert names[3:] == list(bench_stored_rows.cases(3000))
    # Of 3,000 rows nothing is seen: the kernel counts memory in batches, and may give some back meanwhile.
    assert all(isfinite(float(line.split("|")[4])) for line in lines[4:])
    assert "geometric_median" in capsys.readouterr().out


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_is_compared(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray", reason="needs the extra ray")
    words = ["", "--rows", "500", "--width", "30", "--folder", str(tmp_path), "--processors", "1"]
    monkeypatch.setattr("sys.argv", [*words, "--ray", "--cases", "mean;median"])
    bench_stored_rows.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in printed[-3:]] == [
        "| start of the cluster",
        "| mean",
        "| median",
    ]
    assert printed[-1].endswith("(equal bits)")
