"""The count of the monitor's alarms: joined records, planted breaks, and a made-up building."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pandas")

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.choice.model_monitor import DailyScores
from edge_sdk.forecasting.windows import ChannelFrame
from tools.experiments.buildings import LOAD, Building
from tools.experiments.monitor_alarms import (
    ORDERS,
    SETTINGS,
    alarms,
    broken,
    is_false,
    joined,
    loses_most_days,
    most_events,
    scored_set,
    scores,
    shuffled_table,
    shuffled_weeks,
    summary,
    table,
    trade_off,
)


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


def test_a_break_is_found_by_the_usual_ratio_of_a_steady_device():
    found = summary("made up", [record(0.9), record(0.8)])
    assert (found.slow, found.fast, found.false, found.worse) == (0, 0, 0, 0)
    assert found.found == {1.5: (1.0, 1.0), 2.0: (1.0, 1.0), 3.0: (1.0, 1.0)}
    assert broken(record(0.9), 40, 2.0).sums[[39, 40], 0].tolist() == [0.9, 1.8]
    row = "| made up | 0.5 | 0 | 0 | 0 | 0 | 100 / 100 % | 100 / 100 % | 100 / 100 % |"
    assert row in table([found])


def test_an_alarm_is_false_where_nothing_became_worse():
    assert is_false(record(0.9), 80, 14)
    assert not is_false(broken(record(0.5), 70, 1.5), 83, 14)
    assert is_false(broken(record(0.5), 70, 1.2), 83, 14)
    assert not is_false(record(1.1), 80, 14)


def test_settings_are_compared_on_two_halves_of_the_devices():
    lines = trade_off([record(0.9), record(0.8)]).splitlines()
    assert len(lines) == 2 + len(SETTINGS)
    assert lines[2].startswith("| 0.9 | 0.2 | 56 | 0.0 | 0.0 | 100 / 100 % |")


def test_weeks_in_random_order_keep_their_days_and_lose_a_drift():
    """A slow worsening raises an alarm in its own order, and none where its weeks are mixed."""
    rising = record(0.9, days=364)
    rising.sums[:, 0] = np.where(np.arange(364) < 343, 0.5, 0.9)
    assert [is_slow for _, is_slow in alarms(rising)] == [True] * len(alarms(rising)) != []
    mixed = shuffled_weeks(rising, np.random.default_rng(0))
    assert sorted(mixed.sums[:, 0]) == sorted(rising.sums[:, 0])
    assert (mixed.sums.reshape(52, 7, 3) == mixed.sums.reshape(52, 7, 3)[:, :1]).all()
    assert alarms(mixed) == []


def test_alarms_in_random_order_are_told_apart_by_devices_that_lose_most_days():
    losing = record(1.2, days=365)
    assert loses_most_days(losing)
    assert not loses_most_days(record(1.04))
    found = summary("made up", [losing, record(0.9, days=365)])
    assert found.drift == 0
    assert found.losing >= ORDERS
    assert found.shuffled == pytest.approx(2 * ORDERS * 364 / 365.25)
    years = round(found.shuffled)
    bound = 100 * most_events(0) / found.shuffled
    last = shuffled_table([found]).splitlines()[-1]
    assert last.startswith(f"| all: 0.00 in 100 device-years, at most {bound:.2f} | {years} | 0 |")


def test_scores_are_kept_and_not_computed_again(tmp_path):
    kept = record(0.7)
    arrays = {f"{part}0": getattr(kept, part) for part in ("days", "sums", "counts")}
    np.savez(tmp_path / "building_bdg2_fl_az_ca-1.npz", **arrays)
    (found,) = scored_set(tmp_path / "no data", "building_bdg2_fl_az_ca", 1, tmp_path)
    np.testing.assert_array_equal(found.sums, kept.sums)


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
