"""The broker inside the process: as honest, and as unkind, as a real one."""

from __future__ import annotations

import pytest

from edge_sdk.errors import LinkError
from edge_sdk.link.transport import LinkDown, LinkUp, Message, Transport
from firmware_sim.testing.loopback import LinkFaults, LoopbackBroker, matches


def up(broker: LoopbackBroker, name: str, *filters: str, will=None):
    link = broker.link(name, will)
    link.open()
    assert isinstance(link.poll(0)[0], LinkUp)
    link.subscribe(*filters)
    return link


def heard(link, *, keep: bool = False) -> list[bytes]:
    messages = [h for h in link.poll(0) if isinstance(h, Message)]
    if not keep:
        for message in messages:
            link.acknowledge(message)
    return [m.payload for m in messages]


def test_a_loopback_link_is_a_transport():
    link: Transport = LoopbackBroker().link("a")
    assert not link.is_up
    assert link.room() == 0
    assert not link.publish("t", b"")


@pytest.mark.parametrize(
    ("wanted", "topic", "does"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/+", "a", False),
        ("#", "a/b", True),
        ("a/b", "a", False),
        ("a", "a/b", False),
    ],
)
def test_filters_match_as_in_mqtt_by_both_ways_of_asking(wanted, topic, does):
    broker = LoopbackBroker()
    ear, mouth = up(broker, "ear", wanted), up(broker, "mouth")
    mouth.publish(topic, b"x")
    assert matches(wanted, topic) is does
    assert heard(ear) == ([b"x"] if does else [])


def test_overlapping_filters_bring_a_copy_each():
    broker = LoopbackBroker()
    ear, mouth = up(broker, "ear", "a/#", "a/+", "a/b"), up(broker, "mouth")
    mouth.publish("a/b", b"x")
    assert heard(ear) == [b"x"] * 3


def test_a_late_subscriber_finds_what_was_retained_until_it_is_cleared():
    broker = LoopbackBroker()
    mouth = up(broker, "mouth")
    mouth.publish("m/1", b"old", retain=True)
    mouth.publish("m/1", b"new", retain=True)
    mouth.publish("m/2", b"passing")
    late = up(broker, "late", "m/#")
    (message,) = (h for h in late.poll(0) if isinstance(h, Message))
    assert (message.payload, message.retained) == (b"new", True)
    mouth.publish("m/1", b"", retain=True)
    assert heard(up(broker, "later", "m/#")) == []


def test_a_session_keeps_what_came_while_its_client_was_away():
    broker = LoopbackBroker()
    ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
    broker.cut("ear", stay_down=True)
    assert [type(h) for h in ear.poll(0)] == [LinkDown]
    mouth.publish("t", b"1")
    assert ear.poll(0) == ()
    broker.restore("ear")
    assert heard(ear) == [b"1"]


def test_only_unacknowledged_messages_are_delivered_again():
    broker = LoopbackBroker()
    ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
    mouth.publish("t", b"1")
    mouth.publish("t", b"2")
    first, _ = ear.poll(0)
    ear.acknowledge(first)
    broker.cut("ear")
    ear.poll(0)
    assert heard(ear) == [b"2"]


def test_a_reader_that_never_acknowledges_is_sent_no_more_than_the_window():
    broker = LoopbackBroker(window=3)
    ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
    for i in range(5):
        mouth.publish("t", bytes([i]))
        mouth.poll(0)
    assert len(heard(ear, keep=True)) == 3
    assert heard(ear) == []


def test_a_writer_runs_out_of_room_until_its_next_poll():
    mouth = up(LoopbackBroker(window=2), "mouth")
    assert [mouth.publish("t", b"") for _ in range(3)] == [True, True, False]
    assert mouth.room() == 0
    assert mouth.publish("t", b"", qos=0)
    mouth.poll(0)
    assert mouth.room() == 2


def test_the_will_is_published_after_a_loss_and_not_after_a_close():
    broker = LoopbackBroker()
    ear = up(broker, "ear", "s/#")
    up(broker, "a", will=("s/a", b"lost", True))
    b = up(broker, "b", will=("s/b", b"lost", True))
    broker.cut("a")
    b.close()
    assert heard(ear) == [b"lost"]
    assert broker.retained() == {"s/a": b"lost"}


def test_a_will_that_is_asked_for_is_fresh_at_every_connection():
    broker, count = LoopbackBroker(), iter(range(9))
    link = up(broker, "a", will=lambda: ("s", bytes([next(count)]), True))
    for expected in (0, 1):
        broker.cut("a")
        assert broker.retained() == {"s": bytes([expected])}
        link.poll(0)
        link.poll(0)


def test_the_same_name_twice_takes_the_connection_over():
    broker = LoopbackBroker()
    first = up(broker, "a", "t")
    second = up(broker, "a")
    assert [type(h) for h in first.poll(0)] == [LinkDown]
    up(broker, "mouth").publish("t", b"x")
    assert heard(second) == [b"x"]


def test_a_restart_forgets_sessions_and_retained_or_does_not():
    for forget in (True, False):
        broker = LoopbackBroker()
        ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
        mouth.publish("r", b"kept", retain=True)
        broker.restart(forget=forget)
        for link in (ear, mouth, ear, mouth):
            link.poll(0)
        assert ear.is_up
        mouth.publish("t", b"x")
        assert heard(ear) == ([] if forget else [b"x"])
        assert bool(broker.retained()) is not forget


def test_a_stopped_broker_accepts_no_connection():
    broker = LoopbackBroker()
    link = up(broker, "a")
    broker.is_running = False
    assert [type(h) for h in link.poll(0)] == [LinkDown]
    assert link.poll(0) == ()
    broker.is_running = True
    assert [type(h) for h in link.poll(0)] == [LinkUp]


def test_a_payload_beyond_the_limit_is_refused_aloud():
    link = up(LoopbackBroker(max_payload=10), "a")
    with pytest.raises(LinkError, match="accepts at most 10"):
        link.publish("t", bytes(11))


def faulty(seed: int, **faults: float) -> list[int]:
    now = [0.0]
    broker = LoopbackBroker(faults=LinkFaults(**faults), seed=seed, clock=lambda: now[0])
    ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
    got: list[int] = []
    for i in range(100):
        mouth.publish("t", bytes([i]))
        mouth.poll(0)
        now[0] += 0.1
        got += [p[0] for p in heard(ear)]
    now[0] += 100
    while more := heard(ear):
        got += [p[0] for p in more]
    return got


def test_each_fault_has_its_effect_and_the_seed_repeats_it():
    assert faulty(1) == list(range(100))
    assert 30 < len(faulty(1, drop=0.5)) < 70
    assert len(faulty(1, duplicate=0.5)) > 120
    delayed = faulty(1, delay=3.0)
    assert sorted(delayed) == list(range(100))
    assert delayed != sorted(delayed)
    assert faulty(2, drop=0.2, duplicate=0.2, delay=1.0) == faulty(
        2, drop=0.2, duplicate=0.2, delay=1.0
    )
    assert faulty(2, drop=0.2) != faulty(3, drop=0.2)


def test_reorder_lets_a_message_overtake():
    broker = LoopbackBroker(faults=LinkFaults(reorder=1.0), seed=4)
    ear, mouth = up(broker, "ear", "t"), up(broker, "mouth")
    for i in range(10):
        mouth.publish("t", bytes([i]))
    got = heard(ear)
    assert sorted(got) == [bytes([i]) for i in range(10)]
    assert got != sorted(got)


def test_unsubscribed_is_silent():
    broker = LoopbackBroker()
    ear, mouth = up(broker, "ear", "t", "u"), up(broker, "mouth")
    ear.unsubscribe("t")
    mouth.publish("t", b"1")
    mouth.publish("u", b"2")
    assert heard(ear) == [b"2"]
