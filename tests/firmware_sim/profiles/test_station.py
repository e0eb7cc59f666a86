"""What a station's cells do: like a network's, from a seed, and the same whoever asks when."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_sim.profiles.station import PEAKS, CellSite, load
from firmware_sim.samples import sample_set

MONDAY = 1_767_571_200  # 2026-01-05
WEEK = 7 * 96


@pytest.mark.parametrize("place", sorted(PEAKS))
def test_each_place_has_its_own_busy_hours(place: str) -> None:
    weeks = [load(CellSite(seed, place=place), MONDAY, WEEK).dl for seed in range(8)]  # type: ignore[arg-type]
    day = np.mean([week[: 5 * 96].reshape(5, 96, 3).mean((0, 2)) for week in weeks], axis=0)
    peaks = sorted(centre for centre, _, _ in PEAKS[place])
    highest = float(np.argmax(np.convolve(day, np.ones(4) / 4, "same"))) / 4

    assert min(abs(highest - centre) for centre in peaks) < 2.1  # two of them may run into one
    assert day[12:20].mean() < 0.4 * day.max()


def test_business_sites_are_idle_on_sunday_and_homes_are_not() -> None:
    def ratio(place: str) -> float:
        weeks = [load(CellSite(seed, place=place), MONDAY, WEEK).dl.sum(1) for seed in range(8)]  # type: ignore[arg-type]
        days = np.mean([week.reshape(7, 96).sum(1) for week in weeks], axis=0)
        return float(days[6] / days[:5].mean())

    assert ratio("business") < 0.6
    assert ratio("residential") > 0.9


def test_load_of_stations_is_correlated_within_a_region_only() -> None:
    def daily(seed: int, region: str) -> np.ndarray:
        days = load(CellSite(seed, region), MONDAY, 12 * WEEK).dl.sum(1).reshape(-1, 96).sum(1)
        return np.asarray(days[np.arange(len(days)) % 7 < 5])

    one, near, far = daily(1, "a"), daily(2, "a"), daily(3, "b")
    assert np.corrcoef(one, near)[0, 1] > 0.5 > abs(np.corrcoef(one, far)[0, 1]) + 0.1


def test_the_counters_of_a_cell_are_consistent() -> None:
    found = load(CellSite(5, busy=1.5), MONDAY, WEEK)

    assert (found.dl_blocks == np.round(found.dl_blocks)).all()
    assert found.dl_blocks.max() <= 100
    assert found.dl.max() <= 150.0 * 900
    order = np.argsort(found.dl, axis=None)
    assert (np.diff(found.power.ravel()[order]) >= -0.2).all()  # fuller cells draw more
    assert (found.ul < found.dl).all()


def test_a_station_can_follow_recorded_cells() -> None:
    samples = sample_set("cells")
    times, activity = samples.samples[0].column(samples.target)
    begin = int(times[0]) // 86_400 * 86_400 + 86_400
    one = load(CellSite(1, like="cells", cells=2), begin, 96)
    offered = -np.log1p(-np.minimum(one.dl / (150.0 * 900), 1 - 1e-9))
    hourly = {int(t): v for t, v in zip(times, activity, strict=True)}
    told = np.array([hourly[begin + 900 * i // 3600 * 3600] for i in range(96)])
    assert np.corrcoef(offered[:, 0], told)[0, 1] > 0.9999
    assert not np.allclose(offered[:, 0], offered[:, 1])


def test_the_noise_of_a_cell_is_autocorrelated() -> None:
    week = np.log(load(CellSite(9, busy=0.2), MONDAY, WEEK).dl[:, 0].reshape(7, 96)[:5])
    left = week - week.mean(0)
    assert np.mean([np.corrcoef(day[:-1], day[1:])[0, 1] for day in left]) > 0.5


@settings(max_examples=25)
@given(st.integers(0, 300), st.integers(1, 60), st.sampled_from([300, 900, 3600]))
def test_load_does_not_depend_on_the_requested_span(skip: int, count: int, seconds: int) -> None:
    zone = ZoneInfo("Europe/Amsterdam")
    begin = 1_774_656_000  # the day before clocks go forward
    whole = load(CellSite(1, zone=zone), begin, skip + count, seconds)
    part = load(CellSite(1, zone=zone), begin + skip * seconds, count, seconds)

    assert all((a[skip:] == b).all() for a, b in zip(whole, part, strict=True))
