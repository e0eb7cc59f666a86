"""What an old answer counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.methods.asynchronous import constant, hinge, polynomial

ALL = [constant(), polynomial(0.5), polynomial(2.0), hinge(10.0, 4), hinge(0.5, 0)]


def test_as_calculated_by_hand():
    assert polynomial(0.5)(3) == 0.5
    assert hinge(10.0, 4)(7) == pytest.approx(1 / 31)
    assert round(hinge(10.0, 4)(7), 8) == 0.03225806


@given(behind=st.integers(0, 10_000))
@pytest.mark.parametrize("discount", ALL)
def test_fresh_counts_in_full_and_nothing_gains_by_waiting(discount, behind):
    assert discount(0) == 1.0
    assert 0.0 < discount(behind + 1) <= discount(behind) <= 1.0


def test_the_hinge_is_flat_up_to_its_grace_and_continuous_behind_it():
    bend = hinge(10.0, 4)
    assert [bend(behind) for behind in range(5)] == [1.0] * 5
    assert bend(5) == pytest.approx(1 / 11)


def test_no_power_is_no_discount():
    assert [polynomial(0.0)(behind) for behind in (0, 1, 99)] == [1.0] * 3
