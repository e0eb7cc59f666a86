"""Charges add up: exactly where they can, not at all where nothing bounds them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.privacy.ledger import (
    BudgetSpent,
    PrivacyAccount,
    PrivacyCharge,
    PrivacyLimit,
    compose,
)
from edge_sdk.privacy.noise import epsilon_of

DELTA = 1e-5


def charge(multiplier=4.0, *, unit="device", point="update", mechanism="gaussian", **more):
    return PrivacyCharge(0, unit, point, mechanism, multiplier, **more)


def worth(*charges, unit="device"):
    return PrivacyAccount(limit=PrivacyLimit(unit)).plus(*charges).epsilon()


def test_different_noises_compose_as_the_sum_of_their_squares():
    both = worth(charge(3.0, count=9), charge(4.0, count=16))
    assert both == pytest.approx(epsilon_of(1 / math.sqrt(2), DELTA), rel=1e-9)


def test_readings_perturbed_once_compose_in_parallel():
    early = charge(1.0, unit="reading", point="input", count=500)
    late = charge(0.5, unit="reading", point="input", count=9)
    assert worth(early, late, unit="reading") == pytest.approx(epsilon_of(0.5, DELTA), rel=1e-9)


def test_a_charge_for_a_coarser_unit_counts_for_a_reading():
    at_input = charge(1.0, unit="reading", point="input", count=500)
    update = charge(1.0)
    together = worth(at_input, update, unit="reading")
    assert together == pytest.approx(epsilon_of(1 / math.sqrt(2), DELTA), rel=1e-9)


def test_a_charge_for_a_reading_gives_no_bound_for_a_device():
    at_input = charge(1.0, unit="reading", point="input")
    assert worth(at_input) == math.inf
    assert worth(charge(1.0, unit="window", point="gradient"), unit="reading") == math.inf
    assert worth(charge(math.inf, unit="reading", point="input", mechanism="after")) == 0.0


def test_an_unprotected_release_is_unbounded_unless_excluded_explicitly():
    bare = charge(0.0, point="none", mechanism="none", releases=1)
    ledger = [bare, bare, charge(4.0, releases=1)]
    limit = PrivacyLimit("device", 10.0, DELTA)
    assert PrivacyAccount.of(ledger, limit).epsilon() == math.inf
    assert PrivacyAccount.of(ledger, limit, outside=1).epsilon() == math.inf
    left_out = PrivacyAccount.of(ledger, limit, outside=2)
    assert left_out.epsilon() == pytest.approx(epsilon_of(4.0, DELTA), rel=1e-9)
    assert left_out.released == 3


def test_pure_mechanisms_add_up_beside_gaussian_ones():
    flips = charge(2.0, mechanism="sign_flip", count=3)
    assert worth(flips) == 1.5
    assert worth(flips, charge(4.0)) == pytest.approx(1.5 + epsilon_of(4.0, DELTA), rel=1e-9)
    assert worth(charge(10.0, mechanism="laplace", count=100)) == pytest.approx(5.85024, abs=1e-5)


def test_a_sampling_rate_lowers_no_epsilon():
    assert compose([charge(1.0, rate=0.01)], DELTA) == compose([charge(1.0)], DELTA)


def test_a_charge_above_the_limit_is_refused():
    account = PrivacyAccount(limit=PrivacyLimit("device", 2.0, DELTA), most=50).charge(
        charge(4.0, releases=1)
    )
    with pytest.raises(BudgetSpent, match="1 releases are charged; with 1 more a device"):
        account.charge(charge(1.0, releases=1))
    assert account.released == 1
    assert PrivacyAccount(most=1, released=1).has_room(charge(4.0, releases=1)) is False
    with pytest.raises(BudgetSpent, match="1 of 1 releases are spent"):
        PrivacyAccount(most=1, released=1).charge(charge(4.0, releases=1))


@given(st.floats(0.5, 50.0), st.floats(0.1, 30.0))
def test_the_remaining_releases_fit_and_one_more_does_not(multiplier, epsilon):
    account = PrivacyAccount(limit=PrivacyLimit("device", epsilon, DELTA))
    one = charge(multiplier, releases=1)
    left = account.left(one)
    assert left is not None
    assert account.plus(charge(multiplier, count=left)).epsilon() <= epsilon
    assert account.plus(charge(multiplier, count=left + 1)).epsilon() > epsilon


@given(st.lists(st.tuples(st.floats(0.5, 20.0), st.integers(1, 9)), min_size=1, max_size=6))
def test_the_order_and_grouping_of_charges_do_not_matter(spent):
    charges = [charge(multiplier, count=count) for multiplier, count in spent]
    whole = worth(*charges)
    assert worth(*reversed(charges)) == pytest.approx(whole, rel=1e-9)
    singly = [charge(multiplier) for multiplier, count in spent for _ in range(count)]
    assert worth(*singly) == pytest.approx(whole, rel=1e-9)
    assert worth(*charges, charge(1.0)) > whole
