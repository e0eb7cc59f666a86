"""A feeder's forecast from sums: what it is made of, who is missing, its interval, and what is refused."""

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from aggregator.extensions.feeder.feeder import (
    FeederBook,
    FeederError,
    feeder_forecast,
    feeders_of,
)
from aggregator.extensions.feeder.feeder_model import FeederModel, recent_errors
from tests.aggregator.extensions.feeder.sums import DAY, MONDAY, Sum, load_of, sums_of

UTC = ZoneInfo("UTC")
DAYS = 42


@pytest.fixture(scope="module")
def whole():
    return feeder_forecast(sums_of(DAYS), "F12", UTC)


def error_of(forecast, day=DAYS):
    return float(np.abs(np.array(forecast.values) - load_of(day)).mean())


def test_devices_that_are_nearly_right_have_most_of_the_forecast(whole):
    assert whole.how == "combined"
    assert whole.share <= 0.4
    assert whole.begin == MONDAY + DAYS * DAY
    assert error_of(whole) < 1.5


def test_devices_that_are_wrong_have_little_of_it():
    found = feeder_forecast(sums_of(DAYS, error=8.0), "F12", UTC)
    assert found.share >= 0.8
    assert error_of(found) < 2.0


def test_the_interval_contains_the_forecast_and_is_as_wide_as_the_errors_were(whole):
    lower, value, upper = map(np.array, (whole.lower, whole.values, whole.upper))
    assert (lower <= value).all()
    assert (value <= upper).all()
    assert 0.5 < float((upper - lower).mean()) < 6.0


def test_without_the_devices_the_forecast_is_that_of_the_history():
    found = feeder_forecast(sums_of(DAYS, error=None), "F12", UTC)
    assert (found.how, found.share, found.members, found.missing) == ("history", 1.0, 0, 20)
    assert error_of(found) < 2.0


def test_a_sum_without_some_devices_is_scaled_to_all_and_says_how_many_are_missing(whole):
    found = feeder_forecast(sums_of(DAYS, members=18), "F12", UTC)
    assert (found.missing, found.expected) == (2, 20)
    assert found.yesterday.expected - found.yesterday.members == 2
    assert np.allclose(found.values, whole.values, rtol=1e-4)


def test_a_sum_is_scaled_by_the_part_of_a_label_where_it_is_known(whole):
    some = [replace(one, values=0.75 * one.values, part=0.75, members=18) for one in sums_of(DAYS)]
    found = feeder_forecast(some, "F12", UTC)
    assert (found.part, found.missing) == (0.75, 2)
    assert np.allclose(found.values, whole.values, rtol=1e-4)


def test_a_late_history_is_skipped_and_the_devices_still_count():
    late = [
        one
        for one in sums_of(DAYS)
        if one.source == "tomorrow" or one.period < MONDAY + (DAYS - 1) * DAY
    ]
    found = feeder_forecast(late, "F12", UTC)
    assert (found.begin, found.until) == (MONDAY + DAYS * DAY, MONDAY + (DAYS - 1) * DAY)
    assert found.how == "combined"
    assert error_of(found) < 2.0


def test_a_day_that_was_never_opened_is_a_gap():
    gone = MONDAY + 20 * DAY
    found = feeder_forecast([one for one in sums_of(DAYS) if one.period != gone], "F12", UTC)
    assert found.days == DAYS - 1
    assert error_of(found) < 1.5


@pytest.mark.parametrize(("error", "how"), [(0.5, "devices"), (None, "history")])
def test_with_few_days_there_is_a_forecast_without_an_interval(error, how):
    found = feeder_forecast(sums_of(3, error=error), "F12", UTC)
    assert (found.how, found.lower, found.upper) == (how, None, None)
    assert error_of(found, 3) < 3.0


def test_the_newest_days_alone_are_used():
    assert feeder_forecast(sums_of(DAYS), "F12", UTC, 21).days == 21


def test_refuses_an_unknown_feeder_and_periods_that_are_no_days():
    sums = sums_of(3) + sums_of(3, feeder="F13")
    assert feeders_of(sums) == ["F12", "F13"]
    with pytest.raises(FeederError, match="F14 is opened; feeders: F12, F13"):
        feeder_forecast(sums, "F14", UTC)
    hours = Sum("h", "history", "F12", MONDAY, 20, np.ones(6))
    with pytest.raises(FeederError, match="days of numbers"):
        feeder_forecast([hours], "F12", UTC)


def test_a_stored_forecast_is_read_again_and_a_damaged_one_is_none(tmp_path, whole):
    book = FeederBook(tmp_path / "feeders")
    for name in ("F12", "../x", ""):
        book.save(replace(whole, feeder=name))
    assert [one.feeder for one in book.all()] == ["", "../x", "F12"]
    assert list(book.all())[2] == whole
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "feeders" / "aa.json").write_text("{")
    assert len(list(book.all())) == 3


def test_the_interval_widens_until_it_contains_what_it_is_meant_to():
    draw = np.random.default_rng(3)
    held = draw.normal(size=(120, 24))
    later = 2.5 * draw.normal(size=(240, 24))
    model = FeederModel(np.ones(1), np.ones((1, 1)), np.full(3, 1 / 3), held, 0.0, 4, 4)
    shift, width = recent_errors(model, np.concatenate([held, later]))
    ends = np.quantile(held, (0.1, 0.9))
    inside = np.abs(later - shift[120:-4, None]) <= width[120:-4, None] * np.abs(ends).mean()
    assert inside[:20].mean() < 0.7
    assert 0.76 < inside[-120:].mean() < 0.84
    assert width[100] == pytest.approx(1.0, abs=0.2)
