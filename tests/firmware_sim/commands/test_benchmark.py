"""The public task from the command line, on a folder of three short series in its layout."""

from __future__ import annotations

import gzip
import hashlib
import json

import numpy as np
import pytest

from firmware_sim.commands.main import main
from firmware_sim.evaluation import m4_hourly
from firmware_sim.evaluation.m4_hourly import read_series, score, seasonal_naive

HEAD = "task,model,mase,mean_weighted_quantile_loss"


def write_series(folder, monkeypatch, hours):
    """Write series of some hours in the layout of the competition, with digests of their own."""
    rng, digests, rows = np.random.default_rng(0), {}, {}
    for name, count in (("Hourly-train.csv", hours), ("Hourly-test.csv", 48)):
        day = 20.0 + 5.0 * np.sin(np.arange(count) * 2 * np.pi / 24)
        rows = [",".join(map(str, day + rng.normal(0.0, 1.0, count))) for _ in range(3)]
        lines = [",".join(f"V{i}" for i in range(count + 1))]
        data = "\n".join([*lines, *(f"H{n},{row}" for n, row in enumerate(rows, 1))]).encode()
        digests[name] = hashlib.sha256(data).hexdigest()
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(m4_hourly, "DIGESTS", digests)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The series, with published rows of which the naive one is right."""
    write_series(tmp_path, monkeypatch, 312)
    series = read_series(tmp_path)
    naive = score(series, [seasonal_naive(one.known) for one in series])
    rows = [("seasonal_naive", naive.mase, naive.quantile_loss), ("TiRex", 0.1, 0.001)]
    rows += [("unheard-of", 9.0, 0.9)]
    text = "\n".join([HEAD, *(f"m4_hourly/h/short,{n},{a},{b}" for n, a, b in rows)])
    (tmp_path / "published.csv").write_text(text)
    return tmp_path


def test_the_table_has_published_rows_beside_ours(folder, capsys):
    assert main(["benchmark", "--data", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "m4_hourly/h/short: 3 series, 48 hours ahead" in shown.out
    names = [line.partition(" (")[0] for line in shown.out.splitlines()[3:7]]
    assert names[:2] == ["TiRex", "gridfed, each series alone"]
    assert set(names[2:]) == {"seasonal_naive"}
    assert "better than 2 of 3 published rows" in shown.out
    assert "series: 3 of 3" in shown.err
    assert "unheard-of" not in shown.out
    assert main(["benchmark", "--data", str(folder), "--all"]) == 0
    assert "unheard-of (published)" in capsys.readouterr().out


def test_json_has_every_row(folder, capsys):
    assert main(["benchmark", "--data", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["model"], row["source"]): row for row in found["rows"]}
    assert found["series"] == 3
    assert len(rows) == 5
    ours = rows["gridfed, each series alone", "here"]
    naive = rows["seasonal_naive", "here"]
    assert ours["mase"] < naive["mase"]
    assert ours["quantile_loss"] < naive["quantile_loss"]
    assert naive["mase"] == pytest.approx(rows["seasonal_naive", "published"]["mase"])


def test_without_the_published_naive_row_nothing_is_printed(folder, capsys):
    (folder / "published.csv").write_text(f"{HEAD}\nm4_hourly/h/short,seasonal_naive,1.1932,0.0376")
    assert main(["benchmark", "--data", str(folder)]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert "the naive row is MASE" in shown.err
    (folder / "published.csv").unlink()
    assert main(["benchmark", "--data", str(folder)]) == 2
    assert "1.1932 and 0.0376 as published" in capsys.readouterr().err


def test_a_short_series_and_an_absent_folder_are_refused(tmp_path, monkeypatch, capsys):
    assert main(["benchmark", "--data", str(tmp_path / "none")]) == 2
    assert "there is no Hourly-train.csv" in capsys.readouterr().err
    write_series(tmp_path, monkeypatch, 240)
    series = read_series(tmp_path)
    naive = score(series, [seasonal_naive(one.known) for one in series])
    (tmp_path / "published.csv").write_text(
        f"{HEAD}\nm4_hourly/h/short,seasonal_naive,{naive.mase},{naive.quantile_loss}"
    )
    assert main(["benchmark", "--data", str(tmp_path)]) == 2
    assert "H1: 240 hours are known; at least 288" in capsys.readouterr().err
