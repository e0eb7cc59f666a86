"""Values announced for later slots: which row reads them, what is refused, and what training sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.forecasting.incoming_readings import MOST, AnnouncedValues
from edge_sdk.forecasting.series import Reading, ReadingOutcome, Series
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Feature, Manifest, ManifestError

HOUR = 3600
LOAD, WARM, NEXT = "elec.import.energy", "weather.temperature", "weather.temperature+1"
MANIFEST = Bundle.open("load-week-weather-ahead-1", trust=TrustedKeys()).manifest


def made(hours, *, warm=None):
    """Return a series with energy, and with the temperatures ``warm`` by hour."""
    series = Series(HOUR, MANIFEST.streams)
    for hour in range(hours):
        series.add(Reading(LOAD, hour * HOUR, 1.0 + hour % 3))
    for hour, value in (warm or {}).items():
        series.add(Reading(WARM, hour * HOUR, value))
    return series


def ahead(series):
    """Return the temperature ahead in °C and its mask, by row."""
    frame = ChannelFrame.of(series, MANIFEST)
    value, known = frame.channels[:, -2:].T
    return -20.0 + 65.0 * value, known


def test_a_row_has_the_recorded_value_of_the_next_one_and_then_the_newest():
    series = made(5, warm=dict(enumerate([10.0, 11.0, 12.0, 13.0, 14.0])))
    value, known = ahead(series)
    np.testing.assert_allclose(value, [11, 12, 13, 14, 14], atol=1e-4)
    assert known.tolist() == [1, 1, 1, 1, 0]


def test_without_any_weather_the_channel_is_zero_after_scaling():
    value, known = ahead(made(3))
    np.testing.assert_allclose(value, -20.0)
    assert not known.any()


def test_an_announced_value_is_read_and_stays_when_the_record_differs():
    series, announced = made(3, warm={0: 10.0, 1: 11.0, 2: 12.0}), AnnouncedValues(MANIFEST)
    assert announced.add(Reading(WARM, 3 * HOUR, 30.0), series) is ReadingOutcome.ANNOUNCED
    assert announced.add(Reading(WARM, 4 * HOUR, 31.0), series) is ReadingOutcome.ANNOUNCED
    assert ahead(series)[0][-1] == pytest.approx(30.0, abs=1e-4)
    assert (len(series), series.newest) == (3, 2), "an announcement opens no row"
    assert announced.add(Reading(WARM, 3 * HOUR, 29.0), series) is ReadingOutcome.ANNOUNCED
    assert announced.changes == 2
    for stream, value in ((LOAD, 1.0), (WARM, 5.0)):
        series.add(Reading(stream, 3 * HOUR, value))
    announced.settle(series)
    assert announced.add(Reading(WARM, 3 * HOUR, 6.0), series) is ReadingOutcome.LATE
    value, known = ahead(series)
    np.testing.assert_allclose(value[-2:], [29.0, 31.0], atol=1e-4)  # what the forecasts saw
    assert known.all()


def test_of_several_values_in_a_slot_the_earliest_counts():
    series, announced = made(2), AnnouncedValues(MANIFEST)
    for _ in range(2):
        for quarter in range(4):
            announced.add(Reading(WARM, 2 * HOUR + 900 * quarter, 20.0 + quarter), series)
    assert (series.values(NEXT)[-1], announced.changes) == (20.0, 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True, width=32)), max_size=30)
)
def test_hostile_announcements_reach_neither_the_grid_nor_the_memory(rows):
    series, announced = made(4), AnnouncedValues(MANIFEST)
    for time, value in rows:
        assert isinstance(announced.add(Reading(WARM, time, value), series), ReadingOutcome)
    assert (len(series), series.newest) == (4, 3)
    assert np.isfinite(ChannelFrame.of(series, MANIFEST).channels[:, -2:]).all()


def test_no_more_than_the_next_slots_are_kept():
    series, announced = made(4), AnnouncedValues(MANIFEST)
    seen = [announced.add(Reading(WARM, (4 + i) * HOUR, 1.0), series) for i in range(2 * MOST)]
    assert seen.count(ReadingOutcome.ANNOUNCED) == MOST
    assert set(seen[MOST:]) == {ReadingOutcome.FUTURE}


@pytest.mark.parametrize(
    ("feature", "why"),
    [
        ({"lead_steps": 2}, "above the horizon, 1"),
        ({"lead_steps": 1, "name": "unmasked"}, "needs a mask"),
        ({"lead_steps": 1, "stream": LOAD}, "the target is not known ahead"),
    ],
)
def test_a_manifest_with_another_lead_is_refused(feature, why):
    changed = replace(MANIFEST.features[-2], **feature)
    rest = (
        MANIFEST.features[-1]
        if changed.name != "unmasked"
        else replace(MANIFEST.features[-1], of="temperature-ahead-2")
    )
    more = (Feature("temperature-ahead-2", "stream", "°C", stream="x"),) * (
        changed.name == "unmasked"
    )
    with pytest.raises(ValueError, match=why):
        replace(MANIFEST, features=(*MANIFEST.features[:-2], changed, *more, rest))
    with pytest.raises(ValueError, match="only a stream or a calendar feature has 'lead_steps'"):
        Feature("area", "static", "1", lead_steps=1)


def test_a_closed_form_reads_the_weather_of_the_target_and_nothing_after_it():
    manifest = Bundle.open("load-analytic-weather-ahead", trust=TrustedKeys()).manifest
    assert manifest.min_sdk == "0.1.2"
    model = AnalyticModel(manifest)
    rng = np.random.default_rng(5)
    p = rng.normal(size=manifest.size).astype(np.float32)
    p[len(model.section.features) : 2 * len(model.section.features)] = 1.0
    x = rng.random((3, manifest.window.lookback, len(manifest.features)), np.float32)
    ((before,), names) = model.design(p, x), list(model.section.features)
    at = names.index("known:temperature-ahead")
    column = [f.name for f in manifest.features].index("temperature-ahead")
    np.testing.assert_allclose(before[:, 0, at], x[:, -1, column] - p[at], rtol=1e-6)
    x[:, :-1, column] += 1.0
    np.testing.assert_array_equal(model.design(p, x)[0], before)


def test_a_closed_form_without_the_channel_is_refused():
    manifest = Bundle.open("load-analytic-weather-ahead", trust=TrustedKeys()).manifest
    features = [replace(f, lead_steps=None) for f in manifest.features]
    with pytest.raises(ManifestError, match="no channel with lead_steps = 1"):
        AnalyticModel(replace(manifest, features=tuple(features)))


def test_a_manifest_with_a_lead_is_read_back():
    again = Manifest.parse(MANIFEST.canonical())
    assert again == MANIFEST
    assert again.streams == (LOAD, WARM, NEXT)
    assert (
        b"lead_steps"
        not in Bundle.open("load-week-weather-1", trust=TrustedKeys()).manifest.canonical()
    )
