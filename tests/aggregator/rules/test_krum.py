"""Bulyan's quick selection and its middle values, against the words of its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.rules import bind
from aggregator.rules.krum import bulyan_selection, krum_scores, near_median
from aggregator.rules.parameters import uniform


def picked_in_turn(distances, f):
    left, picked = np.arange(len(distances)), []
    for _ in range(len(distances) - 2 * f):
        scores = krum_scores(distances[np.ix_(left, left)], f)
        best = int(np.argmin(scores))
        picked.append(int(left[best]))
        left = np.delete(left, best)
    return picked


def near_the_median(matrix, chosen, keep):
    some = matrix[np.sort(chosen)]
    order = np.argsort(np.abs(some - np.median(some, axis=0)), axis=0, kind="stable")[:keep]
    return np.take_along_axis(some, order, axis=0).mean(axis=0)


@settings(max_examples=60)
@given(
    f=st.integers(0, 4),
    more=st.integers(0, 12),
    width=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
@pytest.mark.parametrize("form", ["scattered", "whole numbers", "huge liars", "pairs"])
def test_bulyan_is_what_it_is_called(rows_of, form, **drawn):
    f, n = drawn["f"], 4 * drawn["f"] + 3 + drawn["more"]
    matrix = np.random.default_rng(drawn["seed"]).normal(size=(n, drawn["width"]))
    if form == "whole numbers":
        matrix = np.round(2 * matrix)
    elif form == "huge liars":
        matrix[:f] *= 1e9
    elif form == "pairs":
        matrix[1::2] = matrix[: n // 2 * 2 : 2]
    rows = rows_of(matrix)
    distances = rows.distances()
    chosen = picked_in_turn(distances, f)
    assert bulyan_selection(distances, f).tolist() == chosen
    value = bind("bulyan", f=f)(rows, uniform(len(matrix))).value
    expected = near_the_median(matrix, chosen, len(matrix) - 4 * f)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9)


def test_two_values_as_near_are_told_apart_by_id(rows_of):
    """Ascending, either neighbour of the middle would do; the lower id's is the one that counts."""
    column = np.array([[0.0], [2], [1], [1], [1], [9], [-9]])
    same = rows_of(np.tile(column, (1, 3)))
    other = rows_of(np.tile(column[[1, 0, 2, 3, 4, 5, 6]], (1, 3)))
    chosen = picked_in_turn(same.distances(), 1)
    assert sorted(chosen) == [0, 1, 2, 3, 4]
    one, two = (bind("bulyan", f=1)(rows, uniform(7)).value for rows in (same, other))
    assert one == pytest.approx([1.0] * 3)
    assert two == pytest.approx([1.0] * 3)
    wide = np.array([[0.0], [2], [1], [1], [0], [2], [1], [1], [1], [30], [-30]])
    rows = rows_of(wide)
    value = bind("bulyan", f=2)(rows, uniform(11)).value
    picks = picked_in_turn(rows.distances(), 2)
    assert value == pytest.approx(near_the_median(wide, picks, 3))


def test_dropped_are_those_not_selected(rows_of, cross):
    verdict = bind("multi_krum", f=1, m=2)(rows_of(cross), uniform(5))
    assert verdict.dropped == dict.fromkeys(["m001", "m003", "m004"], "far")
    assert verdict.weights == {"m000": 0.5, "m001": 0, "m002": 0.5, "m003": 0, "m004": 0}


def test_ties_go_to_the_lowest_id(rows_of):
    square = rows_of(np.array([[0.0, 0], [0, 1], [1, 0], [1, 1], [0.5, 0.5]]))
    first = bind("krum", f=0)(square, uniform(5)).value
    corners = rows_of(np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]]))
    assert bind("krum", f=0)(corners, uniform(4)).value.tolist() == [0.0, 0.0]
    assert first.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("n", [3, 8, 24, 31])
def test_near_median_is_the_mean_of_the_nearest_values_however_few(rows_of, n):
    matrix = np.random.default_rng(n).integers(-9, 9, size=(n, 500)).astype(np.float32)
    matrix[0] *= 1e30
    order = np.argsort(np.abs(matrix - np.median(matrix.astype(float), axis=0)), 0, kind="stable")
    for keep in range(1, n + 1):
        wanted = np.take_along_axis(matrix.astype(float), order[:keep], axis=0).mean(axis=0)
        found = near_median(rows_of(matrix), keep)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
