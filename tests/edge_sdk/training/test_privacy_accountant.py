"""The account of what was told: reckoned before, taken over after, and what stops the telling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_sdk.privacy.ledger import BudgetSpent


def budgeted(make, **budget):
    mechanism = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 1.0}
    budget = {"epsilon": 50.0, "delta": 1e-6, **budget}
    return make(privacy={"mode": "honest", "mechanism": mechanism, "budget": budget})


def started(make, **budget):
    return budgeted(make, **budget).device.start()


def parts(client):
    return client._active.accountant, client._session


def spend(session, releases):
    session.parts.outbox.adopt_numbers(replace(session.outbox.numbers, spent=releases))


def test_releases_before_a_lost_store_are_charged_with_the_next_round(make):
    accountant, session = parts(started(make))
    spend(session, 3)
    charges, account = accountant.cost(1)
    assert [charge.releases for charge in charges] == [3, 1]
    assert account.released == 4
    assert accountant.account.released == 0, "nothing is charged before it is saved"
    accountant.adopt_account(account)
    charges, account = accountant.cost(1)
    assert [charge.releases for charge in charges] == [1]


def test_beyond_the_budget_nothing_is_released_and_an_unsent_update_costs_nothing(make):
    accountant, _ = parts(started(make, max_releases=1))
    _, account = accountant.cost(1)
    accountant.adopt_account(replace(account, most=1))
    with pytest.raises(BudgetSpent, match="1 of 1 releases"):
        accountant.cost(1)
    charges, account = accountant.cost(0)
    assert charges == ()
    assert account.released == 1


def test_an_exhausted_budget_stops_releases_once_until_the_operator_raises_it(make, caplog):
    accountant, session = parts(started(make))
    session.participation.allow(2)
    spend(session, 2)
    accountant.watch()
    accountant.watch()
    accountant.stop("again")
    assert session.participation.why_stopped == "budget"
    assert not session.participation.may_release
    assert caplog.text.count("privacy budget exhausted") == 1
    session.participation.allow(3)
    accountant.watch()
    assert not session.participation.is_budget_exhausted
