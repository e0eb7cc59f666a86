"""What a device says next, and how it says that the model did not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edge_sdk.forecasting.forecast import fan, predict, rolling
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Feature, Target, Window

LOAD = "elec.import.energy"


def frame_of(values, horizon=2, form="level"):
    series = Series(3600, [LOAD])
    series.load(
        SeriesRow(LOAD, i, v) for i, v in enumerate(np.asarray(values, float)) if np.isfinite(v)
    )
    manifest = SimpleNamespace(
        window=Window(3, horizon, 3600),
        target=Target(LOAD, "kWh", form, "device"),
        features=(Feature("load", "target", "kWh"),),
    )
    return ChannelFrame.of(series, manifest)


def persistence(form="level", horizon=2):
    """A graph that repeats the last value, plus p[0] in scaled units."""

    def graph(p, x):
        last = x[:, -1:, 0] if form == "level" else np.zeros((len(x), 1), np.float32)
        return (np.repeat(last + p[0], horizon, 1),)

    return graph


@pytest.mark.parametrize("form", ["level", "change"])
def test_forecasts_are_in_the_unit_of_the_series(form):
    frame = frame_of(np.arange(50.0), form=form)
    p = np.array([0.5], np.float32)
    told = predict(persistence(form), p, frame)
    assert told.source == "model"
    assert told.values == pytest.approx([49 + 0.5 * frame.scale.width] * 2, rel=1e-6)
    assert told.times.tolist() == [50 * 3600, 51 * 3600]
    assert (told.unit, told.interval) == ("kWh", None)
    assert told.median is told.values


def test_an_incomplete_window_falls_back_to_the_same_slots_of_yesterday():
    values = np.arange(50.0)
    values[46:49] = np.nan
    told = predict(persistence(), np.zeros(1, np.float32), frame_of(values))
    assert told.source == "last day"
    assert told.values.tolist() == [26.0, 27.0]


def test_a_horizon_past_a_day_repeats_the_last_day_known():
    values = np.arange(50.0)
    nan = predict(lambda p, x: (np.full((1, 26), np.nan),), None, frame_of(values[:46], horizon=26))
    assert nan.source == "last day"
    assert nan.values.tolist() == [*range(22, 46), 22, 23]


def test_non_finite_forecasts_are_replaced_by_the_fallback():
    told = predict(lambda p, x: (np.full((1, 2), np.inf),), None, frame_of(np.arange(50.0)))
    assert told.source == "last day"


def test_without_readings_no_forecast_is_made():
    for values in ([1.0], [1.0, 2.0], np.r_[np.full(20, 1.0)]):
        told = predict(lambda p, x: (np.full((1, 2), np.nan),), None, frame_of(values))
        assert told.source == "none"
        assert np.isnan(told.values).all()


def test_before_the_first_reading_a_forecast_has_no_times():
    told = predict(persistence(), np.zeros(1), frame_of([]))
    assert told.source == "none"
    assert told.times.shape == told.values.shape == (0,)


def test_rolling_gives_what_single_forecasts_give_in_any_batch():
    rng = np.random.default_rng(3)
    frame = frame_of(rng.normal(size=300), form="change")
    origins = frame.origins((0.8, 0.9))
    whole = rolling(persistence("change"), np.ones(1, np.float32), frame, origins)
    parts = rolling(persistence("change"), np.ones(1, np.float32), frame, origins, size=7)
    assert whole.shape == (len(origins), 2)
    assert whole.tolist() == parts.tolist()
    assert whole[:, 0] == pytest.approx(frame.last[origins] + frame.scale.width)


def quantiles(*offsets, horizon=2):
    """A graph that tells the last value plus each offset, in scaled units."""

    def graph(p, x):
        last = np.repeat(x[:, -1:, 0], horizon, 1)
        return ((last[:, :, None] + np.array(offsets, np.float32)).astype(np.float32),)

    return graph


LEVELS = (0.1, 0.5, 0.9)


def test_quantiles_become_a_median_and_an_interval():
    frame = frame_of(np.arange(50.0) % 7)
    told = predict(quantiles(-0.1, 0.0, 0.2), np.zeros(1), frame, LEVELS)
    last, width = 49 % 7, frame.scale.width
    assert told.median.tolist() == [last, last]
    ends = [max(0, last - 0.1 * width), last + 0.2 * width]
    assert told.interval == pytest.approx(np.tile(ends, (2, 1)), abs=1e-6)
    assert told.coverage == pytest.approx(0.8)
    assert told.quantiles.shape == (2, 3)
    assert (told.levels, told.calibrated) == (LEVELS, 0)


def test_crossing_quantiles_are_sorted_and_energy_is_not_negative():
    frame = frame_of(np.arange(50.0) % 7)
    told = predict(quantiles(0.2, -3.0, 0.1), np.zeros(1), frame, LEVELS)
    assert told.quantiles[0, 0] == 0.0
    assert (np.diff(told.quantiles, axis=1) >= 0).all()


@given(arrays(np.float64, (5, 2, 3), elements=st.floats(-5, 5)))
@settings(max_examples=60)
def test_sorting_never_raises_the_sum_of_pinball_losses(told):
    y = np.linspace(-1, 1, 10).reshape(5, 2)

    def score(values):
        error, q = y[:, :, None] - values, np.array(LEVELS)
        return np.maximum(q * error, (q - 1.0) * error).mean(axis=(0, 1)).sum()

    assert score(np.sort(told, axis=2)) <= score(told) + 1e-12


def test_a_rolling_median_is_the_middle_quantile():
    frame = frame_of(np.arange(60.0) % 5)
    origins = frame.origins()
    graph = quantiles(-0.1, 0.05, 0.2)
    told = fan(graph, np.zeros(1), frame, origins, LEVELS, size=7)
    assert told.shape == (len(origins), 2, 3)
    assert np.array_equal(rolling(graph, np.zeros(1), frame, origins, LEVELS), told[:, :, 1])
