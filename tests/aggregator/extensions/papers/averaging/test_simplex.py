"""The projection that AFL's weights take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.extensions.papers.averaging.afl import onto_simplex

THIRD = np.full(3, 1 / 3)
LOSSES = np.array([1.0, 2.0, 0.5])
POINTS = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e6, 1e6))


def test_as_calculated_by_hand():
    near = onto_simplex(THIRD + 0.1 * LOSSES)
    assert near == pytest.approx([0.31666667, 0.41666667, 0.26666667], abs=1e-8)
    assert onto_simplex(THIRD + LOSSES).tolist() == [0.0, 1.0, 0.0]


@given(point=POINTS)
def test_it_lies_on_the_simplex(point):
    near = onto_simplex(point)
    assert (near >= 0).all()
    assert near.sum() == pytest.approx(1.0, rel=1e-9)


@given(point=POINTS, shift=st.floats(-1e3, 1e3))
def test_a_common_shift_changes_nothing(point, shift):
    assert onto_simplex(point + shift) == pytest.approx(onto_simplex(point), abs=1e-7)


@given(point=POINTS, data=st.data())
def test_no_other_point_of_the_simplex_is_nearer(point, data):
    raw = data.draw(arrays(np.float64, len(point), elements=st.floats(0.0, 1.0)))
    other = raw / raw.sum() if raw.sum() else np.full(len(point), 1 / len(point))
    near = onto_simplex(point)
    # the obtuse angle at a projection onto a convex set: (x - P x) . (y - P x) <= 0
    slack = 1e-6 * max(1.0, np.abs(point).max())
    assert float((point - near) @ (other - near)) <= slack


@given(point=POINTS, seed=st.integers(0, 2**32 - 1))
def test_a_permutation_permutes_the_result_to_the_bit(point, seed):
    order = np.random.default_rng(seed).permutation(len(point))
    assert (onto_simplex(point[order]) == onto_simplex(point)[order]).all()


def test_a_point_of_the_simplex_stays():
    inside = np.array([0.25, 0.0, 0.75])
    assert onto_simplex(inside).tolist() == inside.tolist()
    assert onto_simplex(inside / 2, 0.5).tolist() == (inside / 2).tolist()
