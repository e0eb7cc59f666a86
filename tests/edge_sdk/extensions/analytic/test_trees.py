"""Boosted symmetric trees: steps are found, quantiles are quantiles, nothing depends on chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.extensions.analytic.trees import BINS, TreeForm, binned, boosted, thresholds

FINITE = st.floats(-100.0, 100.0, allow_nan=False, width=32)


def test_an_interaction_that_no_linear_model_has_is_learnt():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(3000, 4))
    target = np.sign(rows[:, 0]) * np.sign(rows[:, 1])
    made = boosted(rows[:2000], target[:2000], TreeForm(features=1.0))
    missed = np.abs(target[2000:] - made.predicted(rows[2000:]))
    assert missed.mean() < 0.1  # every linear model misses by 1


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_leaves_hold_the_quantile_of_the_level(level):
    draw = np.random.default_rng(1)
    rows = draw.integers(0, 2, size=(4000, 1)).astype(float)
    target = draw.normal(size=4000) * (1.0 + 3.0 * rows[:, 0])
    made = boosted(rows, target, TreeForm(trees=200, depth=1, features=1.0), level=level)
    share = (target <= made.predicted(rows)).mean()
    assert share == pytest.approx(level, abs=0.02)
    wide, narrow = (np.quantile(target[rows[:, 0] == side], level) for side in (1.0, 0.0))
    assert made.predicted(np.array([[1.0], [0.0]])) == pytest.approx([wide, narrow], abs=0.2)


def test_the_same_seed_grows_the_same_trees_and_another_seed_others():
    draw = np.random.default_rng(2)
    rows, target = draw.normal(size=(300, 5)), draw.normal(size=300)
    first, same, other = (boosted(rows, target, TreeForm(trees=5), seed=s) for s in (3, 3, 4))
    assert (first.values == same.values).all()
    assert (first.asked == same.asked).all()
    assert (first.values != other.values).any()


def test_constant_features_and_targets_are_allowed():
    made = boosted(np.ones((50, 3)), np.full(50, 2.0), TreeForm(ballast=0.0))
    assert made.predicted(np.zeros((2, 3))) == pytest.approx([2.0, 2.0], abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    rows=hnp.arrays(np.float64, st.tuples(st.integers(2, 40), st.integers(1, 4)), elements=FINITE),
    data=st.data(),
)
def test_forecasts_stay_within_the_targets(rows, data):
    """Every step is at most what is left, so forecasts are bounded by the targets."""
    target = data.draw(hnp.arrays(np.float64, len(rows), elements=FINITE))
    told = boosted(rows, target, TreeForm(trees=10, depth=2)).predicted(rows)
    assert np.isfinite(told).all()
    slack = 1e-9 * (1.0 + np.abs(target).max())
    assert told.max() <= 2.0 * max(target.max(), 0.0) + 2.0 * max(-target.min(), 0.0) + slack
    assert told.min() >= -2.0 * max(target.max(), 0.0) - 2.0 * max(-target.min(), 0.0) - slack


@settings(max_examples=30, deadline=None)
@given(rows=hnp.arrays(np.float64, st.tuples(st.integers(1, 60), st.just(2)), elements=FINITE))
def test_bins_keep_the_order_of_values(rows):
    edges = thresholds(rows)
    bins = binned(rows, edges)
    assert edges.shape == (2, BINS - 1)
    assert bins.max() < BINS
    order = np.argsort(rows[:, 0], kind="stable")
    assert (np.diff(bins[order, 0].astype(int)) >= 0).all()
