"""Channels, scale, windows, and where they may not reach."""

from __future__ import annotations

from datetime import UTC
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import WHOLE, ChannelFrame, Drawable, Scale, filled
from edge_sdk.protocol.contract.manifest import Feature, Target, Window

LOAD, HEAT = "elec.import.energy", "weather.temperature"
MONDAY = 473_352  # 2024-01-01 00:00 UTC in hours
OWN = Feature("load", "target", "kWh")


def series_of(load, heat=None, start=MONDAY):
    series = Series(3600, [LOAD, HEAT])
    columns = [(LOAD, load)] + ([(HEAT, heat)] if heat is not None else [])
    for stream, values in columns:
        series.load(
            SeriesRow(stream, start + i, v)
            for i, v in enumerate(np.asarray(values, float))
            if np.isfinite(v)
        )
    return series


def plan(*features, lookback=3, horizon=1, form="level", scale="device", least=None, **ends):
    target = Target(LOAD, "kWh", form, scale, **ends)
    return SimpleNamespace(
        window=Window(lookback, horizon, 3600, least), target=target, features=(OWN, *features)
    )


def frame_of(load, *features, heat=None, site=None, zone=UTC, **given):
    fixed, span = given.pop("fixed_scale", None), given.pop("span", WHOLE)
    manifest = plan(*features, **given)
    return ChannelFrame.of(
        series_of(load, heat), manifest, site=site or {}, zone=zone, scale=fixed, span=span
    )


def test_windows_are_rows_up_to_the_origin_and_targets_come_after_it():
    frame = frame_of(np.arange(10.0), lookback=3, horizon=2, fixed_scale=Scale(0, 1))
    origins = frame.origins()
    assert origins.tolist() == list(range(2, 8))
    assert frame.inputs(origins)[0, :, 0].tolist() == [0, 1, 2]
    assert frame.targets(origins)[0].tolist() == [3, 4]
    assert frame.inputs(origins)[-1, :, 0].tolist() == [5, 6, 7]
    assert frame.targets(origins)[-1].tolist() == [8, 9]


def test_channels_do_not_mix():
    heat = np.arange(10.0) + 100
    feature = Feature("heat", "stream", "°C", low=0.0, high=1.0, stream=HEAT)
    frame = frame_of(np.arange(10.0), feature, heat=heat, fixed_scale=Scale(0, 1))
    x = frame.inputs(np.array([4, 7]))
    assert x.shape == (2, 3, 2)
    assert x[0].tolist() == [[2, 102], [3, 103], [4, 104]]
    assert x[1, -1].tolist() == [7, 107]


def test_a_window_that_takes_gaps_needs_a_number_of_known_rows_only():
    load = np.arange(12.0)
    load[4:10] = np.nan  # two of them are carried forward
    frame = frame_of(load, lookback=4, horizon=1, fixed_scale=Scale(0, 1), least=2)
    assert np.flatnonzero(frame.complete).tolist() == [1, 2, 3, 4, 5, 6, 7, 11]
    assert frame.origins().tolist() == [1, 2]
    assert frame.origins(observed=False).tolist() == [1, 2, 3, 4, 5, 6, 7]
    x = frame.inputs(np.array([1, 7, 11]))[:, :, 0]
    assert x == pytest.approx(
        np.array([[np.nan, np.nan, 0, 1], [3, 3, np.nan, np.nan], [np.nan, np.nan, 10, 11]]),
        nan_ok=True,
    )
    assert frame.is_ready
    assert not frame_of(load[:1], lookback=4, fixed_scale=Scale(0, 1), least=2).is_ready


def test_a_calendar_channel_with_a_lead_has_the_wall_clock_of_the_later_row():
    feature = Feature("later", "calendar", "1", 0.0, 24.0, what="slot_of_day", lead_steps=5)
    zone = ZoneInfo("Europe/Madrid")  # a row of 2024-03-31: 01:00 UTC is 03:00, after 01:00
    start = MONDAY + 90 * 24 - 4
    manifest = plan(feature)
    frame = ChannelFrame.of(series_of(np.ones(3), start=start), manifest, zone=zone)
    assert (frame.channels[:, 1] * 24).round().tolist() == [3, 4, 5]


def test_gaps_of_two_are_filled_and_gaps_of_three_mask_the_window():
    load = np.arange(20.0)
    load[[5, 6]] = np.nan
    load[[12, 13, 14]] = np.nan
    frame = frame_of(load, lookback=2)
    assert frame.raw[5] != frame.raw[5]
    assert frame.last[6] == 4.0
    asked = frame.origins(observed=False).tolist()
    assert 6 in asked  # complete after filling
    assert {14, 15} & set(asked) == set()  # row 14 is a third missing one
    learnt = frame.origins().tolist()
    assert {4, 5, 11, 12} & set(learnt) == set()  # targets that nobody measured
    assert 6 in learnt


def test_no_training_window_reads_past_its_part_and_scored_ones_may_reach_back():
    frame = frame_of(np.arange(100.0), lookback=5, horizon=3)
    train, test = frame.origins((0.0, 0.8)), frame.origins((0.8, 0.9))
    assert (train.min(), train.max()) == (4, 76)  # last target row 79
    assert (test.min(), test.max()) == (79, 86)  # targets 80 .. 89
    inside = frame.origins((0.8, 0.9), reach_back=False)
    assert inside.min() == 84
    assert frame.origins((0.9, 1.0)).max() == 96
    assert not set(train) & set(test)


def test_the_scale_comes_from_the_training_part_only():
    load = np.concatenate([np.linspace(2.0, 6.0, 80), np.full(20, 1000.0)])
    frame = frame_of(load, span=(0.0, 0.8))
    assert frame.scale == Scale(2.0, 6.0)
    assert frame.channels[79, 0] == pytest.approx(1.0)
    assert frame_of(load, scale="fixed", low=0.0, high=10.0).scale == Scale(0.0, 10.0)
    assert frame_of(load, fixed_scale=Scale(1, 3)).scale == Scale(1, 3)


def test_a_constant_series_scales_to_zero_not_to_infinity():
    frame = frame_of(np.full(50, 7.0))
    assert (frame.channels == 0).all()
    assert frame.restore(np.zeros((1, 1), np.float32), np.array([10]))[0, 0] == 7.0


@pytest.mark.parametrize("form", ["level", "change"])
def test_restore_inverts_the_scaling(form):
    rng = np.random.default_rng(4)
    frame = frame_of(rng.normal(50, 9, 200), horizon=4, form=form)
    origins = frame.origins()
    back = frame.restore(frame.targets(origins), origins)
    assert back == pytest.approx(frame.truth(origins), abs=1e-4)


def test_a_change_is_counted_from_the_last_row_and_carries_over_gaps():
    load = np.array([0.0, 10.0, 4.0, np.nan, 6.0, 7.0])
    frame = frame_of(load, lookback=2, form="change", fixed_scale=Scale(0, 10))
    assert frame.targets(np.array([1]))[0, 0] == pytest.approx(-0.6)
    assert frame.targets(np.array([3]))[0, 0] == pytest.approx(0.2)  # 6 against the carried 4


def test_a_lag_is_aligned_with_the_first_target_and_reads_no_future():
    day = Feature("yesterday", "lag", "kWh", lag_steps=24)
    next_ = Feature("present", "lag", "kWh", lag_steps=1)
    frame = frame_of(np.arange(60.0), day, next_, lookback=2, fixed_scale=Scale(0, 1))
    x = frame.inputs(np.array([30]))
    assert x[0, -1].tolist() == [30, 7, 30]  # the target is row 31; a day earlier is row 7
    assert frame.origins().min() == 24  # rows 23 and 24 are the first two with a value a day back


def test_a_missing_covariate_masks_windows_like_a_missing_load():
    heat = np.full(20, 5.0)
    heat[8:12] = np.nan
    feature = Feature("heat", "stream", "°C", low=-20.0, high=30.0, stream=HEAT)
    frame = frame_of(np.arange(20.0), feature, heat=heat, lookback=2)
    assert {10, 11, 12} & set(frame.origins().tolist()) == set()
    assert frame.channels[0, 1] == pytest.approx(0.5)


def test_a_missing_static_feature_is_refused_by_its_name():
    area = Feature("floor_area", "static", "m²", low=0.0, high=1000.0)
    frame = frame_of(np.arange(9.0), area, site={"floor_area": 250.0})
    assert (frame.channels[:, 1] == 0.25).all()
    with pytest.raises(ConfigError, match="floor_area"):
        frame_of(np.arange(9.0), area)


def test_a_series_with_another_step_than_the_bundle_is_refused():
    with pytest.raises(ValueError, match="900"):
        ChannelFrame.of(Series(900, [LOAD, HEAT]), plan())


def test_an_empty_series_has_no_windows_and_is_not_ready():
    frame = ChannelFrame.of(Series(3600, [LOAD, HEAT]), plan())
    assert len(frame.origins()) == 0
    assert not frame.is_ready


def test_readiness_depends_on_the_newest_window_only():
    load = np.arange(20.0)
    load[2:9] = np.nan
    assert frame_of(load).is_ready
    load[17] = np.nan
    assert frame_of(load).is_ready
    load[15:18] = np.nan
    assert not frame_of(load).is_ready


def test_a_draw_repeats_no_window_and_returns_all_of_few():
    frame = frame_of(np.arange(50.0), fixed_scale=Scale(0, 1))
    windows = Drawable(frame, frame.origins())
    batch = windows.draw(np.random.default_rng(0), 16)
    assert batch.x.shape == (16, 3, 1)
    assert len(set(batch.y[:, 0])) == 16
    assert batch.x.dtype == batch.y.dtype == np.float32
    assert (batch.y[:, 0] - batch.x[:, -1, 0] == 1).all()
    assert len(windows.draw(np.random.default_rng(0), 1000)) == len(windows) == 47


def test_the_calendar_is_local_and_the_grid_is_utc():
    zone = ZoneInfo("Europe/Amsterdam")
    frame_hour = Feature("hour", "calendar", "h", low=0.0, high=1.0, what="hour")
    frame = frame_of(np.arange(3.0), frame_hour, zone=zone)
    assert frame.channels[:, 1].tolist() == [1, 2, 3]
    assert (np.diff(frame.times) == 3600).all()


def test_filling_stops_after_two_missing_values():
    assert filled(np.full(3, np.nan)).tolist() != filled(np.zeros(3)).tolist()
    values = filled(np.array([1.0, np.nan, np.nan, np.nan]))
    assert values[:3].tolist() == [1, 1, 1]
    assert values[3] != values[3]


WARM = Feature("warmth", "stream", "°C", low=0.0, high=10.0, stream=HEAT)
WARM_MASK = Feature("warmth-known", "mask", "1", of="warmth")


def test_an_optional_stream_that_a_device_lacks_is_zero_with_mask_zero():
    frame = frame_of(np.arange(10.0), WARM, WARM_MASK, fixed_scale=Scale(0, 1))
    assert frame.is_ready
    assert frame.origins().tolist() == list(range(2, 9))
    assert frame.channels[:, 1:].tolist() == [[0.0, 0.0]] * 10


def test_an_optional_stream_may_come_and_go_and_its_mask_with_it():
    heat = np.full(12, 5.0)
    heat[3:9] = np.nan  # carried forward over two rows, then unknown
    frame = frame_of(np.arange(12.0), WARM, WARM_MASK, heat=heat, fixed_scale=Scale(0, 1))
    known = [1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert frame.channels[:, 2].tolist() == known
    assert frame.channels[:, 1].tolist() == [0.5 * x for x in known]
    assert frame.origins().tolist() == list(range(2, 11))


def test_an_optional_lag_is_masked_until_the_record_is_long_enough():
    lag = Feature("a-day-ago", "lag", "kWh", lag_steps=4)
    mask = Feature("a-day-ago-known", "mask", "1", of="a-day-ago")
    frame = frame_of(np.arange(6.0), mask, lag, fixed_scale=Scale(0, 1))
    assert frame.channels[:, 1].tolist() == [0, 0, 0, 1, 1, 1]  # a mask may come first
    assert frame.channels[:, 2].tolist() == [0, 0, 0, 0, 1, 2]
    assert frame.origins().tolist() == [2, 3, 4]


def test_an_optional_static_feature_may_be_absent_from_the_site():
    area = Feature("floor-area", "static", "m²", low=0.0, high=100.0)
    mask = Feature("floor-area-known", "mask", "1", of="floor-area")
    without = frame_of(np.arange(5.0), area, mask)
    assert without.channels[:, 1:].tolist() == [[0.0, 0.0]] * 5
    given = frame_of(np.arange(5.0), area, mask, site={"floor-area": 50.0})
    assert given.channels[:, 1:].tolist() == [[0.5, 1.0]] * 5
    with pytest.raises(ConfigError, match="floor-area"):
        frame_of(np.arange(5.0), area)


def test_the_newest_row_waits_for_its_energy():
    heat = Feature("heat", "stream", "°C", -20, 40, stream=HEAT)
    begun = frame_of(np.arange(5.0), heat, heat=np.full(6, 8.0))
    assert len(begun) == 6
    closed = begun.without_open_row()
    assert closed.times.tolist() == begun.times[:5].tolist()
    assert closed.channels.shape == (5, 2)
    assert closed.is_ready
    assert closed.without_open_row() is closed
    assert closed.origins().tolist() == begun.origins().tolist()


def test_one_missing_row_of_energy_is_still_carried_forward():
    heat = Feature("heat", "stream", "°C", -20, 40, stream=HEAT)
    frame = frame_of([1.0, 2.0, 3.0, np.nan], heat, heat=np.full(5, 8.0)).without_open_row()
    assert (len(frame), frame.is_ready) == (4, True)
