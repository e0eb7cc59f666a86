"""The daemon signs a manifest again before devices refuse it, and warns where only the root can."""

from __future__ import annotations

import logging

import pytest

from aggregator.daemon import Daemon
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.operations.signing_keys import root_signatures
from aggregator.rounds.announcements import OVERLAP, VALIDITY
from edge_sdk.protocol.messages import ModelMessage, PartMessage
from firmware_sim.testing.loopback import LoopbackBroker
from tests.aggregator.conftest import ONLINE

DAY = 86_400.0
LONG = ('deadline = "60s"', 'deadline = "720h"')


@pytest.fixture
def serve(still_clock):
    """Start daemons on one broker and one clock, and close them."""
    opened = []

    def make(config, broker):
        daemon = Daemon(config, transport=broker.link("_agg"), clock=still_clock)
        opened.append(daemon)
        daemon.open()
        turns(daemon)
        return daemon

    yield make
    for daemon in opened:
        daemon.close()


def turns(daemon, *puppets):
    for _ in range(6):
        daemon.turn()
        for puppet in puppets:
            puppet.poll()


def later(daemon, clock, days, *puppets):
    clock.now += days * DAY
    turns(daemon, *puppets)


def manifests(puppet):
    return [one for one in puppet.heard if isinstance(one, ModelMessage)]


def warned(caplog):
    said = [record.getMessage() for record in caplog.records]
    return [line for line in said if line.startswith("root signatures expiring")]


@pytest.fixture
def begun(founded, serve, puppets):
    broker = LoopbackBroker()
    config = founded(replacing=[LONG])
    daemon = serve(config, broker)
    (puppet,) = puppets(broker, 1)
    puppet.hello(1)
    turns(daemon, puppet)
    return config, broker, daemon, puppet


def test_a_manifest_is_signed_again_after_half_of_its_validity(begun, still_clock):
    _, _, daemon, puppet = begun
    first = manifests(puppet)[-1]
    assert first.expires == still_clock.wall() + VALIDITY
    parts = sum(isinstance(one, PartMessage) for one in puppet.heard)
    count = len(manifests(puppet))
    later(daemon, still_clock, 6.9, puppet)
    assert len(manifests(puppet)) == count
    later(daemon, still_clock, 0.2, puppet)
    assert len(manifests(puppet)) == count + 1
    again = manifests(puppet)[-1]
    assert again.serial > first.serial
    assert again.expires == still_clock.wall() + VALIDITY
    assert (again.round, again.version, again.phase) == (first.round, first.version, first.phase)
    assert abs(again.until - first.until) <= 1  # the round's own end stays
    assert sum(isinstance(one, PartMessage) for one in puppet.heard) == parts
    later(daemon, still_clock, 0.1, puppet)
    assert len(manifests(puppet)) == count + 1


def test_a_paused_run_is_renewed_and_stays_paused(begun, still_clock):
    _, _, daemon, puppet = begun
    leave(daemon.config.inbox, ControlOrder("pause", "_all"))
    later(daemon, still_clock, 0.1, puppet)
    assert manifests(puppet)[-1].phase == "pause"
    later(daemon, still_clock, 8, puppet)
    found = manifests(puppet)[-1]
    assert (found.phase, found.expires) == ("pause", still_clock.wall() + VALIDITY)


def test_after_an_absence_longer_than_the_validity_the_manifest_is_signed_at_the_start(
    begun, serve, still_clock
):
    config, broker, daemon, puppet = begun
    daemon.close()
    still_clock.now += 20 * DAY
    again = serve(config, broker)
    turns(again, puppet)
    assert manifests(puppet)[-1].expires == still_clock.wall() + VALIDITY


def test_a_clock_that_was_ahead_and_is_right_again_is_noticed(begun, still_clock):
    _, _, daemon, puppet = begun
    later(daemon, still_clock, 300, puppet)
    assert manifests(puppet)[-1].expires == still_clock.wall() + VALIDITY
    wall = still_clock.wall
    still_clock.wall = lambda: wall() - int(300 * DAY * 1000)
    turns(daemon, puppet)
    still_clock.now += 2
    turns(daemon, puppet)
    assert manifests(puppet)[-1].expires <= still_clock.wall() + VALIDITY


def test_what_the_root_signed_is_valid_for_400_days_and_the_daemon_warns_before(
    begun, still_clock, caplog
):
    _, _, daemon, _ = begun
    signed = root_signatures(daemon._store.announcements.all(), ONLINE.public)
    found = {one.topic.split("/")[-1]: one.until for one in signed}
    assert found == {"keys": 1_800_000_000_000 + OVERLAP, "bundle": 1_800_000_000_000 + OVERLAP}
    with caplog.at_level(logging.WARNING, "aggregator.operations.signing_keys"):
        later(daemon, still_clock, 360)
        assert not warned(caplog)
        later(daemon, still_clock, 11)
        later(daemon, still_clock, 0.5)
    said = warned(caplog)
    assert len(said) == 2  # once a day: the keys, and the bundle
    assert all("days=28" in line for line in said)
