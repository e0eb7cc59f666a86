"""Weights of a served blend: at least 0, with sum 1, best where there is enough to choose by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.extensions.analytic.blend import (
    FEW,
    PRIOR,
    blocks_held_back,
    least_loss_weights,
    parts_held_back,
    served_weights,
    weights_of_a_new_device,
)

FINITE = st.floats(-100.0, 100.0, allow_nan=False, width=32)


@pytest.mark.parametrize("windows", [60, 700, 8760, 35_040])
def test_blocks_cover_the_whole_record(windows):
    late = blocks_held_back(windows, 168)
    assert 0.1 <= late.mean() <= 0.3
    for quarter in np.array_split(late, 4):
        assert 0.0 < quarter.mean() < 0.5


@settings(max_examples=50, deadline=None)
@given(
    forecasts=hnp.arrays(
        np.float64, st.tuples(st.integers(0, 30), st.integers(1, 4)), elements=FINITE
    ),
    level=st.sampled_from([0.1, 0.5, 0.9]),
    data=st.data(),
)
def test_weights_are_those_of_a_mean(forecasts, level, data):
    targets = data.draw(hnp.arrays(np.float64, len(forecasts), elements=FINITE))
    for found in (least_loss_weights, served_weights):
        weights = found(forecasts, targets, level=level)
        assert (weights >= 0.0).all()
        assert weights.sum() == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(
    forecasts=hnp.arrays(np.float64, st.tuples(st.integers(5, 40), st.just(3)), elements=FINITE),
    level=st.sampled_from([0.1, 0.5, 0.9]),
    data=st.data(),
)
def test_least_loss_is_never_above_that_of_the_plain_mean(forecasts, level, data):
    targets = data.draw(hnp.arrays(np.float64, len(forecasts), elements=FINITE))

    def loss(weights):
        missed = targets - forecasts @ weights
        return np.maximum(level * missed, (level - 1.0) * missed).mean()

    found = least_loss_weights(forecasts, targets, level=level)
    assert loss(found) <= loss(np.full(3, 1 / 3)) + 1e-9


def test_a_blend_of_two_that_miss_in_opposite_directions_beats_both():
    draw = np.random.default_rng(0)
    truth, error = draw.normal(size=2000), draw.normal(size=2000)
    forecasts = np.stack([truth + error, truth - error], axis=1)
    told = forecasts @ served_weights(forecasts, truth)
    assert np.abs(told - truth).mean() < 0.1 * np.abs(error).mean()


def test_the_choice_covers_seasons_that_the_newest_windows_lack():
    """A heat pump that stands still in summer: the newest part alone would take the wrong model."""
    winter, summer = np.ones(1200), np.zeros(400)
    truth = np.concatenate([winter, summer])
    runs, stands = np.ones_like(truth), np.zeros_like(truth)
    candidates = np.stack([runs * 0.9 * truth + 0.05, stands], axis=1)
    newest = slice(-240, None)
    assert least_loss_weights(candidates[newest], truth[newest])[1] > 0.9
    late = blocks_held_back(len(truth), 96)
    assert served_weights(candidates[late], truth[late])[0] > 0.9


def test_few_windows_weigh_by_error_and_many_by_least_loss():
    truth = np.random.default_rng(1).normal(size=int(50 * FEW))
    forecasts = np.stack([truth + 1.0, truth + 1.1], axis=1)
    few, many = (served_weights(forecasts[:n], truth[:n])[1] for n in (5, len(truth)))
    assert few > 0.2
    assert many < 0.05


@settings(max_examples=100, deadline=None)
@given(windows=st.integers(0, 3000), block=st.integers(1, 200))
def test_a_short_record_is_held_back_whole_and_a_long_one_by_a_fifth(windows, block):
    parts = parts_held_back(windows, block)
    if windows >= 15 * block:
        assert [part.tolist() for part in parts] == [blocks_held_back(windows, block).tolist()]
        return
    times = np.sum([np.zeros(windows, np.int64), *parts], axis=0)
    assert (times == 1).all() or windows < 2
    assert all(not part.all() for part in parts)  # something is left to learn from


def test_a_new_device_begins_with_the_prior_and_forgets_it():
    found, begun = np.array([0.2, 0.8, 0.0]), np.array([0.0, 0.5, 0.5])
    assert np.array_equal(weights_of_a_new_device(found, begun, 0), begun)
    half = weights_of_a_new_device(found, begun, int(PRIOR))
    assert half == pytest.approx((found + begun) / 2.0)
    late = weights_of_a_new_device(found, begun, 10**6)
    assert late == pytest.approx(found, abs=1e-3)
    assert late.sum() == pytest.approx(1.0)
