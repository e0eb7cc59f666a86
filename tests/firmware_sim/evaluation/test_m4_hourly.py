"""The public task: reading, scores as GIFT-Eval computes them, and the refusal of other data."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from firmware_sim.evaluation import m4_hourly
from firmware_sim.evaluation.m4_hourly import (
    LEVELS,
    HourlySeries,
    Score,
    published,
    read_series,
    require_naive,
    score,
    seasonal_naive,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two series of 100 and 90 hours in the layout of the competition's files."""
    rng = np.random.default_rng(0)
    digests = {}
    for name, lengths in (("Hourly-train.csv", (100, 90)), ("Hourly-test.csv", (48, 48))):
        head = ",".join(f'"V{i}"' for i in range(101))
        rows = [
            ",".join([f'"H{n}"', *map(str, rng.integers(1, 99, length)), *[""] * (100 - length)])
            for n, length in enumerate(lengths, 1)
        ]
        data = "\n".join([head, *rows]).encode()
        digests[name] = hashlib.sha256(data).hexdigest()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(m4_hourly, "DIGESTS", digests)
    return tmp_path


def test_series_are_read_without_the_blanks_at_their_ends(folder):
    series = read_series(folder)
    assert [(one.name, len(one.known), len(one.future)) for one in series] == [
        ("H1", 100, 48),
        ("H2", 90, 48),
    ]


def test_another_file_and_an_absent_one_are_refused(folder):
    (folder / "Hourly-test.csv").write_text("changed")
    with pytest.raises(SettingsError, match=r"Hourly-test.csv is not the file of the competition"):
        read_series(folder)
    (folder / "Hourly-train.csv.gz").unlink()
    with pytest.raises(SettingsError, match=r"there is no Hourly-train.csv or Hourly-train.csv.gz"):
        read_series(folder)


def test_scores_are_those_of_their_definitions():
    """Beside loops over every hour and level, written from the definitions."""
    rng = np.random.default_rng(1)
    series = [HourlySeries("H", rng.normal(5, 1, 200), rng.normal(5, 1, 48)) for _ in range(3)]
    forecasts = [np.sort(rng.normal(5, 1, (48, 9)), axis=1) for _ in series]
    errors, losses, whole = [], 0.0, 0.0
    for one, found in zip(series, forecasts, strict=True):
        naive = [abs(one.known[t] - one.known[t - 24]) for t in range(24, 200)]
        errors.append(np.mean([abs(y - f[4]) for y, f in zip(one.future, found, strict=True)]))
        errors[-1] /= np.mean(naive)
        for y, row in zip(one.future, found, strict=True):
            whole += abs(y)
            for level, f in zip(LEVELS, row, strict=True):
                losses += 2 * max(level * (y - f), (level - 1) * (y - f)) / 9
    assert score(series, forecasts).mase == pytest.approx(np.mean(errors))
    assert score(series, forecasts).quantile_loss == pytest.approx(losses / whole)


def test_the_naive_row_must_be_the_published_one(folder):
    (folder / "published.csv").write_text(
        "task,model,mase,mean_weighted_quantile_loss\n"
        "m4_hourly/h/short,seasonal_naive,1.1932,0.0376\n"
        "electricity/h/short,seasonal_naive,1.0,0.1\n"
    )
    rows = published(folder)
    assert rows == {"seasonal_naive": Score(1.1932, 0.0376)}
    require_naive(Score(1.19321, 0.03757), rows)
    with pytest.raises(SettingsError, match=r"the naive row is MASE 1\.2000"):
        require_naive(Score(1.2, 0.0376), rows)
    series = read_series(folder)
    with pytest.raises(SettingsError, match=r"other data or other scores"):
        require_naive(score(series, [seasonal_naive(one.known) for one in series]), rows)


def test_known_rows_stand_for_an_absent_file_and_a_file_without_the_naive_row_is_refused(tmp_path):
    assert published(tmp_path)["seasonal_naive"] == Score(1.1932, 0.0376)
    head = "task,model,mase,mean_weighted_quantile_loss\n"
    (tmp_path / "published.csv").write_text(head + "m4_hourly/h/short,other,1.0,0.1\n")
    with pytest.raises(SettingsError, match=r"no row of seasonal_naive for m4_hourly/h/short"):
        published(tmp_path)
