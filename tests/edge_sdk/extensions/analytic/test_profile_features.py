"""Features of a profile: nothing after the origin, units, gaps, clock changes, every grid."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.profile_features import (
    DAYS,
    HINGED,
    KNOTS,
    ProfileRecord,
    known_slots,
    own_level,
    profile_rows,
    with_hinges,
)
from edge_sdk.forecasting.calendar_features import local_seconds

seeds = st.integers(0, 2**32 - 1)
steps = st.sampled_from([900, 1800, 3600])


def record(seed=0, days=40, step=3600, gaps=0.0, holidays=None):
    draw, day = np.random.default_rng(seed), 86_400 // step
    values = draw.gamma(2.0, size=days * day)
    values[draw.random(len(values)) < gaps] = np.nan
    local = (4 + np.arange((days + 2) * day)) * step  # 1970-01-01 was a Thursday
    return ProfileRecord(values, local, step, holidays)


def column(rows, name):
    return rows.design[:, :, rows.names.index(name)]


@given(seeds, steps, st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=20, deadline=None)
def test_no_value_after_the_origin_is_read_and_every_feature_is_finite(seed, step, gaps):
    one = record(seed, step=step, gaps=gaps)
    day = one.day
    origins = np.array([day - 1, 3 * day + 5, 35 * day])
    rows = profile_rows(one, origins, day)
    assert np.isfinite(rows.design).all()
    for i, origin in enumerate(origins):
        other = one.values.copy()
        other[origin + 1 :] = 1e6
        again = profile_rows(ProfileRecord(other, one.local, step), origins[i : i + 1], day)
        assert (again.design[0] == rows.design[i]).all()
        assert again.level[0] == rows.level[i]


@given(seeds, st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_features_have_no_unit(seed, factor):
    one = record(seed)
    large = ProfileRecord(factor * one.values, one.local, one.step)
    origins = np.array([200, 500])
    rows, others = profile_rows(one, origins, 24), profile_rows(large, origins, 24)
    assert others.level == pytest.approx(factor * rows.level)
    assert others.design == pytest.approx(rows.design, abs=1e-4)


@pytest.mark.parametrize("horizon", [24, 48])
def test_known_days_are_those_of_the_same_slot_up_to_the_origin(horizon):
    one = record()
    values, rows = known_slots(one, np.array([700]), horizon)
    for ahead in range(1, horizon + 1):
        target = 700 + ahead
        wanted = [u for u in range(target - 24, -1, -24) if u <= 700][:DAYS]
        assert rows[0, ahead - 1, : len(wanted)].tolist() == wanted
        assert values[0, ahead - 1, : len(wanted)].tolist() == one.values[wanted].tolist()


def test_the_first_known_day_is_the_forecast_without_coefficients():
    one = record()
    rows = profile_rows(one, np.array([23]), 24)
    assert rows.known.tolist() == [1]
    assert rows.base[0] * rows.level[0] == pytest.approx(one.values[:24])
    lags = [
        "sk1",
        "sk5",
        "skmed",
        "S0",
        "S1",
        "w1",
        "w4",
        "wmd",
        "md5",
        "m28",
        "k28:0.1",
        "r",
        "sksd",
    ]
    assert max(np.abs(column(rows, name)).max() for name in lags) < 1e-12


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_base_is_the_mean_of_the_newest_days_of_the_same_kind(seed):
    one = record(seed, gaps=0.2)
    origin = 30 * 24 + 5
    rows = profile_rows(one, np.array([origin]), 24)
    weekend = one.weekdays() >= 5
    for ahead in range(1, 25):
        t = origin + ahead
        days = [t - 24 * d for d in range(1, DAYS + 1) if t - 24 * d >= 0]
        alike = [one.values[u] for u in days if weekend[u] == weekend[t]]
        newest = [v for v in alike if np.isfinite(v)][:5]
        assert rows.base[0, ahead - 1] * rows.level[0] == pytest.approx(np.mean(newest))
        gained = np.float64(column(rows, "skmed")[0, ahead - 1]) + rows.base[0, ahead - 1]
        if len(newest) == 5:
            assert gained * rows.level[0] == pytest.approx(np.median(newest), abs=1e-5)


@pytest.mark.parametrize("step", [900, 1800, 3600])
def test_a_load_that_follows_the_clock_on_the_wall_is_foreseen_over_a_change_of_clocks(step):
    zone, day = ZoneInfo("Europe/Berlin"), 86_400 // step
    begin = int(datetime(2024, 3, 1, tzinfo=UTC).timestamp())
    local = local_seconds(begin + step * np.arange(60 * day), zone)
    load = 1.0 + np.sin(2.0 * np.pi * (local % 86_400) / 86_400)  # clocks change on 31 March
    one = ProfileRecord(load[: 59 * day], local, step)
    origins = np.arange(33 * day, 37 * day, day // 4)
    rows = profile_rows(one, origins, day)
    truth = load[origins[:, None] + 1 + np.arange(day)]
    assert rows.base * rows.level[:, None] == pytest.approx(truth)
    plain = ProfileRecord(load[: 59 * day], begin + step * np.arange(60 * day), step)
    wrong = profile_rows(plain, origins, day)
    assert np.abs(wrong.base * wrong.level[:, None] - truth).max() > 0.1


def test_a_finer_grid_of_the_same_load_has_the_same_base_and_level():
    coarse = record(5)
    origin, horizon = np.array([20 * 24 + 6]), 24
    fine_values = np.repeat(coarse.values, 4)
    local = 900 * np.arange(len(fine_values) + 192) + coarse.local[0]
    fine = ProfileRecord(fine_values, local, 900)
    ours = profile_rows(fine, 4 * origin + 3, 4 * horizon)
    theirs = profile_rows(coarse, origin, horizon)
    assert ours.level == pytest.approx(theirs.level)
    assert ours.base[:, ::4] == pytest.approx(theirs.base)
    for name in ("l24", "r24", "r3"):
        assert column(ours, name)[:, ::4] == pytest.approx(column(theirs, name), abs=1e-5)


def test_a_holiday_takes_the_days_of_weekends():
    plain = record()
    weekday = plain.weekdays()
    target = np.flatnonzero(weekday[: 38 * 24] == 2)[-24:]  # a Wednesday
    holidays = np.zeros(len(plain.local), np.bool_)
    holidays[target] = True
    one = ProfileRecord(plain.values, plain.local, plain.step, holidays)
    rows = profile_rows(one, target[:1] - 1, 24)
    days = [target[0] - 24 * d for d in range(1, DAYS + 1)]
    alike = [d for d in days if weekday[d] >= 5][:5]
    assert rows.base[0, 0] * rows.level[0] == pytest.approx(plain.values[alike].mean())


def test_a_record_of_zeros_has_level_one_and_features_of_the_calendar_alone():
    one = record()
    rows = profile_rows(ProfileRecord(0.0 * one.values, one.local, one.step), np.array([400]), 24)
    assert rows.level.tolist() == [1.0]
    assert not rows.base.any()
    busy = {n for i, n in enumerate(rows.names) if rows.design[..., i].any()}
    assert all(n.startswith(("one", "wave", "weekday")) for n in busy)
    assert own_level(np.full((1, 24, 28), np.nan)).tolist() == [1.0]


def test_names_are_distinct_and_hinges_are_positive_parts():
    rows = profile_rows(record(), np.array([600]), 24)
    assert len(set(rows.names)) == len(rows.names) == rows.design.shape[2]
    flat = rows.design[0]
    wide = with_hinges(flat, rows.names)
    place = flat.shape[1] + len(KNOTS) * 5 + 3  # the sixth hinged column, the fourth knot
    assert wide.shape[1] == flat.shape[1] + len(HINGED) * len(KNOTS)
    expected = np.maximum(flat[:, rows.names.index(HINGED[5])] - np.float32(KNOTS[3]), 0.0)
    assert (wide[:, place] == expected).all()


@pytest.mark.parametrize(("step", "horizon"), [(5400, 16), (7200, 12), (3600, 23)])
def test_rows_that_do_not_divide_an_hour_and_short_profiles_are_refused(step, horizon):
    one = ProfileRecord(np.ones(400), np.arange(500) * step, step)
    with pytest.raises(ValueError, match=f"rows of {step} s and a horizon of {horizon} rows"):
        profile_rows(one, np.array([300]), horizon)


def test_an_hour_that_the_only_known_day_misses_lies_between_its_neighbours():
    load = 10.0 + np.arange(24.0)
    load[[5, 6, 23]] = np.nan
    record = ProfileRecord(load, np.arange(48) * 3600, 3600)
    rows = profile_rows(record, np.array([23]), 24)
    found = rows.base[0] * rows.level[0]
    assert found[[4, 5, 6, 7]] == pytest.approx([14.0, 15.0, 16.0, 17.0])
    assert found[23] == pytest.approx((32.0 + 10.0) / 2.0)  # the day is a circle
    assert rows.known.tolist() == [1]
