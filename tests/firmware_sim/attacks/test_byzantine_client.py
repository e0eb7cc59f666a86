"""A spoilt link spoils uploads and nothing else, and holds back what it is told to."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.protocol import topics
from firmware_sim.attacks import bind
from firmware_sim.attacks.byzantine_client import TamperingLink
from firmware_sim.testing.loopback import LoopbackBroker

UPLOAD = topics.up("north", "meter", "update")
HELLO = topics.up("north", "meter", "hello")


class World:
    def __init__(self, attack, **options):
        self.now = 0.0
        broker = LoopbackBroker(clock=lambda: self.now, window=4)
        self.ear = broker.link("_agg")
        self.link = TamperingLink(
            broker.link("meter"),
            bind(attack, options),
            clock=lambda: self.now,
            rng=np.random.default_rng(0),
        )
        for end in (self.ear, self.link):
            end.open()
            end.poll(0.0)
        self.ear.subscribe("#")

    def heard(self):
        self.link.poll(0.0)
        messages = list(self.ear.poll(0.0))
        for message in messages:
            self.ear.acknowledge(message)
        return [message.payload for message in messages]


@pytest.mark.parametrize("attack", ["delay", "drop", "duplicate", "reorder", "empty_payload"])
def test_messages_other_than_uploads_pass_unchanged(attack):
    one = World(attack)
    assert one.link.publish(HELLO, b"hello")
    assert one.heard() == [b"hello"]


def test_an_upload_is_delayed_as_configured():
    one = World("delay", seconds="5")
    assert one.link.publish(UPLOAD, b"x")
    assert one.heard() == []
    one.now = 4.9
    assert one.heard() == []
    one.now = 5.0
    assert one.heard() == [b"x"]


def test_reordering_delivers_later_uploads_first():
    one = World("reorder")
    sent = [bytes([n]) for n in range(4)]
    for payload in sent:
        assert one.link.publish(UPLOAD, payload)
    heard = []
    for tick in range(40):
        one.now = tick / 10
        heard += one.heard()
    assert sorted(heard) == sent
    assert heard != sent


def test_uploads_are_duplicated_emptied_and_dropped():
    assert copies("duplicate", copies="3") == [b"x"] * 3
    assert copies("empty_payload") == [b""]
    assert copies("drop", share="1.0") == []


def copies(attack, **options):
    one = World(attack, **options)
    one.link.publish(UPLOAD, b"x")
    return one.heard()


def test_the_tampering_link_respects_the_room_of_the_link():
    one = World("delay")
    for _ in range(4):
        one.link.publish(HELLO, b"h")
    assert one.link.room() == 0
    assert not one.link.publish(UPLOAD, b"x")
