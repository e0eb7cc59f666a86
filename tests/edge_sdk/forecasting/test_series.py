"""A grid out of readings that come late, twice, wrong, or not at all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.forecasting.incoming_readings import columns_of
from edge_sdk.forecasting.series import (
    Flag,
    Reading,
    ReadingOutcome,
    Series,
    SeriesColumn,
    SeriesRow,
)

LOAD, HEAT = "elec.import.energy", "weather.temperature"
HOUR = 3600


def hourly(capacity=1000):
    return Series(HOUR, [LOAD, HEAT], capacity=capacity)


def load(hour, value=1.0, **given):
    return Reading(LOAD, hour * HOUR, value, **given)


def test_the_order_of_readings_does_not_matter():
    rng = np.random.default_rng(1)
    hours = rng.permutation(500)
    mixed, sorted_ = hourly(), hourly()
    for hour in hours:
        mixed.add(load(int(hour), float(hour)))
    for hour in range(500):
        sorted_.add(load(hour, float(hour)))
    assert mixed.values(LOAD).tolist() == sorted_.values(LOAD).tolist() == list(range(500))
    assert mixed.times().tolist() == [hour * HOUR for hour in range(500)]


@pytest.mark.parametrize("capacity", [70, 5000])
def test_a_history_in_reverse_order_gives_the_same_series(capacity):
    series = hourly(capacity)
    for hour in [*range(600, 99, -1), *range(601, 700)]:
        series.add(load(hour, float(hour)))
    kept = min(capacity, 600)
    assert series.values(LOAD).tolist() == list(range(700 - kept, 700))


def test_a_reading_fills_its_slot_of_its_stream_only():
    series = hourly()
    series.add(load(10))
    assert series.add(Reading(HEAT, 10.5 * HOUR, 21.5)) is ReadingOutcome.NEW
    assert series.values(HEAT).tolist() == [21.5]
    series.add(load(12))
    assert math.isnan(series.values(HEAT)[2])


@pytest.mark.parametrize(
    ("reading", "seen"),
    [
        (Reading("gas", 0.0, 1.0), ReadingOutcome.UNUSED),
        (load(1, math.nan), ReadingOutcome.NOT_FINITE),
        (load(1, math.inf), ReadingOutcome.NOT_FINITE),
        (Reading(LOAD, math.nan, 1.0), ReadingOutcome.NOT_FINITE),
        (load(1, flags=Flag.SUSPECT), ReadingOutcome.SUSPECT),
        (load(1e9), ReadingOutcome.FUTURE),
        (Reading(LOAD, 1e300, 1.0), ReadingOutcome.FUTURE),
        (Reading(LOAD, 1800.0, 1.0), ReadingOutcome.OFF_GRID),
        (load(1, seconds=7200), ReadingOutcome.OFF_GRID),
        (load(1, seconds=-900), ReadingOutcome.OFF_GRID),
        (load(1, seconds=0), ReadingOutcome.OFF_GRID),
    ],
)
def test_an_unusable_reading_is_counted_and_changes_nothing(reading, seen):
    series = hourly()
    series.add(load(5))
    assert series.add(reading, latest=1e10) is seen
    assert series.counts[seen] == 1
    assert series.values(LOAD).tolist() == [1.0]


def test_quarter_hours_are_summed_once_all_have_arrived():
    series = hourly()
    told = [series.add(Reading(LOAD, at, 0.25, seconds=900)) for at in (0, 900, 900, 2700, 1800)]
    assert told == [
        ReadingOutcome.PART,
        ReadingOutcome.PART,
        ReadingOutcome.PART,
        ReadingOutcome.PART,
        ReadingOutcome.NEW,
    ]
    assert series.values(LOAD).tolist() == [1.0]


def test_open_sums_are_bounded():
    series = hourly()
    for hour in range(10_000):
        series.add(Reading(LOAD, hour * HOUR, 0.25, seconds=900))
    assert len(series._parts) <= 16
    assert len(series) == 0


def test_the_oldest_slots_are_dropped_and_refused_later():
    series = hourly(capacity=100)
    for hour in range(1000):
        series.add(load(hour, float(hour)))
    assert series.values(LOAD).tolist() == list(range(900, 1000))
    assert series.add(load(899)) is ReadingOutcome.LATE
    assert series.add(load(900, -1.0)) is ReadingOutcome.CHANGED
    assert max(column.size for column in series._columns.values()) <= 130


def test_a_long_outage_leaves_gaps_and_no_old_values():
    series = hourly(capacity=100)
    for hour in range(100):
        series.add(load(hour))
    series.add(load(150, 2.0))
    assert np.isfinite(series.values(LOAD)).sum() == 50
    series.add(load(10_000, 3.0))
    assert np.flatnonzero(np.isfinite(series.values(LOAD))).tolist() == [99]
    assert len(series) == 100


def test_pending_rows_survive_a_failed_save_and_a_change_meanwhile():
    series = hourly()
    series.add(load(1))
    series.add(load(2))
    rows = series.pending()
    assert rows == (SeriesRow(LOAD, 1, 1.0), SeriesRow(LOAD, 2, 1.0))
    assert series.pending() == rows  # not saved: still owed
    series.add(load(2, 5.0))
    series.saved(rows)
    assert series.pending() == (SeriesRow(LOAD, 2, 5.0),)


def test_saved_rows_rebuild_the_series():
    series = hourly(capacity=50)
    for hour in range(80):
        series.add(load(hour, float(hour), flags=Flag.ESTIMATED))
        series.add(Reading(HEAT, hour * HOUR, -float(hour)))
    rows = series.pending()
    assert rows[0].flags == Flag.ESTIMATED
    back = hourly(capacity=50)
    back.load([*rows, SeriesRow("gone", 3, 1.0)])
    assert back.pending() == ()
    for stream in (LOAD, HEAT):
        assert back.values(stream).tolist() == series.values(stream).tolist()
    assert back.times().tolist() == series.times().tolist()


def test_steps_and_capacities_are_positive():
    with pytest.raises(ValueError, match="positive"):
        Series(0, [LOAD])


def seen(series, stream):
    """The slots with a value, and these values."""
    times, values = series.times(), series.values(stream)
    is_seen = np.isfinite(values)
    return dict(zip(times[is_seen].tolist(), values[is_seen].tolist(), strict=True))


SLOTS = st.lists(st.integers(-40, 400), unique=True, max_size=30)


@given(
    slots=st.fixed_dictionaries({LOAD: SLOTS, HEAT: SLOTS, "unknown": SLOTS}),
    capacity=st.integers(1, 200),
    piece=st.integers(1, 9),
    already=SLOTS,
)
def test_columns_give_what_rows_in_order_of_time_give(slots, capacity, piece, already):
    rows = sorted((slot, name) for name, some in slots.items() for slot in some)
    one, other = hourly(capacity), hourly(capacity)
    for series in (one, other):
        series.load(SeriesRow(LOAD, slot, -1.0) for slot in sorted(already))
    one.load(SeriesRow(name, slot, float(slot)) for slot, name in rows)
    for name, some in slots.items():
        ordered = np.array(sorted(some), np.int64)
        pieces = [ordered[at : at + piece] for at in range(0, len(ordered), piece)]
        other.load_columns(SeriesColumn(name, part, part.astype(float)) for part in pieces)
    known = {*already, *(slot for slot, name in rows if name != "unknown")}
    assert bool(len(other)) == bool(known)
    if known:
        assert other.newest == one.newest == max(known)
        assert other.oldest == one.oldest
    for name in (LOAD, HEAT):
        assert seen(other, name) == seen(one, name)
    assert not other.unsaved


READINGS = st.builds(
    Reading,
    st.sampled_from([LOAD, HEAT, "unknown"]),
    st.integers(0, 60).map(lambda hour: 3600.0 * hour) | st.sampled_from([1800.0, 9e15, np.nan]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.sampled_from([0] * 9 + [int(Flag.SUSPECT)]),
    st.sampled_from([None, None, 3600.0, 1800.0]),
)
FILE = st.lists(st.integers(0, 300), min_size=1, max_size=40, unique=True).map(
    lambda hours: [
        Reading(name, 3600.0 * hour, float(hour % 3))
        for hour in sorted(hours)
        for name in (LOAD, HEAT)
    ]
)


@given(
    pieces=st.lists(FILE | st.lists(READINGS, max_size=12), max_size=5), capacity=st.integers(1, 90)
)
def test_readings_merged_together_give_what_they_give_one_by_one(pieces, capacity):
    one, other = hourly(capacity), hourly(capacity)
    for piece in pieces:
        for reading in piece:
            one.add(reading, latest=1e6)
        columns = columns_of(piece, other, lambda _: 1e6)
        if columns is None:
            for reading in piece:
                other.add(reading, latest=1e6)
        else:
            other.merge(columns)
    assert {row for row in one.pending() if row.slot >= one.oldest} == {
        row for row in other.pending() if row.slot >= other.oldest
    }
    assert one.counts == other.counts
    assert len(one) == len(other)
    if len(one):
        assert (one.oldest, one.newest) == (other.oldest, other.newest)
    assert seen(one, LOAD) == seen(other, LOAD)
    assert seen(one, HEAT) == seen(other, HEAT)


def test_a_file_of_readings_is_merged_by_column():
    readings = [Reading(LOAD, 3600.0 * hour, 1.0) for hour in range(9)]
    assert columns_of(readings, hourly(20), lambda _: np.inf) is not None
    assert columns_of(readings, hourly(20), lambda _: 3600.0) is None
    assert columns_of(readings, hourly(8), lambda _: np.inf) is None
    unused = [Reading("unknown", 0.0, np.nan, 1)] * 2
    columns = columns_of([*readings, *unused], hourly(20), lambda _: np.inf)
    assert hourly(20).merge(columns) == {ReadingOutcome.NEW: 9, ReadingOutcome.UNUSED: 2}
