"""Attacks on the readings: point by point, gaps stay gaps, and the argument is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firmware_sim.attacks import ATTACKS, data

ROWS = [row for row in ATTACKS.values() if row.kind == "data"]
Y = np.array([0.0, 0.2, np.nan, 1.0, 0.6])


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_data_attacks_keep_gaps_and_copy_the_readings(row):
    kept = Y.copy()
    out = row.act(Y, rng())
    assert out.shape == Y.shape
    np.testing.assert_array_equal(Y, kept)
    if row.name != "fdi_outage":
        assert np.isnan(out).tolist() == np.isnan(Y).tolist()


@given(arrays(float, st.integers(1, 30), elements=st.floats(0, 1)))
def test_flipping_labels_twice_restores_them(y):
    once = data.label_flip(y, rng())
    assert (once.min(), once.max()) == pytest.approx((y.min(), y.max()))
    np.testing.assert_allclose(data.label_flip(once, rng()), y, atol=1e-12)


def test_attack_defaults_agree_with_the_specification():
    np.testing.assert_allclose(data.bias(Y, rng()) - Y, 0.5 + 0 * Y)
    np.testing.assert_allclose(data.scale(Y, rng()), 2 * Y)
    assert data.ramp(np.zeros(4), rng()).tolist() == [0.0, 0.125, 0.25, 0.375]


def test_an_outage_is_one_seeded_block_of_a_tenth():
    y = np.ones(200)
    blocks = {
        tuple(np.flatnonzero(data.outage(y, np.random.default_rng(s)) == 0)) for s in range(9)
    }
    assert len(blocks) > 1
    for block in blocks:
        assert len(block) == 20
        assert block[-1] - block[0] == 19


def test_empty_data_is_no_error():
    for row in ROWS:
        assert row.act(np.zeros(0), rng()).shape == (0,)
