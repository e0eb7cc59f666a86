"""The schedule as a pure function: windows, starts, changes of clocks, and what was missed."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.config.schedule import (
    Schedule,
    ScheduleError,
    ScheduleSection,
    StartWindow,
    schedule_of,
)

BERLIN = "Europe/Berlin"


def at(text, zone=BERLIN, fold=0):
    """Unix milliseconds of a local time."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(1000 * local.timestamp())


def planned(rounds=1, *windows, zone=BERLIN, jitter="0s"):
    return schedule_of(ScheduleSection(rounds, windows, zone, jitter), "north")


def starts(schedule, begin, days):
    found, moment = [], begin
    while (moment := schedule.next_after(moment)) < begin + 86_400_000 * days:
        found.append(schedule.text(moment))
    return found


def test_by_default_one_round_begins_every_midnight_utc():
    schedule = schedule_of(ScheduleSection(), "north")
    assert starts(schedule, at("2026-11-22T12:00", "UTC"), 3) == [
        f"2026-11-{day} 00:00 UTC" for day in (23, 24, 25)
    ]


def test_rounds_are_spaced_evenly_over_all_windows_of_a_day():
    schedule = planned(4, "01:00-03:00", "13:00-15:00")
    assert starts(schedule, at("2026-11-22T00:00"), 1) == [
        f"2026-11-22 {hour}:00 CET" for hour in ("01", "02", "13", "14")
    ]


def test_a_window_of_some_days_that_passes_midnight():
    schedule = planned(2, "fri 22:00-02:00")
    assert starts(schedule, at("2026-11-22T00:00"), 14) == [
        "2026-11-27 22:00 CET", "2026-11-28 00:00 CET",
        "2026-12-04 22:00 CET", "2026-12-05 00:00 CET",
    ]  # fmt: skip
    inside, outside = at("2026-11-28T01:59"), at("2026-11-28T02:00")
    assert schedule.is_in_window(inside)
    assert not schedule.is_in_window(outside)
    assert schedule.rounds_per_week == 2


def test_an_hour_that_is_left_out_moves_its_window_and_skips_no_round():
    schedule = planned(1, "02:00-03:00")  # 29 March 2026: 02:00 is followed by 03:00
    assert starts(schedule, at("2026-03-28T12:00"), 2) == [
        "2026-03-29 03:00 CEST",
        "2026-03-30 02:00 CEST",
    ]
    assert schedule.is_in_window(at("2026-03-29T03:30"))


def test_an_hour_that_comes_twice_has_one_round():
    schedule = planned(1, "02:00-03:00")  # 25 October 2026: 02:00 to 03:00 comes twice
    assert starts(schedule, at("2026-10-24T12:00"), 2) == [
        "2026-10-25 02:00 CEST",
        "2026-10-26 02:00 CET",
    ]
    assert schedule.is_in_window(at("2026-10-25T02:30", fold=1))


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_window_of_all_day_lasts_as_long_as_the_day(day, hours):
    schedule = planned(2)
    first = at(f"{day}T00:00")
    second = schedule.next_after(first)
    assert (second - first, schedule.next_after(second) - first) == (
        hours * 1_800_000,
        hours * 3_600_000,
    )
    assert schedule.is_in_window(first + (hours * 3600 - 1) * 1000)


def test_a_missed_start_is_made_up_for_inside_its_window_only():
    schedule = planned(1, "01:00-05:00")
    last = at("2026-11-22T01:10")
    late, too_late = at("2026-11-23T04:00"), at("2026-11-23T09:00")
    assert schedule.due(last, late) <= late
    assert schedule.due(last, too_late) == at("2026-11-24T01:00")
    assert schedule.due(last, at("2026-11-22T12:00")) == at("2026-11-23T01:00")


def test_the_first_round_begins_at_once_inside_a_window():
    schedule = planned(1, "01:00-05:00")
    inside, outside = at("2026-11-22T02:34"), at("2026-11-22T12:00")
    assert schedule.due(None, inside) == inside
    assert schedule.due(None, outside) == at("2026-11-23T01:00")


def test_a_clock_set_back_repeats_no_start_and_a_wrong_year_delays_none():
    schedule = planned(1)
    last = at("2026-11-22T00:05")
    assert schedule.due(last, last - 3_600_000) == at("2026-11-23T00:00")
    assert schedule.due(at("2031-01-01T00:00"), last) == at("2026-11-23T00:00")


def test_delays_differ_between_fleets_and_days_and_are_the_same_after_a_restart():
    def of(name):
        section = ScheduleSection(1, ("01:00-05:00",), BERLIN, "2h")
        return starts(schedule_of(section, name), at("2026-11-22T12:00"), 5)

    north, south = of("north"), of("south")
    assert of("north") == north != south
    assert len({said[11:] for said in north}) == 5
    assert all("01:00" <= said[11:16] < "03:00" for said in north + south)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"time_zone": "Mars/Olympus"}, "time_zone", "'Mars/Olympus'; expected an IANA name"),
        ({"time_zone": "../etc/passwd"}, "time_zone", "unknown"),
        ({"windows": ("1:00 to 5:00",)}, "windows", "expected a window such as"),
        ({"windows": ("25:00-26:00",)}, "windows", "from 00:00 to 24:00"),
        ({"windows": ("05:00-05:00",)}, "windows", "that differ"),
        ({"windows": ("mo-fr 01:00-05:00",)}, "windows", "got 'mo-fr'"),
        ({"windows": ("01:00-05:00", "sun 04:00-06:00")}, "windows", "overlaps another"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(changes, key, says):
    with pytest.raises(ScheduleError, match=says) as refused:
        schedule_of(ScheduleSection(**changes), "north")
    assert refused.value.key == key


ZONES = ("UTC", BERLIN, "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia")
windows = st.builds(
    StartWindow,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1440),
).map(lambda w: w if w.end > w.start else StartWindow(w.days, w.start, w.end + 1440))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 48),
    windows,
    st.sampled_from(ZONES),
    st.sampled_from((0.0, 60.0, 7200.0)),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),  # noqa: DTZ001
)
def test_every_start_is_later_inside_a_window_and_within_a_week(rounds, window, zone, jitter, when):
    schedule = Schedule(rounds, (window,), ZoneInfo(zone), jitter, 0, "north")
    moment = int(1000 * when.replace(tzinfo=ZoneInfo(zone)).timestamp())
    week = int(1000 * timedelta(days=8).total_seconds())
    for _ in range(3):
        start = schedule.next_after(moment)
        assert moment < start <= moment + week
        assert schedule.is_in_window(start)
        assert schedule.due(moment, start) <= start
        assert schedule.due(start, start) > start
        moment = start
