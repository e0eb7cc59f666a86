"""The table and its verdict follow rules that a reader can check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_sim.results import (
    ARMS,
    DeviceResult,
    ForecastScore,
    Traffic,
    as_json,
    chosen_arm,
    mean_mase,
    score,
    table,
    verdict,
    wins,
)


def row(name, *mases, traffic=None):
    scores = {arm: ForecastScore(2 * m, m) for arm, m in zip(ARMS, mases, strict=True)}
    return DeviceResult(name, 10, scores, traffic or {})


def test_persistence_has_a_mase_of_one():
    truth = np.array([3.0, 5.0, 4.0, 8.0])
    forecast = np.array([np.nan, 3.0, 5.0, 4.0])
    assert score(truth, forecast).mase == 1.0


def test_unforecast_and_missing_steps_are_not_scored():
    truth = np.array([1.0, 2.0, np.nan, 4.0, 5.0])
    forecast = np.array([np.nan, 2.5, 9.0, 4.5, 5.5])
    assert score(truth, forecast) == ForecastScore(0.5, 0.5)


def test_a_constant_series_has_no_mase():
    with pytest.raises(ValueError, match="constant"):
        score(np.ones(4), np.zeros(4))


def test_a_worse_result_is_reported_as_such():
    rows = [row("a", 1.0, 0.7, 0.6, 0.8), row("b", 1.0, 0.7, 0.6, 0.8)]
    said = verdict(rows)
    assert said.startswith("PL-FL did not win; local only was better")
    assert "14.3 % above local only (better on 0 of 2 devices)" in said
    assert verdict(rows, "federated").startswith("Federated training won")


def test_a_win_by_less_than_noise_is_a_tie():
    assert "tied with local only" in verdict([row("a", 1.0, 0.800, 0.9, 0.79)])
    assert verdict([row("a", 1.0, 0.800, 0.9, 0.78)]).startswith("PL-FL won")


def test_the_way_with_a_fleet_is_the_one_with_the_least_mean_error():
    rows = [row("a", 1.0, 0.1, 0.6, 0.8), row("b", 1.0, 0.1, 0.9, 0.5)]
    assert chosen_arm(rows) == "pl-fl"
    assert chosen_arm(rows[:1]) == "federated"


def test_means_weigh_devices_equally_and_wins_count_devices():
    rows = [row("a", 1, 0.8, 0.9, 0.7), row("b", 1, 0.6, 0.9, 0.7)]
    assert mean_mase(rows, "local") == pytest.approx(0.7)
    assert wins(rows, "pl-fl", "local") == 1


def test_the_table_has_a_line_per_device_the_mean_and_the_bytes():
    rows = [row("home-1", 1, 0.8, 0.9, 0.7, traffic={"pl-fl": Traffic(23_456, 1_200_000)})]
    text = table(rows, "kWh")
    assert "23.5 kB / 1.2 MB" in text
    assert [line.split()[0] for line in text.splitlines() if line][1:4] == [
        "device",
        "home-1",
        "mean",
    ]
    assert as_json(rows)[0]["bytes"] == {"pl-fl": {"up": 23_456, "down": 1_200_000}}
