"""The forecast of one hourly series alone: what it repeats, its spread, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_sim.evaluation.m4_forecast import FIRST, LEAST, design, forecast


def test_a_row_has_only_readings_before_its_origin():
    readings = np.arange(400.0)
    for ahead in (1, 24, 25, 48):
        rows, start = design(readings, ahead, 24)
        changed = readings.copy()
        changed[FIRST:] += 1e6  # not known at the first origin
        again, same = design(changed, ahead, 24)
        assert np.array_equal(rows[0], again[0])
        assert start[0] == same[0] == FIRST + ahead - 1 - (24 if ahead <= 24 else 48)
        assert len(rows) == 400 - ahead - FIRST + 2


def test_noise_around_a_day_has_the_spread_of_the_noise():
    rng = np.random.default_rng(3)
    day = 10.0 + np.sin(np.arange(24) * 2 * np.pi / 24)
    readings = np.tile(day, 32) + rng.normal(0.0, 0.1, 768)
    found = forecast(readings)
    assert np.abs(found[:, 4] - np.tile(day, 2)).mean() < 0.05
    assert (np.diff(found, axis=1) >= 0.0).all()
    width = (found[:, 8] - found[:, 0]).mean() / (2 * 1.2816 * 0.1)
    assert 0.9 < width < 1.3


def test_a_scale_and_a_level_change_the_forecast_as_they_change_the_series():
    rng = np.random.default_rng(4)
    readings = rng.normal(50.0, 5.0, 400)
    assert np.allclose(forecast(1000.0 * readings), 1000.0 * forecast(readings))
    assert np.allclose(forecast(np.zeros(LEAST)), 0.0)


def test_a_short_series_is_refused():
    with pytest.raises(ValueError, match=r"287 hours are too few; at least 288"):
        forecast(np.ones(287))
