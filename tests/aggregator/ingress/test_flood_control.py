"""Flood control: who is dropped, excluded, named, heard again; and what is subscribed to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from aggregator.daemon import Daemon
from aggregator.ingress.flood_control import (
    FloodControl,
    FloodLimits,
    Subscriptions,
    aggregator_filters,
)
from aggregator.operations.control_queue import ControlOrder, leave
from edge_sdk.protocol import topics
from edge_sdk.protocol.messages import WelcomeMessage
from firmware_sim.testing.loopback import LoopbackBroker

SMALL = FloodLimits(burst=10, rate=5.0, burst_bytes=1000, rate_bytes=100.0, tolerated=4)


def sent(control, device, count, now, size=1):
    return sum(control.admits(device, size, now) for _ in range(count))


def test_a_device_that_keeps_to_the_rate_is_never_dropped():
    control = FloodControl(SMALL)
    assert all(sent(control, "m1", 5, float(second)) == 5 for second in range(60))
    assert (control.dropped, control.excluded(60.0)) == (0, frozenset())


def test_a_whole_upload_of_the_largest_body_is_no_flood():
    control = FloodControl()
    assert sent(control, "m1", 256, 0.0, 32_768 + 512) == 256


def test_messages_and_bytes_have_a_limit_each():
    assert sent(FloodControl(SMALL), "m1", 20, 0.0) == 10
    assert sent(FloodControl(SMALL), "m1", 20, 0.0, 200) == 5


def test_some_drops_exclude_and_every_exclusion_is_twice_as_long():
    control, now, lengths = FloodControl(SMALL), 0.0, []
    for _ in range(4):
        sent(control, "m1", 14, now)
        assert control.excluded(now) == {"m1"}
        begun = now
        late = []
        while control.excluded(now):
            assert not control.admits("m1", 1, now)  # what the broker had queued
            late.append(control.consume_backlog())
            now += 10.0
        assert late == [False, True, *[False] * (len(late) - 2)], "once for each exclusion"
        lengths.append(now - begun)
        control.measure(now)
    assert lengths == [60.0, 120.0, 240.0, 480.0]


def test_nobody_is_excluded_for_another_ones_messages():
    control = FloodControl(SMALL)
    sent(control, "m1", 1000, 0.0)
    assert sent(control, "m2", 10, 0.0) == 10
    assert control.excluded(0.0) == {"m1"}


def test_the_sentence_names_the_rate_and_the_remedy():
    control = FloodControl(SMALL)
    for i in range(100):
        control.admits("m1", 50, i / 100)
    (told,) = control.status(1.0).values()
    assert "messages/s" in told
    assert "revoke with: gridfed-aggregator revoke m1" in told


def test_memory_is_bounded_whatever_names_are_made_up():
    control = FloodControl(SMALL)
    for i in range(20_000):
        sent(control, f"m{i}", 1, 0.0, 2000)
    assert len(control._counts) <= 4096
    assert len(control._floods) <= 4096


@dataclass
class Link:
    """Remembers what is subscribed to, as a broker's session does."""

    filters: set[str] = field(default_factory=set)

    def subscribe(self, *filters):
        self.filters |= set(filters)

    def unsubscribe(self, *filters):
        self.filters -= set(filters)


EVERYBODY = set(aggregator_filters("north"))
FLEET = {"m1", "m2", "m3"}


def of(*names):
    ends = [(topics.up("north", n, "+"), topics.status("north", n)) for n in names]
    return {pattern for pair in ends for pattern in pair}


def test_the_excluded_are_not_subscribed_to_and_all_others_are(tmp_path):
    link = Link()
    subscriptions = Subscriptions(link, "north", tmp_path / "excluded.json")
    subscriptions.renew(FLEET)
    assert link.filters == EVERYBODY
    for excluded in ({"m2"}, {"m2", "m3"}, {"m3"}):
        subscriptions.follow(FLEET, frozenset(excluded))
        assert link.filters == of(*(FLEET - excluded))
    subscriptions.follow({*FLEET, "m4"}, frozenset({"m3"}))  # enrolled meanwhile
    assert link.filters == of("m1", "m2", "m4")
    subscriptions.follow(FLEET, frozenset())
    assert link.filters == EVERYBODY
    assert not (tmp_path / "excluded.json").exists()


def test_the_next_process_goes_on_and_leaves_nothing_subscribed(tmp_path):
    link, file = Link(), tmp_path / "excluded.json"
    first = Subscriptions(link, "north", file)
    first.renew(FLEET)
    first.follow(FLEET, frozenset({"m2"}))
    second = Subscriptions(link, "north", file)  # killed in between: the session has it all
    assert second.remembered() == ["m2"]
    second.renew(FLEET)
    second.follow(FLEET, frozenset({"m2"}))
    assert link.filters == of("m1", "m3")
    second.follow(FLEET, frozenset())
    assert link.filters == EVERYBODY


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["a/b"]', "\x00"])
def test_a_file_that_is_none_is_passed_over(tmp_path, text):
    file = tmp_path / "excluded.json"
    file.write_text(text)
    link = Link(of("m1", "m2", "m3"))
    subscriptions = Subscriptions(link, "north", file)
    assert subscriptions.remembered() == []
    subscriptions.renew(FLEET)
    subscriptions.follow(FLEET, frozenset())
    assert link.filters == EVERYBODY


@pytest.fixture
def serve(still_clock):
    opened = []

    def make(config, broker):
        daemon = Daemon(config, transport=broker.link("_agg"), clock=still_clock)
        opened.append(daemon)
        daemon.open()
        daemon.turn()
        return daemon

    yield make
    for daemon in opened:
        daemon.close()


def flood(broker, daemon, name, count=2000):
    link = broker.link(f"{name}-flood")
    link.open()
    link.poll(0)
    for _ in range(count // 10):
        for _ in range(10):
            while not link.publish(topics.up("north", name, "update"), b"x" * 100):
                link.poll(0)
        daemon.turn()
    link.close()


def test_a_daemon_stops_hearing_a_flood_names_it_and_greets_the_others(
    founded, serve, puppets, still_clock
):
    broker, config = LoopbackBroker(), founded()
    daemon = serve(config, broker)
    one, two = puppets(broker)
    flood(broker, daemon, two.name)
    still_clock.now += 1
    daemon.turn()
    assert list(daemon.snapshot.status["flooding"]) == [two.name]
    assert b"gridfed_devices_flooding 1.0" in daemon.metrics.text()
    heard = sum(daemon._ingress.counts.values())
    flood(broker, daemon, two.name)
    assert sum(daemon._ingress.counts.values()) == heard
    one.hello(1)
    for _ in range(6):
        daemon.turn()
        one.poll()
    assert one.last(WelcomeMessage).run == 1
    assert json.loads((config.state / "excluded.json").read_text()) == [two.name]

    still_clock.now += 61  # it stopped: it is heard again
    daemon.turn()
    daemon.turn()
    assert "flooding" not in daemon.snapshot.status
    two.hello(1)
    for _ in range(6):
        daemon.turn()
        two.poll()
    assert two.last(WelcomeMessage).run == 1


def test_messages_that_wait_in_the_broker_long_after_the_exclusion_are_discarded_with_the_session(
    founded, serve, puppets, still_clock
):
    """Twenty are read in a turn: the other devices' messages would wait behind the rest, or be lost."""
    broker, config = LoopbackBroker(), founded()
    daemon = serve(config, broker)
    one, two = puppets(broker)
    for link in [broker.link(f"{two.name}-{n}") for n in range(200)]:
        link.open()
        link.poll(0)
        for _ in range(20):
            assert link.publish(topics.up("north", two.name, "update"), b"x" * 100)
    for _ in range(70):
        daemon.turn()
    still_clock.now += 3
    one.hello(1)
    for _ in range(8):
        daemon.turn()
        one.poll()
    assert daemon._transport.counters["connects"] == 2
    one.hello(2)
    for _ in range(6):
        daemon.turn()
        one.poll()
    assert one.last(WelcomeMessage).run == 1
    assert daemon._transport.counters["connects"] == 2


def test_who_is_revoked_while_it_floods_stays_out(founded, serve, puppets, still_clock):
    broker, config = LoopbackBroker(), founded()
    daemon = serve(config, broker)
    _one, two = puppets(broker)
    flood(broker, daemon, two.name)
    leave(config.inbox, ControlOrder("revoke", two.name))
    still_clock.now += 2
    daemon.turn()
    assert two.name not in daemon._registry.enrolled()
    for _ in range(3):
        still_clock.now += 4000
        daemon.turn()
    before = daemon.metrics.text()
    flood(broker, daemon, two.name, 50)
    assert daemon._link._subscriptions.excluded == {two.name}
    assert b'gridfed_messages_total{kind="update"}' in before
    kept = [line for line in before.splitlines() if b"messages_total" in line]
    assert [
        line for line in daemon.metrics.text().splitlines() if b"messages_total" in line
    ] == kept
