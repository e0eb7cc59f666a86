"""Histograms of scores from opened sums."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.scores.score_book import histogram, histograms, status_lines
from edge_sdk.app.settings import SettingsError, from_table

pytestmark = pytest.mark.extension
DAY = 86_400_000


def opened(day, counts, noise=0.0, source="scores"):
    return SimpleNamespace(
        source=source, period=day * DAY, members=int(sum(counts)), values=np.array(counts, float),
        noise=noise,
    )  # fmt: skip


def configured(*sums):
    entry = SimpleNamespace(load={"opened": lambda _config: sums}.get)
    index = SimpleNamespace(configured=lambda _tables: [entry])
    return SimpleNamespace(index=index, tables={})


def test_the_cohorts_of_a_day_are_added():
    first, second = [1, 2, 3, 0, 0, 0, 0, 4], [0, 0, 5, 0, 0, 0, 0, 5]
    other = opened(20_001, [9] * 24, source="history")
    days = histograms(
        configured(
            opened(20_000, first, 3.0), other, opened(20_000, second, 4.0), opened(19_999, first)
        )
    )
    assert [one["day"] for one in days] == [20_000, 19_999]
    newest = days[0]
    assert newest["answers"] == 20
    assert [one["devices"] for one in newest["cells"]] == [1, 2, 8, 0, 0, 0, 0, 9]
    assert newest["cells"][2] == {
        "cell": "0.6 to 0.8", "devices": 8.0, "error": 5.0, "percent": 40.0, "percent_error": 25.0,
    }  # fmt: skip
    assert "of 20 devices" in status_lines(newest)[0]


def test_without_noise_a_count_has_no_error():
    found = histogram(20_000, [opened(20_000, [1] * 8)])
    assert {one["error"] for one in found["cells"]} == {0.0}


def test_the_former_section_is_refused_with_what_took_its_place():
    with pytest.raises(
        SettingsError, match="scores: removed: answers with a device's own noise are gone"
    ):
        from_table(AggregatorConfig, {"scores": {"collect": True}}, "aggregator.toml")
