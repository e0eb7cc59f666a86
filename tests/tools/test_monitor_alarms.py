"""The count of the monitor's alarms: joined records, planted breaks, and a made-up building."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pandas")

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.daily_scores import DailyScores
from edge_sdk.forecasting.windows import ChannelFrame
from tools.experiments.buildings import LOAD, Building
from tools.experiments.monitor_alarms import alarms, broken, joined, scores, summary, table


def record(ratio, days=90):
    one = np.ones(days)
    sums = np.stack([ratio * one, one, one], axis=1)
    return DailyScores(np.arange(days), sums, np.ones((days, 3), np.int64))


def test_a_shared_day_is_added_up():
    part = record(0.5, days=3)
    found = joined([part, DailyScores(part.days + 2, part.sums, part.counts)])
    assert found.days.tolist() == [0, 1, 2, 3, 4]
    assert found.sums[:, 0].tolist() == [0.5, 0.5, 1.0, 0.5, 0.5]
    assert len(joined([]).days) == 0


def test_alarms_are_told_apart():
    assert alarms(record(0.9)) == []
    slow = alarms(record(1.2))
    assert [is_slow for _, is_slow in slow] == len(slow) * [True]
    assert [day for day, _ in slow] == [16, 33, 50, 67, 84]
    assert alarms(record(2.5, days=4)) == [(1, False), (3, False)]


def test_a_break_that_makes_a_model_gross_is_found_and_a_mild_one_is_not():
    found = summary("made up", [record(0.9), record(0.8)])
    assert (found.slow, found.fast, found.worse) == (0, 0, 0)
    assert found.found == {1.5: 0.0, 2.0: 0.0, 3.0: 1.0}
    assert broken(record(0.9), 40, 2.0).sums[[39, 40], 0].tolist() == [0.9, 1.8]
    assert "| made up | 0.5 | 0 | 0 | 0 | 0 % | 0 % | 100 % |" in table([found])


def test_a_building_is_scored_after_its_first_sixty_days():
    hours = np.arange(24 * 80)
    load = (
        2.0
        + np.cos(2 * np.pi * hours / 24)
        + 0.1 * np.random.default_rng(0).normal(size=len(hours))
    )
    building = Building("b", 3600, 0, {LOAD: load}, {})
    manifest = Bundle.open("load-week-1", trust=TrustedKeys()).manifest
    found = scores(ChannelFrame.of(building.series(), manifest))
    assert found.days[0] >= 60
    assert len(found.days) >= 19
    assert 0.3 < found.sums[:, 0].sum() / found.sums[:, 2].sum() < 1.0
