"""Registers into intervals: what meters do to them, and what must never come of it."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.forecasting.series import Flag
from edge_sdk.sources.base import SourceSample
from edge_sdk.sources.counter_intervals import CounterSum
from edge_sdk.sources.normaliser import Normaliser
from edge_sdk.sources.stream_map import StreamName, names

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
    ]
    readings = list(normaliser.normalise(rows))
    assert [(reading.stream, reading.value) for reading in readings] == [("elec.import.power", 1.5)]
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
