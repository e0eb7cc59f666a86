"""Quantiles of every step and paths: coverage, marginals, sums, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.residual_paths import (
    energy_scores,
    fitted_paths,
    joined_residuals,
    lead_quantiles,
    profile_fan,
    profile_paths,
    share_covered,
)

seeds = st.integers(0, 2**32 - 1)


def residual_days(draw, days, steps=24, drift=0.8):
    """Return days whose steps belong together: a random level for each day, and noise."""
    level = draw.normal(size=(days, 1))
    return drift * level + (1.0 - drift**2) ** 0.5 * draw.normal(size=(days, steps))


@given(seeds, st.integers(3, 60))
@settings(max_examples=30, deadline=None)
def test_quantiles_are_the_order_statistics_of_split_conformal_prediction(seed, days):
    residuals = np.random.default_rng(seed).normal(size=(days, 4))
    found = lead_quantiles(residuals, [0.1, 0.9])
    ordered = np.sort(residuals, axis=0)
    low, high = int(np.floor((days + 1) / 10)), int(np.ceil((days + 1) * 9 / 10 - 1e-9))
    assert found[:, 0].tolist() == ordered[max(low, 1) - 1].tolist()
    assert found[:, 1].tolist() == ordered[min(high, days) - 1].tolist()


def test_the_interval_covers_at_least_what_it_promises_at_every_step():
    draw = np.random.default_rng(1)
    seen = []
    for _ in range(400):
        past, new = residual_days(draw, 39), residual_days(draw, 1)
        fan = profile_fan(np.zeros((1, 24)), np.ones((1, 24)), lead_quantiles(past, [0.1, 0.9]))
        seen.append((fan[0, :, 0] <= new[0]) & (new[0] <= fan[0, :, 1]))
    covered = np.mean(seen, axis=0)
    assert covered.mean() == pytest.approx(0.8, abs=0.03)
    assert covered.min() > 0.73  # 400 days: a standard error of 0.02


def test_steps_around_count_too_and_gaps_do_not():
    residuals = np.array([[1.0, 10.0, 100.0], [2.0, np.nan, 200.0], [3.0, 30.0, 300.0]])
    assert lead_quantiles(residuals, [0.5])[:, 0].tolist() == [2.0, 30.0, 200.0]
    both = lead_quantiles(residuals, [0.5], around=1)
    assert both[1, 0] == 30.0  # the fifth of the eight residuals of all three steps
    assert np.isnan(lead_quantiles(np.full((2, 3), np.nan), [0.5])).all()
    assert np.isnan(lead_quantiles(np.zeros((0, 3)), [0.5])).all()


@given(seeds, st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_every_step_of_the_paths_has_the_values_of_its_residuals(seed, days, paths):
    draw = np.random.default_rng(seed)
    residuals, centre = residual_days(draw, days, 6), draw.normal(size=(2, 6))
    spread = draw.gamma(2.0, size=(2, 6))
    made = profile_paths(centre, spread, residuals, paths, seed=3)
    assert made.shape == (2, paths, 6)
    levels = (np.arange(paths) + 0.5) / paths
    values = np.quantile(residuals, levels, axis=0, method="hazen")
    expected = centre[:, None, :] + spread[:, None, :] * values
    assert np.sort(made, axis=1) == pytest.approx(np.sort(expected, axis=1))
    assert (made == profile_paths(centre, spread, residuals, paths, seed=3)).all()


def test_as_many_paths_as_residual_days_are_these_days():
    residuals = residual_days(np.random.default_rng(2), 25)
    made = profile_paths(np.zeros((1, 24)), np.ones((1, 24)), residuals, 25)[0]
    expected = residuals[np.argsort(residuals[:, 0])]
    assert made[np.argsort(made[:, 0])] == pytest.approx(expected)


def test_sums_of_paths_cover_where_independent_steps_would_not():
    draw = np.random.default_rng(3)
    past, new = residual_days(draw, 200), residual_days(draw, 2000)
    made = profile_paths(np.zeros((1, 24)), np.ones((1, 24)), past, 100)
    alone = np.stack([draw.permutation(one) for one in made[0].T], axis=1)[None]
    many = np.repeat(made, len(new), axis=0)
    assert share_covered(many, new) == pytest.approx(0.8, abs=0.05)
    assert share_covered(np.repeat(alone, len(new), axis=0), new) < 0.4


def test_paths_in_the_order_of_days_have_a_lower_energy_score_than_independent_steps():
    draw = np.random.default_rng(4)
    past, new = residual_days(draw, 200), residual_days(draw, 100)
    made = np.repeat(profile_paths(np.zeros((1, 24)), np.ones((1, 24)), past, 100), 100, axis=0)
    alone = draw.permuted(made, axis=1)
    assert energy_scores(made, new).mean() < 0.98 * energy_scores(alone, new).mean()


@given(seeds, st.integers(2, 20).map(lambda n: 2 * n + 1))
@settings(max_examples=30, deadline=None)
def test_fitted_paths_keep_their_order_and_have_the_ends_that_are_served(seed, paths):
    draw = np.random.default_rng(seed)
    made, median = draw.normal(size=(2, paths, 6)), draw.normal(size=(2, 6))
    ends = median[..., None] + draw.gamma(2.0, size=(2, 6, 1)) * np.array([-1.0, 1.0])
    fitted = fitted_paths(made, median, ends, 0.8)
    found = np.quantile(fitted, (0.1, 0.5, 0.9), axis=1)
    assert found[1] == pytest.approx(median)
    assert np.stack(found[[0, 2]], axis=-1) == pytest.approx(ends)
    assert (np.argsort(fitted, axis=1) == np.argsort(made, axis=1)).all()


def test_paths_without_a_spread_stay_on_their_median():
    ends = np.array([[0.0, 2.0]])
    assert fitted_paths(np.ones((4, 1)), np.array([1.0]), ends, 0.8).tolist() == [[1.0]] * 4


def test_a_step_that_no_day_has_observed_is_refused():
    with pytest.raises(ValueError, match="2 residual days leave a step without a residual"):
        profile_paths(np.zeros((1, 2)), np.ones((1, 2)), np.array([[1.0, np.nan]] * 2), 3)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_own_days_replace_those_of_the_prior_one_by_one(own, prior, most):
    mine, theirs = np.arange(own, dtype=float)[:, None], 100.0 + np.arange(prior)[:, None]
    found = joined_residuals(mine, theirs, most).ravel()
    assert len(found) == min(most, own + prior)
    assert found[found < 100.0].tolist() == mine.ravel()[max(0, own - most) :].tolist()
    assert len(set(found)) == len(found)
