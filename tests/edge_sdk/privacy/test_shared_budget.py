"""The privacy loss of several participations adds up, and is held against one limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_sdk.privacy.ledger import (
    UNBOUNDED,
    BudgetSpent,
    ParticipationCharges,
    PrivacyAccount,
    PrivacyCharge,
    PrivacyLimit,
    compose,
)

DELTA = 1e-5


def charge(multiplier, unit="device", point="update", mechanism="gaussian", count=1):
    return PrivacyCharge(0, unit, point, mechanism, multiplier, count=count, releases=count)


def account(*charges, beside=(), epsilon=math.inf, most=None, unit="device"):
    others = tuple(
        ParticipationCharges(tuple(its), sum(one.releases for one in its)) for its in beside
    )
    limit = PrivacyLimit(unit, epsilon, DELTA)
    return PrivacyAccount(limit=limit, most=most, beside=others).plus(*charges)


CHARGES = st.builds(
    charge,
    st.sampled_from([2.0, 5.0, 9.0]),
    mechanism=st.sampled_from(["gaussian", "sign_flip"]),
    count=st.integers(1, 9),
)


@given(st.lists(CHARGES, min_size=1, max_size=4), st.lists(CHARGES, min_size=1, max_size=4))
@example(
    [charge(9.0, mechanism="sign_flip", count=14)], [charge(9.0, mechanism="sign_flip", count=16)]
)
def test_two_ledgers_cost_what_one_with_all_charges_costs(own, other):
    """The oracle is one account that has made every release itself."""
    together = account(*own, *other)
    assert account(*own, beside=[other]).epsilon() == pytest.approx(together.epsilon(), rel=1e-12)
    assert account(*own, beside=[other]).released_by_device == together.released
    assert account(*own, beside=[other]).epsilon() >= account(*own).epsilon()


@pytest.mark.slow
@given(st.floats(2.0, 20.0), st.floats(1.0, 20.0), st.integers(0, 30))
def test_whoever_releases_next_the_sum_stays_within_the_limit(multiplier, epsilon, first):
    """Two participations release in turn, each with the other's charges, until both are refused."""
    own, other = [charge(multiplier)] * 0, [charge(multiplier)] * 0
    one = charge(multiplier)
    for turn in range(200):
        mine, its = (own, other) if (turn < first or turn % 2) else (other, own)
        try:
            account(*mine, beside=[its], epsilon=epsilon).charge(one)
        except BudgetSpent:
            break
        mine.append(one)
    assert compose([*own, *other], DELTA) <= epsilon if own or other else True
    for mine, its in ((own, other), (other, own)):
        present = account(*mine, beside=[its], epsilon=epsilon)
        assert not present.has_room(one) or len(own) + len(other) == 200
        assert present.left(one) == 0 or len(own) + len(other) == 200


def test_noise_that_two_participations_draw_on_the_same_readings_adds_up():
    """Within one ledger each draw is on other readings, between two ledgers on the same ones."""
    days = charge(2.0, unit="day", point="input", count=30)
    assert account(days, unit="day").epsilon() == pytest.approx(
        compose([charge(2.0)], DELTA), rel=1e-12
    )
    assert account(days, beside=[[days]], unit="day").epsilon() == pytest.approx(
        compose([charge(2.0, count=2)], DELTA), rel=1e-12
    )
    other = charge(3.0, unit="day", point="input", count=2)
    assert account(days, beside=[[days, other]], unit="day").epsilon() == pytest.approx(
        compose([charge(2.0, count=2)], DELTA), rel=1e-12
    )


@pytest.mark.parametrize("unit", ["reading", "window"])
def test_a_claim_about_a_window_has_no_bound_over_two_bundles(unit):
    own = charge(5.0, unit=unit, point="gradient")
    assert account(own, unit=unit).epsilon() < math.inf
    assert account(own, beside=[[own]], unit=unit).epsilon() == math.inf
    assert account(own, beside=[[]], unit=unit).epsilon() < math.inf


def test_an_unreadable_ledger_beside_exhausts_the_budget():
    with pytest.raises(BudgetSpent):
        account(beside=[[UNBOUNDED]], epsilon=1e6).charge(charge(100.0))


def test_the_number_of_releases_is_that_of_all_participations():
    present = account(charge(5.0, count=2), beside=[[charge(5.0, count=3)]], most=6)
    assert present.left(charge(5.0)) == 1
    assert present.summary()["releases"] == 5
    assert present.summary()["releases in this run"] == 2
    after = present.charge(charge(5.0))
    with pytest.raises(BudgetSpent, match="6 of 6 releases"):
        after.charge(charge(5.0))
    assert not after.has_room(charge(5.0))


def test_nothing_fits_while_the_charges_of_a_participation_are_unknown():
    unknown = ParticipationCharges(is_known=False)
    for limits in ({"limit": PrivacyLimit("device", 100.0, DELTA)}, {"most": 100}):
        present = PrivacyAccount(beside=(unknown,), **limits)
        assert not present.has_room(charge(9.0))
        assert present.left(charge(9.0)) == 0
        with pytest.raises(BudgetSpent):
            present.charge(charge(9.0))
    unlimited = PrivacyAccount(beside=(unknown,))
    assert unlimited.has_room(charge(9.0))
    assert unlimited.charge(charge(9.0)).released == 1
