"""Wall-clock time and the calendar, through the hours that clocks skip and show twice."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from edge_sdk.forecasting.calendar_features import CALENDAR, calendar, local_seconds


@pytest.mark.parametrize("name", ["Europe/Amsterdam", "America/New_York", "Asia/Kathmandu"])
def test_local_time_agrees_with_the_zone_in_every_hour_of_a_year(name):
    zone = ZoneInfo(name)
    times = np.arange(1_704_067_200, 1_704_067_200 + 366 * 86400, 3600)
    expected = [
        int(t + datetime.fromtimestamp(int(t), zone).utcoffset().total_seconds()) for t in times
    ]
    assert local_seconds(times, zone).tolist() == expected


def test_the_repeated_hour_of_a_clock_change_is_two_rows():
    zone = ZoneInfo("Europe/Amsterdam")
    times = np.array([1_729_987_200 + h * 3600 for h in range(4)])  # 2024-10-27 00:00 UTC on
    hours = calendar("hour", local_seconds(times, zone), 3600)
    assert hours.tolist() == [2, 2, 3, 4]


def test_calendar_features_agree_with_the_standard_library():
    times = np.arange(1_704_067_200, 1_704_067_200 + 400 * 86400, 5 * 3600 + 900)
    moments = [datetime.fromtimestamp(int(t), UTC) for t in times]
    expected = {
        "hour": [m.hour for m in moments],
        "slot_of_day": [(m.hour * 60 + m.minute) // 15 for m in moments],
        "day_of_week": [m.weekday() for m in moments],
        "weekend": [m.weekday() >= 5 for m in moments],
        "day_of_month": [m.day for m in moments],
        "month": [m.month for m in moments],
        "day_of_year": [m.timetuple().tm_yday for m in moments],
    }
    for what, values in expected.items():
        assert calendar(what, times, 900).tolist() == values
    for what in ("hour", "dow"):
        circle = [calendar(f"{what}_{part}", times, 900) ** 2 for part in ("sin", "cos")]
        assert sum(circle) == pytest.approx(np.ones(len(times)))
    assert set(expected) < set(CALENDAR)


def test_an_unknown_calendar_feature_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="slot_of_day"):
        calendar("moon", np.zeros(1, np.int64), 900)
