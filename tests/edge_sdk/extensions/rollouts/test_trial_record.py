"""The daily comparison of two versions on one device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.rollouts.trial_record import LONGEST, TrialRecord

errors = st.lists(
    st.tuples(st.integers(100, 110), st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=60
)


def record_of(rows):
    days, served, new = (np.array([column]) for column in zip(*rows, strict=True))
    return TrialRecord.empty().extended(served, new, np.zeros_like(served), days)


@given(errors, st.floats(0, 0.5))
def test_a_day_is_lost_exactly_if_its_errors_say_so(rows, margin):
    words = record_of(rows).words(111, margin, 11)
    for back, word in enumerate(words):
        own = [(a, b) for day, a, b in rows if day == 110 - back]
        if not own:
            assert word == 0
            continue
        served, new = (np.sum(one) for one in zip(*own, strict=True))
        if abs(new - (1 + margin) * served) > 1e-9:
            assert word == (2 if new > (1 + margin) * served else 1)


@given(errors, errors)
def test_errors_may_arrive_in_parts(first, second):
    whole, parts = record_of(first + second), record_of(first)
    days, served, new = (np.array([column]) for column in zip(*second, strict=True))
    parts = parts.extended(served, new, np.zeros_like(served), days)
    assert parts.days.tolist() == whole.days.tolist()
    assert parts.sums == pytest.approx(whole.sums)


@given(errors)
def test_a_saved_record_is_the_same(rows):
    found = record_of(rows)
    again = TrialRecord.from_arrays(found.arrays())
    assert again.sums.tolist() == found.sums.tolist()


def test_values_that_are_not_finite_lose_a_day_of_the_new_version_only():
    nan, one = np.array([[np.nan]]), np.ones((1, 1))
    days = np.array([[100]])
    assert TrialRecord.empty().extended(one, nan, one, days).words(101, 0.5) == (
        2,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    assert len(TrialRecord.empty().extended(nan, one, one, days).days) == 0
    assert len(TrialRecord.empty().extended(one, one, nan, days).days) == 0


def test_a_record_stays_small():
    rows = [(day, 1.0, 1.0) for day in range(3 * LONGEST)]
    assert len(record_of(rows).days) == LONGEST


@pytest.mark.parametrize(
    "change",
    [
        {"days": np.array([[1]])},
        {"days": np.array([2.0])},
        {"sums": np.array([[1.0]])},
        {"sums": np.array([[1.0, np.inf]])},
        {"sums": np.array([[1.0, -1.0]])},
    ],
)
def test_a_damaged_record_is_refused(change):
    arrays = {"days": np.array([2]), "sums": np.array([[1.0, 1.0]]), **change}
    with pytest.raises(ValueError, match="trial record"):
        TrialRecord.from_arrays(arrays)
