"""The count of missing readings equals that of a simulation that adds one reading after the other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.bundle import shipped_folder
from edge_sdk.forecasting.forecast import missing_readings
from edge_sdk.forecasting.series import Reading, Series
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.training.run_role import series_for

LOAD, WARM, WIND = "elec.import.energy", "weather.temperature", "weather.wind_speed"
START = 473_352 * 3600
SITE = {"floor-area": 100.0, "wall-area": 80.0, "window-area": 10.0}


def manifest_of(name):
    return Manifest.parse((shipped_folder() / name / "manifest.json").read_bytes())


def steps_until_ready(series, manifest, streams):
    """Add perfect readings until the newest window is complete, and count them."""
    end = int(series.times()[-1]) + series.step if len(series) else START
    for added in range(2000):
        if len(series) and ChannelFrame.of(series, manifest, site=SITE).is_ready:
            return added
        for stream in streams:
            series.add(Reading(stream, end + added * series.step, 1.0 + added % 5))
    raise AssertionError("never ready")


@pytest.mark.parametrize("name", ["load-lstm", "load-lstm-week", "chargers-week-6"])
def test_an_empty_series_needs_the_whole_window_and_its_lags(name):
    manifest = manifest_of(name)
    series = series_for(manifest, 10_000)
    missing = missing_readings(series, manifest)
    assert missing.streams == manifest.required_streams
    lag = max((f.lag_steps or 1 for f in manifest.features), default=1)
    assert missing.rows == manifest.window.lookback + lag - 1
    assert missing.rows == steps_until_ready(series, manifest, manifest.required_streams)
    assert missing_readings(series, manifest).text == ""


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_the_count_of_a_window_that_takes_gaps_is_that_of_a_simulation(seen, least):
    manifest = manifest_of("load-mlp")
    window = replace(manifest.window, least_known=min(least, manifest.window.lookback))
    needed = SimpleNamespace(
        window=window,
        target=manifest.target,
        features=manifest.features,
        optional=manifest.optional,
    )
    series = series_for(manifest, 10_000)
    for i, is_seen in enumerate(seen):
        if is_seen:
            series.add(Reading(LOAD, START + i * series.step, 1.0))
    found = missing_readings(series, needed).rows
    assert found == steps_until_ready(series, needed, manifest.required_streams)


@pytest.mark.slow
@given(
    seen=st.lists(st.booleans(), min_size=1, max_size=260),
    warm=st.lists(st.booleans(), min_size=1, max_size=260),
)
def test_the_count_is_that_of_a_simulation_whatever_is_missing(seen, warm):
    manifest = manifest_of("load-lstm-week")
    series = Series(3600, [LOAD, WARM, WIND], capacity=10_000)
    for stream, rows in ((LOAD, seen), (WARM, warm), (WIND, seen)):
        for hour in np.flatnonzero(rows):
            series.add(Reading(stream, START + int(hour) * 3600, 1.0 + hour % 7))
    missing = missing_readings(series, manifest)
    expected = steps_until_ready(series, manifest, (LOAD, WARM, WIND))
    assert missing.rows == expected
    assert set(missing.streams) == {
        x for x, rows in ((LOAD, seen), (WARM, warm), (WIND, seen)) if not any(rows)
    }
