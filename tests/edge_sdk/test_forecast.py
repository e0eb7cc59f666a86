"""What a device says next, and how it says that the model did not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.forecast import predict, rolling
from edge_sdk.series import Row, Series
from edge_sdk.windows import Frame
from edge_sdk.wire.manifest import Feature, Target, Window

LOAD = "elec.import.energy"


def frame_of(values, horizon=2, form="level"):
    series = Series(3600, [LOAD])
    series.load(Row(LOAD, i, v) for i, v in enumerate(np.asarray(values, float)) if np.isfinite(v))
    manifest = SimpleNamespace(
        window=Window(3, horizon, 3600),
        target=Target(LOAD, "kWh", form, "device"),
        features=(Feature("load", "target", "kWh"),),
    )
    return Frame.of(series, manifest)


def persistence(form="level", horizon=2):
    """A graph that repeats the last value, plus p[0] in scaled units."""

    def graph(p, x):
        last = x[:, -1:, 0] if form == "level" else np.zeros((len(x), 1), np.float32)
        return (np.repeat(last + p[0], horizon, 1),)

    return graph


@pytest.mark.parametrize("form", ["level", "change"])
def test_the_model_answers_in_the_unit_of_the_series(form):
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


def test_numbers_that_are_none_are_not_passed_on():
    told = predict(lambda p, x: (np.full((1, 2), np.inf),), None, frame_of(np.arange(50.0)))
    assert told.source == "last day"


def test_without_any_ground_nothing_is_claimed():
    for values in ([1.0], [1.0, 2.0], np.r_[np.full(20, 1.0)]):
        told = predict(lambda p, x: (np.full((1, 2), np.nan),), None, frame_of(values))
        assert told.source == "none"
        assert np.isnan(told.values).all()


def test_an_empty_series_still_has_an_answer():
    told = predict(persistence(), np.zeros(1), frame_of([]))
    assert told.source == "none"
    assert len(told.times) == 2


def test_rolling_gives_what_single_forecasts_give_in_any_batch():
    rng = np.random.default_rng(3)
    frame = frame_of(rng.normal(size=300), form="change")
    origins = frame.origins("test")
    whole = rolling(persistence("change"), np.ones(1, np.float32), frame, origins)
    parts = rolling(persistence("change"), np.ones(1, np.float32), frame, origins, size=7)
    assert whole.shape == (len(origins), 2)
    assert whole.tolist() == parts.tolist()
    assert whole[:, 0] == pytest.approx(frame.last[origins] + frame.scale.width)
