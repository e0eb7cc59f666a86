"""Registers into intervals: what meters do to them, and what must never come of it."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.sources.base import SourceSample
from edge_sdk.extensions.sources.counter_intervals import CounterSum, EnergyInterval
from edge_sdk.extensions.sources.normaliser import Normaliser
from edge_sdk.extensions.sources.slot_sums import IntervalSpread
from edge_sdk.extensions.sources.stream_map import StreamName, names
from edge_sdk.forecasting.series import Flag

HOUR = 3600.0
START = 1_700_006_400.0
TABLE = {"reg": StreamName("elec.import.energy", "register")}


def register(**options):
    return CounterSum(**({"step": HOUR, "gap": HOUR, "most": 50 / HOUR} | options))


def intervals(meter, rows):
    return [(i.time, round(i.value, 9)) for t, v in rows for i in meter.add(t, {"reg": v})]


def test_a_reading_between_boundaries_conserves_energy():
    rows = [(0, 0.0), (1800, 1.0), (5400, 2.0), (7200, 4.0)]
    got = intervals(register(), rows)
    assert got == [(0.0, 1.5), (3600.0, 2.5)]
    assert sum(value for _, value in got) == rows[-1][1] - rows[0][1]


def test_a_gap_leaves_its_intervals_unknown():
    meter = register()
    assert intervals(meter, [(0, 0.0), (HOUR, 1.0), (4 * HOUR, 9.0), (5 * HOUR, 9.5)]) == [
        (0.0, 1.0),
        (4 * HOUR, 0.5),
    ]
    assert meter.counts == {"gap": 1}


def test_a_reading_a_second_late_is_no_gap_and_another_value_for_its_moment_a_conflict():
    meter = register()
    rows = [
        (0, 0.0),
        (HOUR + 1, 1.0),
        (2 * HOUR - 1, 2.0),
        (2 * HOUR - 1, 2.5),
        (3 * HOUR + 9, 3.0),
    ]
    assert [time for time, _ in intervals(meter, rows)] == [0.0, HOUR, 2 * HOUR]
    assert meter.counts == {"conflict": 1}


def test_a_socket_that_was_silent_for_days_takes_nothing_from_the_other():
    normaliser, found = Normaliser(TABLE, 900.0, 900.0, most=50.0), {}
    for n in range(1001):
        devices = ["CP/1", "CP/2"] if n in {0, 999, 1000} else ["CP/1"]
        kwh = {"CP/1": float(n), "CP/2": 5.0}
        samples = [SourceSample("reg", START + 900 * n, kwh[one], "kWh", one) for one in devices]
        found |= {reading.time: reading.value for reading in normaliser.normalise(samples)}
    assert found == {START + 900 * n: 1.0 for n in range(1000)}


def test_a_long_gap_that_is_bridged_on_request_keeps_every_slot():
    normaliser = Normaliser(TABLE, 900.0, 24 * HOUR, most=50.0)
    rows = [(0, 0.0), (20 * HOUR, 80.0), (40 * HOUR, 240.0)]
    samples = [SourceSample("reg", START + time, kwh, "kWh") for time, kwh in rows]
    found = [reading.value for one in samples for reading in normaliser.normalise([one])]
    assert found == pytest.approx([1.0] * 80 + [2.0] * 80)
    assert len(normaliser.saved()) < 2000


def test_a_register_that_did_not_move_proves_zeros_through_a_gap():
    got = intervals(register(), [(0, 5.0), (4 * HOUR, 5.0), (5 * HOUR, 6.0)])
    assert got == [(0, 0), (HOUR, 0), (2 * HOUR, 0), (3 * HOUR, 0), (4 * HOUR, 1.0)]


def test_a_rollover_continues_and_an_exchanged_meter_restarts():
    meter = register(modulus=1000.0)
    assert intervals(meter, [(0, 999.5), (HOUR, 0.25)]) == [(0.0, 0.75)]
    swapped = register(modulus=1000.0)
    rows = [(0, 500.0), (HOUR, 3.0), (2 * HOUR, 4.0), (3 * HOUR, 6.0)]
    assert intervals(swapped, rows) == [(HOUR, 1.0), (2 * HOUR, 2.0)]
    assert swapped.counts == {"reset": 1}


def test_one_implausible_value_is_skipped():
    for wrong in (0.0, 1e6):
        meter = register()
        rows = [(0, 100.0), (HOUR / 2, wrong), (HOUR, 101.0), (2 * HOUR, 103.0)]
        assert intervals(meter, rows) == [(0.0, 1.0), (HOUR, 2.0)]


DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("rows", "expected", "counts"),
    [
        (  # one time decades ahead costs itself
            [(0, 0.0), (HOUR, 1.0), (15_000 * DAY, 1.5), (2 * HOUR, 2.0), (3 * HOUR, 4.0)],
            [(0.0, 1.0), (HOUR, 1.0), (2 * HOUR, 2.0)],
            {"implausible": 1},
        ),
        (  # two of them, at different times
            [(0, 0.0), (40 * DAY, 0.5), (30 * DAY, 0.5), (HOUR, 1.0), (2 * HOUR, 3.0)],
            [(0.0, 1.0), (HOUR, 2.0)],
            {"implausible": 2},
        ),
        (  # a silence of days loses nothing beyond its gap
            [(0, 0.0), (HOUR, 1.0), (4 * DAY, 9.0), (4 * DAY + HOUR, 9.5)],
            [(0.0, 1.0), (4 * DAY, 0.5)],
            {"gap": 1},
        ),
        (  # a reading every two days
            [(0, 5.0), (2 * DAY, 5.0), (4 * DAY, 5.0)],
            [(n * HOUR, 0.0) for n in range(48)],
            {},
        ),
    ],
)
def test_a_reading_far_ahead_is_used_once_another_follows_it(rows, expected, counts):
    meter = register()
    assert intervals(meter, rows) == expected
    assert meter.counts == counts


def test_a_sum_of_registers_that_lacks_one_is_not_used():
    table = {name: StreamName("elec.import.energy", "register") for name in ("low", "normal")}
    normaliser = Normaliser(table, HOUR, 3 * HOUR, most=50.0)
    got = []
    for n, unit in enumerate(("kWh", "kvarh", "kWh", "kWh")):
        low = SourceSample("low", START + n * HOUR, 1.0 * n, "kWh")
        row = [low, SourceSample("normal", START + n * HOUR, 2.0 * n, unit)]
        got += [reading.value for reading in normaliser.normalise(row)]
    assert got == [3.0, 3.0, 3.0]
    assert normaliser.unused == {"normal: foreign unit": 1}


def test_a_clock_that_was_set_back_is_followed():
    meter = register()
    rows = [(100 * HOUR, 1.0), *((HOUR * n, 1.0 + n) for n in range(12))]
    assert intervals(meter, rows)[-1] == (10 * HOUR, 1.0)
    assert meter.counts["clock set back"] == 1


def test_repeated_and_late_readings_change_nothing():
    rows = [(n * 600.0, n / 10) for n in range(20)]
    again = [rows[0], rows[1], rows[1], rows[3], rows[2], *rows[4:9], rows[7], *rows[9:]]
    assert intervals(register(), again) == intervals(register(), rows)


readings = st.lists(
    st.tuples(
        st.integers(0, 20_000).map(lambda n: n * 60.0),
        st.one_of(st.floats(0, 1e5), st.floats(allow_nan=True), st.integers(-5, 5).map(float)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(readings, st.sampled_from([0.0, 1000.0]))
def test_no_interval_is_negative_or_above_the_maximum_power(rows, modulus):
    normaliser = Normaliser(TABLE, HOUR, HOUR, most=50.0, modulus=modulus)
    for minute, value in rows:
        for reading in normaliser.normalise([SourceSample("reg", START + minute, value, "kWh")]):
            assert 0 <= reading.value <= 50 * (1 + 2 * 15 / 60) + 1e-6
            assert reading.time % HOUR == 0
            assert math.isfinite(reading.value)


@given(st.lists(st.tuples(st.integers(1, 900), st.floats(0, 0.02)), min_size=2, max_size=300))
def test_the_intervals_sum_to_the_rise_of_the_register(steps):
    meter = register(step=900.0, gap=900.0)
    times, totals = ([0.0, *accumulate(column)] for column in zip(*steps, strict=True))
    got = [i for t, v in zip(times, totals, strict=True) for i in meter.add(t, {"reg": v})]
    end = len(got) * 900.0
    assert [i.time for i in got] == [n * 900.0 for n in range(len(got))]
    assert end <= times[-1] < end + 900
    known = np.interp(end, times, totals)
    assert math.fsum(i.value for i in got) == pytest.approx(known, abs=1e-9)


def samples(values, device="", time=START, flags=0):
    return [SourceSample(name, time, value, "kWh", device, flags) for name, value in values.items()]


def test_tariffs_and_meters_of_one_stream_are_summed():
    table = {name: StreamName("elec.import.energy", "register") for name in ("low", "normal")}
    normaliser = Normaliser(table, HOUR, HOUR, most=50.0)
    got = []
    for n in range(2):
        for device in "ab":
            row = samples({"low": n * 1.0, "normal": n * 2.0}, device, START + n * HOUR)
            got += [reading.value for reading in normaliser.normalise(row)]
    assert got == [3.0, 6.0]  # the second meter's interval replaces the sum


def test_a_restart_loses_and_repeats_no_interval():
    whole, first, second = (Normaliser(TABLE, HOUR, HOUR, most=50.0) for _ in range(3))
    rows = [samples({"reg": n / 4}, time=START + n * 1000) for n in range(30)]
    expected = [reading for row in rows for reading in whole.normalise(row)]
    got = [reading for row in rows[:13] for reading in first.normalise(row)]
    second.restore(first.saved())
    got += [reading for row in rows[13:] for reading in second.normalise(row)]
    assert got == expected


@pytest.mark.parametrize(
    "saved", [b"", b"{}", b"[]", b'{"step": 3600, "meters": [[1]], "sums": []}']
)
def test_damaged_state_is_discarded(saved):
    normaliser = Normaliser(TABLE, HOUR, HOUR)
    normaliser.restore(saved)
    assert normaliser.counts["saved state damaged"] == 1
    assert not list(normaliser.normalise(samples({"reg": 1.0})))


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ((300.0, 900.0, 1.0), "duplicate"),
        ((600.0, 900.0, 1.0), "conflict"),
        ((300.0, 900.0, 2.0), "conflict"),
        ((1200.0, 900.0, -1.0), "implausible"),
        ((1200.0, 0.0, 1.0), "implausible"),
        ((1200.0, 900.0, 1e6), "implausible"),
        ((1200.0, 3 * HOUR, 1.0), "gap"),
    ],
)
def test_an_interval_that_cannot_be_placed_is_counted_and_changes_nothing(span, reason):
    spread = IntervalSpread(HOUR, HOUR, 50 / HOUR, Counter())
    assert list(spread.add(300.0, 900.0, 1.0)) == []
    assert list(spread.add(*span)) == []
    assert spread.counts == {reason: 1}
    rest = [*spread.add(0.0, 300.0, 0.5), *spread.add(1200.0, 2400.0, 2.0)]
    assert rest == [EnergyInterval(0.0, 3.5)]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 3600), st.floats(0, 5)), min_size=2, max_size=60), st.data()
)
def test_intervals_in_any_order_sum_to_the_slots_that_they_cover(spans, data):
    ends = list(accumulate(length for length, _ in spans))
    rows = [(end - length, length, kwh) for end, (length, kwh) in zip(ends, spans, strict=True)]
    spread, found = IntervalSpread(900.0, HOUR, 10.0, Counter()), {}
    for row in data.draw(st.permutations(rows)):
        found |= {interval.time: interval.value for interval in spread.add(*map(float, row))}
    last = ends[-1] // 900 * 900
    assert sorted(found) == [n * 900.0 for n in range(int(last) // 900)]
    known = np.interp(last, [0, *ends], [0.0, *accumulate(kwh for _, kwh in spans)])
    assert math.fsum(found.values()) == pytest.approx(known, abs=1e-6)


def test_an_invalid_measurement_is_counted():
    normaliser = Normaliser(TABLE | {"p": StreamName("elec.import.power")}, HOUR, HOUR)
    rows = [
        SourceSample("reg", 5.0, 1.0, "kWh"),
        SourceSample("reg", START, math.nan, "kWh"),
        SourceSample("reg", START, 1.0, "kW"),
        SourceSample("reg", START, 1.0, "kWh", flags=int(Flag.SUSPECT)),
        SourceSample("reg", START, 1.0, "kWh", flags=int(Flag.CLOCK_UNSYNCED)),
        SourceSample("other", START, 1.0, "kWh"),
        SourceSample("p", START, 1500.0, "W"),
        SourceSample("p", START, 1.5, "kW"),
        SourceSample("p", START, 1600.0, "W"),
    ]
    readings = list(normaliser.normalise(rows))
    assert {(reading.stream, reading.value) for reading in readings} == {("elec.import.power", 1.5)}
    assert normaliser.unused["p: conflict"] == 1
    assert normaliser.counts == {
        "clock not set": 2,
        "not finite": 1,
        "foreign unit": 1,
        "suspect": 1,
    }


def test_rows_of_the_user_extend_the_table():
    table = names(
        "p1", {"1-0:1.8.1": False, "1-0:21.7.0": {"stream": "elec.l1.power", "unit": "kW"}}, "x"
    )
    assert "1-0:1.8.1" not in table
    assert table["1-0:21.7.0"].canonical(2.0, "kW") == pytest.approx(2.0)
    assert table["1-0:1.8.2"].kind == "register"
