"""The same scenarios on every broker and both protocols: what the link promises, for real."""

from __future__ import annotations

import uuid

import pytest

from edge_sdk.link import mqtt
from edge_sdk.link.transport import LinkDown, LinkUp

pytestmark = pytest.mark.broker


@pytest.fixture
def name() -> str:
    """A prefix of its own: the broker remembers other tests."""
    return uuid.uuid4().hex[:8]


def test_a_message_is_delivered_unchanged(room, url, protocol, name):
    ear = room.join(url, f"{name}-ear", f"{name}/+/up/+", protocol=protocol)
    mouth = room.join(url, f"{name}-mouth", protocol=protocol)
    sent = [bytes(range(256)), b"", bytes(48_000)]
    for payload in sent:
        assert mouth.link.publish(f"{name}/d/up/chunk", payload, expiry=600)
    room.until(lambda: len(ear.messages) == 3)
    assert ear.payloads == sent
    assert {m.topic for m in ear.messages} == {f"{name}/d/up/chunk"}
    room.until(lambda: mouth.link.room() == 20)


def test_messages_beyond_the_send_window_wait_and_arrive(room, url, protocol, name):
    ear = room.join(url, f"{name}-ear", f"{name}/#", protocol=protocol)
    mouth = room.join(url, f"{name}-mouth", protocol=protocol)
    left = [i.to_bytes(2, "big") for i in range(150)]
    at_once = 0
    while left:
        while mouth.link.publish(f"{name}/t", left[0]):
            left.pop(0)
            at_once += 1
            if not left:
                break
        assert at_once <= 20
        before = mouth.link.room()
        room.until(lambda before=before: mouth.link.room() > before)
        at_once = 20 - mouth.link.room()
    room.until(lambda: len(ear.messages) >= 150)
    assert sorted(set(ear.payloads)) == [i.to_bytes(2, "big") for i in range(150)]


def test_a_retained_message_reaches_later_subscribers_and_can_be_cleared(room, url, protocol, name):
    mouth = room.join(url, f"{name}-mouth", protocol=protocol)
    mouth.link.publish(f"{name}/model", b"version 1", retain=True)
    room.until(lambda: mouth.link.room() == 20)
    ear = room.join(url, f"{name}-ear", f"{name}/model", protocol=protocol)
    room.until(lambda: bool(ear.messages))
    assert (ear.messages[0].payload, ear.messages[0].retained) == (b"version 1", True)
    mouth.link.publish(f"{name}/model", b"", retain=True)
    room.until(lambda: mouth.link.room() == 20)
    late = room.join(url, f"{name}-late", f"{name}/model", protocol=protocol)
    room.serve(0.4)
    assert late.payloads == []


def test_messages_are_queued_for_an_offline_client(room, url, protocol, name):
    ear = room.join(url, f"{name}-ear", f"{name}/#", protocol=protocol)
    mouth = room.join(url, f"{name}-mouth", protocol=protocol)
    ear.link.close()
    room.lines.remove(ear)
    for i in range(10):
        mouth.link.publish(f"{name}/t", bytes([i]))
    room.until(lambda: mouth.link.room() == 20)
    back = room.join(url, f"{name}-ear", protocol=protocol)
    room.until(lambda: len(set(back.payloads)) == 10)


def test_an_unacknowledged_message_is_delivered_again(room, url, protocol, name):
    ear = room.join(url, f"{name}-ear", f"{name}/#", protocol=protocol)
    mouth = room.join(url, f"{name}-mouth", protocol=protocol)
    room.lines.remove(ear)  # nobody acknowledges for it now
    mouth.link.publish(f"{name}/t", b"precious")
    room.until(lambda: mouth.link.room() == 20)
    assert ear.link.poll(5)
    ear.link.cut()
    room.lines.append(ear)
    room.until(lambda: b"precious" in ear.payloads)


def test_the_last_will_is_published_when_the_link_breaks(room, url, protocol, name, monkeypatch):
    monkeypatch.setattr(mqtt, "WILL_DELAY", 1)  # MQTT 5 alone has one
    ear = room.join(url, f"{name}-ear", f"{name}/status", protocol=protocol)
    lost = room.join(
        url,
        f"{name}-d",
        protocol=protocol,
        will=(f"{name}/status", b"lost", True),
        reconnect_min=99,
    )
    lost.link._rng.seed(1)
    lost.link.cut()
    room.until(lambda: b"lost" in ear.payloads)


def test_no_last_will_after_a_regular_disconnect(room, url, protocol, name):
    ear = room.join(url, f"{name}-ear", f"{name}/status", protocol=protocol)
    polite = room.join(url, f"{name}-d", protocol=protocol, will=(f"{name}/status", b"lost", True))
    polite.link.publish(f"{name}/status", b"offline")
    polite.link.close()
    room.lines.remove(polite)
    room.serve(0.5)
    assert ear.payloads == [b"offline"]


def test_a_second_connection_with_the_same_id_closes_the_first(room, url, protocol, name):
    first = room.join(url, f"{name}-me", protocol=protocol, reconnect_min=60.0)
    first.link._rng.seed(0)  # its first draw is 50 s
    second = room.join(url, f"{name}-me", protocol=protocol)
    room.until(lambda: any(isinstance(h, LinkDown) for h in first.heard))
    assert second.link.is_up
    assert not first.link.is_up


def test_a_broken_link_reconnects(room, url, protocol, name):
    line = room.join(url, f"{name}-a", f"{name}/#", protocol=protocol)
    line.link.cut()
    room.until(lambda: sum(isinstance(h, LinkUp) for h in line.heard) == 2)
    room.subscribe(line, f"{name}/#")
    line.link.publish(f"{name}/t", b"again")
    room.until(lambda: b"again" in line.payloads)
    assert line.link.counters["connects"] == 2


def test_ten_links_share_one_poller(room, url, protocol, name):
    lines = [
        room.join(url, f"{name}-{i}", f"{name}/all", f"{name}/{i}/down/#", protocol=protocol)
        for i in range(10)
    ]
    lines[0].link.publish(f"{name}/all", b"model")
    for i, line in enumerate(lines):
        line.link.publish(f"{name}/{(i + 1) % 10}/down/task", bytes([i]))
    room.until(lambda: all(len(line.messages) == 2 for line in lines))
    for i, line in enumerate(lines):
        assert set(line.payloads) == {b"model", bytes([(i - 1) % 10])}
