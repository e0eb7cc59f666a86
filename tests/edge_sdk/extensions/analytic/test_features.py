"""Features by name: the table's own formulae, nothing after the origin, any language's random units."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.features import (
    KINDS,
    LoadRecord,
    UnknownFeatureError,
    columns,
    standard_names,
)
from edge_sdk.extensions.analytic.random_units import RandomUnits, clip_rows
from edge_sdk.extensions.analytic.standardise import CLIP, FeatureSums, Standardiser


def record(rows=400, day=24, seed=0):
    draw = np.random.default_rng(seed)
    clock = np.arange(rows + 24)
    return LoadRecord(
        draw.normal(size=rows),
        clock % day,
        clock // day % 7,
        day,
        exogenous={"heat": draw.normal(size=rows)},
        known={"holiday": (clock % 17 == 0).astype(float)},
    )


def test_every_kind_is_what_the_table_says():
    own, h = replace(record(), hidden=np.array([[0.5, 1.5], [2.5, 3.5]])), 5
    x, heat = own.values, own.exogenous["heat"]
    o = np.array([300, 361])
    t = o + h
    expected = {
        "last": x[o],
        "change:3": x[o - 3] - x[o],
        "day:2:-1": x[t - 49] - x[o],
        "moved:7": x[t - 168] - x[o - 168],
        "mean:24": [x[i - 23 : i + 1].mean() - x[i] for i in o],
        "spread:24": [np.abs(np.diff(x[i - 24 : i + 1])).mean() for i in o],
        "slot:7": np.mean([x[t - 24 * d] for d in range(1, 8)], axis=0) - x[o],
        "sin:2": np.sin(4 * np.pi * (t % 24) / 24),
        "cos:1": np.cos(2 * np.pi * (t % 24) / 24),
        "weekend": (t // 24 % 7 >= 5).astype(float),
        "weekend_sin:1": (t // 24 % 7 >= 5) * np.sin(2 * np.pi * (t % 24) / 24),
        "weekend_cos:1": (t // 24 % 7 >= 5) * np.cos(2 * np.pi * (t % 24) / 24),
        "weekday:5": (t // 24 % 7 == 5).astype(float),
        "exog:heat": heat[o],
        "exog_change:heat:2": heat[o] - heat[o - 2],
        "known:holiday": (t % 17 == 0).astype(float),
        "hidden:1": [1.5, 3.5],
    }
    assert {name.split(":")[0] for name in expected} == set(KINDS)
    found = columns(own, list(expected), o, h)
    assert found == pytest.approx(np.stack([np.asarray(c) for c in expected.values()], 1))


@given(st.integers(1, 30), st.integers(0, 398), st.integers(0, 3))
def test_no_feature_reads_a_load_after_the_origin(step, origin, seed):
    own = record(seed=seed, rows=430)
    names = [*standard_names(24), "exog:heat", "exog_change:heat:3", "known:holiday"]
    later = own.values.copy()
    later[origin + 1 :] += 1000.0
    own_later = LoadRecord(
        later, own.slots, own.weekdays, own.day, exogenous=own.exogenous, known=own.known
    )
    at = np.array([min(origin, len(own.slots) - 1 - step)])
    assert np.array_equal(columns(own, names, at, step), columns(own_later, names, at, step))


@pytest.mark.parametrize(
    "name", ["lags", "change", "change:x", "day:1", "exog:rain", "weekday:1:2", "hidden:0", ""]
)
def test_a_name_that_does_not_fit_is_refused_with_the_name(name):
    with pytest.raises(UnknownFeatureError, match=f"feature '{name}'"):
        columns(record(), [name], np.array([50]), 1)


def test_a_short_record_falls_back_to_the_longest_lag_of_whole_days():
    own = record(rows=100)
    found = columns(own, ["day:7:0", "day:1:0"], np.array([80, 3]), 1)
    assert found[0, 0] == own.values[81 - 72] - own.values[80]
    assert found[1].tolist() == [0.0, 0.0]  # less than a day: the origin itself


def test_fleet_constants_are_those_of_all_rows_together():
    draw = np.random.default_rng(1)
    rows = {name: draw.normal(3.0, 2.0, size=(50, 4)) for name in "cab"}
    made = Standardiser.of_fleet({k: FeatureSums.of(v) for k, v in rows.items()})
    stacked = np.concatenate(list(rows.values()))
    assert made.mean == pytest.approx(stacked.mean(0))
    assert made.deviation == pytest.approx(stacked.std(0))
    with pytest.raises(ValueError, match="0 devices"):
        Standardiser.of_fleet({})


# --- random units -------------------------------------------------------------------------------


def philox(counter, key):
    """One block of Philox4x64-10 in plain integers (Salmon et al. 2011, table 2)."""
    mask, (a, b, c, d), (k0, k1) = 2**64 - 1, counter, key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (right >> 64) ^ b ^ k0, right & mask, (left >> 64) ^ d ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [a, b, c, d]


@pytest.mark.parametrize("fan_in", [None, 1, 3, 4, 9])
def test_units_are_those_of_the_definition_in_plain_integers(fan_in):
    name, seed, features, units = "load-analytic", -3, 4, 5
    digest = hashlib.sha256(f"gridfed/1/analytic/units\0{name}\0{seed}".encode()).digest()
    key = [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)]
    words = iter([w for n in range(1, 60) for w in philox((n, 0, 0, 0), key)])
    drawn = RandomUnits.draw(name, seed, features, units, fan_in)
    for r in range(units):
        read = list(range(features))
        if fan_in is not None and fan_in < features:
            ranks = [next(words) for _ in read]
            read = sorted(sorted(read, key=ranks.__getitem__)[:fan_in])
        expected = [0.0] * features
        for j in read:
            own = [next(words) for _ in range(6)]
            total = sum((w >> 32) + (w & 0xFFFFFFFF) for w in own)
            expected[j] = (total / 2.0**32 - 6.0) / np.sqrt(len(read))
        assert drawn.weights[:, r].tolist() == expected
        assert drawn.offsets[r] == (next(words) >> 11) * 2.0**-52 - 1.0


def test_units_have_golden_numbers():
    drawn = RandomUnits.draw("load", 7, 3, 2)
    assert [x.hex() for x in drawn.weights.ravel().tolist()] == [
        "-0x1.5372160d072ddp-3",
        "-0x1.5f25785a21202p-1",
        "0x1.65710f3a22bcap-2",
        "0x1.9824900720177p-2",
        "-0x1.22de2d160b159p-1",
        "-0x1.c35cd96899964p-3",
    ]
    assert [x.hex() for x in drawn.offsets.tolist()] == [
        "-0x1.0ddcfe082683cp-1",
        "0x1.fd2b14cb43000p-9",
    ]


def test_a_longer_draw_begins_with_the_shorter_one():
    few, many = (RandomUnits.draw("load", 7, 9, n) for n in (4, 40))
    assert np.array_equal(many.weights[:, :4], few.weights)
    assert np.array_equal(many.offsets[:4], few.offsets)


def test_units_are_nearly_normal_and_offsets_nearly_uniform():
    drawn = RandomUnits.draw("load", 1, 50, 2000)
    assert drawn.weights.mean() == pytest.approx(0.0, abs=0.002)
    assert drawn.weights.var() * 50 == pytest.approx(1.0, abs=0.02)
    assert np.quantile(drawn.weights, 0.975) * np.sqrt(50) == pytest.approx(1.96, abs=0.03)
    assert np.quantile(drawn.offsets, [0.1, 0.5, 0.9]) == pytest.approx([-0.8, 0, 0.8], abs=0.06)


@given(st.integers(0, 5), st.integers(0, 99))
def test_design_rows_are_bounded_whatever_the_reading(units, seed):
    wild = np.random.default_rng(seed).normal(size=(7, 3)) * 10.0 ** np.arange(7)[:, None]
    standard = Standardiser(np.zeros(3), np.array([1.0, 0.1, 0.0])).apply(wild)
    design = RandomUnits.draw("u", seed, 3, units).design(standard)
    assert design.shape == (7, 3 + units + 1)
    assert np.abs(design).max() <= CLIP
    assert (design[:, 2] == 0.0).all()
    assert (design[:, -1] == 1.0).all()
    narrow = RandomUnits.draw("u", seed, 3, units).design(standard.astype(np.float32))
    assert narrow.dtype == np.float32
    assert narrow == pytest.approx(design, abs=1e-5)
    assert np.linalg.norm(clip_rows(design, 2.0), axis=1).max() <= 2.0 + 1e-12
