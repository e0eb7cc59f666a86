"""Homes through a year, beside their neighbours, and cars that follow a record."""

from __future__ import annotations

import itertools
from datetime import UTC, date
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from firmware_sim.profiles.charging import recorded, sessions
from firmware_sim.profiles.premises import Premises, easter, is_free
from firmware_sim.profiles.weather import Weather
from firmware_sim.samples import SampleError, sample_set

FIRST = 19_723  # 2024-01-01


def days(region, seed, count=366):
    home = Premises(seed, "home", Weather(region), UTC)
    return np.array([home.load(FIRST + day).sum() / 60 for day in range(count)])


def test_winter_energy_exceeds_summer_energy():
    year = np.sum([days("north", seed) for seed in range(4)], axis=0)
    assert year[:31].sum() > 1.1 * year[152:182].sum()


def test_load_is_correlated_within_a_region_only():
    def region(name, seeds):
        rows = np.stack([days(name, seed) for seed in seeds])
        season = [np.convolve(row, np.ones(31) / 31, "same") for row in rows]
        return (rows - np.stack(season)).sum(axis=0)

    def alike(one, other):
        return np.corrcoef(one[20:-20], other[20:-20])[0, 1]

    north = region("north", range(6))
    assert alike(north, region("north", range(6, 12))) > 0.35
    assert abs(alike(north, region("south", range(6, 12)))) < 0.25


@pytest.mark.parametrize(
    "day", [date(2024, 3, 29), date(2024, 4, 1), date(2024, 5, 9), date(2024, 5, 20)]
)
def test_easter_holidays_are_free_days(day):
    assert is_free(day)


def test_easter_is_a_sunday_within_its_range():
    for year in range(1900, 2200):
        assert date(year, 3, 22) <= easter(year) <= date(year, 4, 25)
        assert easter(year).weekday() == 6


@pytest.mark.parametrize("site", ["home", "public"])
def test_cars_arrive_by_local_time_one_at_a_time(site):
    """Over both days on which the clock changes."""
    zone = ZoneInfo("Europe/Amsterdam")
    cars = [c for day in range(FIRST, FIRST + 366) for c in sessions(1, 1, site, day, zone=zone)]
    assert all(a.departure < b.arrival for a, b in itertools.pairwise(cars))
    utc = [c for day in range(FIRST, FIRST + 366) for c in sessions(1, 1, site, day)]
    by_utc, by_zone = (np.median([c.arrival % 86_400 for c in found]) for found in (utc, cars))
    assert 1800 < by_utc - by_zone < 9000


def test_recorded_sessions_have_the_recorded_energy():
    samples = sample_set("chargers")
    times, kwh = samples.samples[0].column(samples.target)
    begin = int(times[0]) // 86_400 + 2
    inside = (times >= begin * 86_400) & (times < (begin + 7) * 86_400)
    cars = [car for day in range(begin, begin + 7) for car in recorded("chargers", 0.5, day)]
    told = sum(car.delivered(car.departure) for car in cars)
    assert told == pytest.approx(500 * np.nansum(kwh[inside]), rel=1e-6)
    assert all(a.departure < b.arrival for a, b in itertools.pairwise(cars))


def test_a_set_of_another_kind_is_refused():
    with pytest.raises(SampleError, match="no device that is recorded in kWh"):
        recorded("cells", 1.0, FIRST)
