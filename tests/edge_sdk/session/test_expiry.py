"""A device refuses an expired announcement by signed time, and no wrong clock locks it out."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.app.clock import DAY
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages as m
from edge_sdk.session.manifest_checks import check_expiry

SERVER = 1_800_000_000_000
"""Time of every welcome in these tests."""
EXPIRED = "arrived ANNOUNCEMENT_EXPIRED"
BUNDLE = m.BundleMessage(
    serial=3, name="linear", version=1, digest=bytes(32), size=3, spec=bytes(16), sdk="0.1.0",
    method="fedavg", run=1, shared=("body.",),
)  # fmt: skip


def refused(one):
    return one.device.client._session.traffic().get(EXPIRED, 0)


def weights(one):
    return np.zeros(one.server.spec.shared_size, np.float32)


def started(make, **options):
    one = make(**options)
    one.device.start()
    one.device.observe()
    one.run(40)
    return one


def updates_after(one, expires, number=1):
    one.server.open_round(number, 0, weights(one), expires=expires)
    one.run(200, seconds=0.05)
    return len(one.server.updates)


@pytest.mark.parametrize("left", [-1, 0])
def test_an_announcement_expires_at_its_time(left):
    announced = replace(BUNDLE, expires=SERVER)
    with pytest.raises(Refused) as error:
        check_expiry(announced, SERVER - left)
    assert error.value.reason is Reason.ANNOUNCEMENT_EXPIRED


@pytest.mark.parametrize("expires", [None, SERVER + 1])
def test_an_announcement_without_an_end_or_before_it_is_valid(expires):
    check_expiry(replace(BUNDLE, expires=expires), SERVER)


def test_a_round_of_a_valid_manifest_is_answered(make):
    one = started(make)
    assert updates_after(one, SERVER + DAY) == 1
    assert refused(one) == 0


def test_a_round_of_an_expired_manifest_is_not_answered_counted_and_logged(make, caplog):
    one = started(make)
    with caplog.at_level(logging.WARNING, "edge_sdk.session.dispatcher"):
        assert updates_after(one, SERVER - DAY) == 0
    assert refused(one) == 1
    (line,) = [r.getMessage() for r in caplog.records if "EXPIRED" in r.getMessage()]
    assert "kind=model" in line
    assert "expired 1.0 days ago" in line
    assert updates_after(one, SERVER + DAY, number=2) == 1  # the renewed one


def test_a_manifest_that_is_repeated_after_its_end_is_refused(make):
    """The broker withholds newer ones: the device learns the time from signed messages only."""
    one = started(make)
    assert updates_after(one, SERVER + 14 * DAY) == 1
    one.clock.at += 15 * 86_400.0
    one.broker.cut(one.device.config.id)
    one.run(400, seconds=0.5)
    assert refused(one) >= 1
    assert len(one.server.updates) == 1


def test_an_expired_bundle_is_not_followed_and_the_aggregator_hears_of_it(make):
    one = make()
    one.server.announce_bundle(serial=2, expires=SERVER - 1)
    one.device.start()
    one.run(60)
    one.broker.cut(one.device.config.id)  # the welcome has given the time meanwhile
    one.run(100, seconds=0.5)
    assert refused(one) >= 1
    codes = {(one_.code, one_.id) for one_ in one.server.refusals}
    assert any(code == Reason.ANNOUNCEMENT_EXPIRED for code, _ in codes)


def test_a_bundle_in_force_stays_in_use_when_its_announcement_expires(make):
    one = make()
    one.server.announce_bundle(serial=2, expires=SERVER + DAY)
    one.device.start()
    one.device.observe()
    one.run(40)
    assert updates_after(one, SERVER + 400 * DAY) == 1
    one.clock.at += 2 * 86_400.0
    one.broker.cut(one.device.config.id)
    one.run(100, seconds=0.5)
    assert refused(one) >= 1
    assert updates_after(one, SERVER + 400 * DAY, number=2) == 2


@pytest.mark.parametrize("years", [-57, 20])
def test_a_wrong_clock_of_the_machine_locks_nobody_out(make, monkeypatch, years):
    one = make()
    wrong = SERVER + int(years * 365.25 * DAY)
    monkeypatch.setattr(one.clock, "wall", lambda: wrong + int(one.clock.at * 1000))
    one.server.announce_bundle(serial=2, expires=SERVER + DAY)
    one.device.start()
    one.device.observe()
    one.run(40)
    assert updates_after(one, SERVER + DAY) == 1
    assert refused(one) == 0


def test_a_floor_that_was_raised_wrongly_is_taken_back_and_announcements_judged_again(make):
    """An aggregator with a clock 300 days ahead has signed the time; its next welcome is right."""
    one = started(make)
    one.device.client._store.set_facts(floor=SERVER + 300 * DAY)
    one.device.kill()
    one.server.open_round(1, 0, weights(one), expires=SERVER + 14 * DAY)
    one.device.start()
    one.device.observe()
    one.run(400, seconds=0.05)
    assert refused(one) >= 1  # before the welcome
    assert len(one.server.updates) == 1  # after it


def test_an_older_announcement_without_an_end_is_accepted(make):
    one = started(make)
    assert updates_after(one, None) == 1
