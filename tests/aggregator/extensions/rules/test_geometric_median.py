"""What the searches for a centre promise step by step."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aggregator.extensions.rules.geometric_median import water_level, weiszfeld
from aggregator.rules import Rows, bind
from aggregator.rules.parameters import uniform
from edge_sdk.shared_math.fedavg import by_samples

FEW = settings(max_examples=40)
seeds = st.integers(0, 2**32)


def points(seed, n=9, width=3):
    return np.random.default_rng(seed).normal(size=(n, width))


@FEW
@example(seed=115330)  # a median 1e-8 from a row
@given(seed=seeds)
def test_weiszfelds_objective_never_rises(seed):
    matrix = points(seed)
    start = np.linalg.norm(matrix - np.median(matrix, axis=0), axis=1)
    fitted = weiszfeld(matrix @ matrix.T, uniform(9), start, floor=1e-9)
    # A distance from inner products has the error e / d: their rounding e over the distance d itself.
    rounding = 16 * np.finfo(float).eps * (matrix**2).sum(axis=1).max()
    errors = rounding / np.maximum(fitted.distances, np.sqrt(rounding))
    assert (np.diff(fitted.objective) <= errors.mean()).all()
    assert fitted.weights.sum() == pytest.approx(1.0)


@FEW
@given(seed=seeds, direction=seeds)
def test_no_step_away_from_the_geometric_median_is_better(rows_of, seed, direction):
    matrix = points(seed)
    value = bind("geometric_median")(rows_of(matrix), uniform(9)).value
    aside = value + 1e-3 * np.random.default_rng(direction).normal(size=3)

    def summed(point):
        return np.linalg.norm(matrix - point, axis=1).sum()

    assert summed(value) <= summed(aside) + 1e-9


def test_a_median_that_is_a_row_is_met_exactly(rows_of):
    star = np.array([[0.0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    assert bind("geometric_median")(rows_of(star), uniform(5)).value.tolist() == [0.0, 0.0]


def test_most_of_the_shares_is_where_the_median_is():
    rows = Rows.of({"a": np.array([0.0, 5.0]), "b": np.array([1.0, 0]), "c": np.array([0, 1.0])})
    value = bind("geometric_median")(rows, by_samples([9, 1, 1])).value
    assert value.tolist() == [0.0, 5.0]


@FEW
@given(seed=seeds, spread=st.floats(1e-3, 1e3))
def test_water_level_solves_its_problem(seed, spread):
    """The optimality conditions of a quadratic over the simplex."""
    distances = np.abs(points(seed).ravel())
    weights = water_level(distances, spread)
    assert weights.sum() == pytest.approx(1.0, rel=1e-9)
    assert (weights >= 0).all()
    slopes = distances + spread * weights
    used = weights > 0
    assert np.ptp(slopes[used]) < 1e-9 * spread + 1e-9
    assert (slopes[~used] >= slopes[used].max() - 1e-9).all()


def test_a_wide_spread_makes_autogm_the_geometric_median(rows_of):
    rows = rows_of(points(3))
    plain = bind("geometric_median")(rows, uniform(9)).value
    np.testing.assert_allclose(bind("autogm", spread=1e9)(rows, uniform(9)).value, plain, atol=1e-6)


def test_centred_clipping_follows_a_moving_centre(rows_of):
    rule, memory = bind("centred_clipping", f=2), {}
    matrix = points(4, 9, 3) + np.array([5.0, 0.0, 0.0])
    matrix[:2] = 1e6
    for _ in range(20):
        verdict = rule(rows_of(matrix), uniform(9), memory)
        memory = verdict.memory
    honest = matrix[2:]
    away = np.linalg.norm(verdict.value - honest.mean(axis=0))
    assert away < 2 * np.linalg.norm(honest - honest.mean(axis=0), axis=1).mean()
