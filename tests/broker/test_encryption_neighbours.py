"""Neighbours encrypt to each other over a real broker: what it sees, and kills of both ends."""

from __future__ import annotations

import pytest

from edge_sdk.extensions.encryption.body_keys import PAPER
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, decrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.extensions.peers.messages import PeerMessage
from edge_sdk.protocol import codec, envelope, topics
from edge_sdk.store.store import DeviceStore
from tests.broker.test_encryption import Listener
from tests.broker.test_neighbours import hosted

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def require_key(one, name):
    """Stop a device, let it require encryption, and start it again."""
    one.kill(name)
    with one.street.path(name).open("a", encoding="utf-8") as file:
        file.write("\n[encryption]\nrequired = true\n")
    one.start(name)


def peers(ear):
    """Return sender, recipient, kind and body of the messages between neighbours."""
    found = [(topics.parse(one.topic), bytes(one.payload)) for one in tuple(ear.seen)]
    return [
        (at.id, at.tail, envelope.kind_of(raw), envelope.unproved(raw))
        for at, raw in found
        if at is not None and at.direction == "peer" and raw
    ]


def test_a_broker_reads_nothing_between_neighbours_through_kills(tmp_path):
    with hosted(tmp_path, "dfl_sgd", total_steps=10_000) as (one, _):
        ear = Listener(one.street.url)
        try:
            one.until(lambda: all(one.step(name) >= 1 for name in one.running))
            clear = [
                codec.decode(PeerMessage, body).blob
                for *_, kind, body in peers(ear)
                if kind == "peer"
            ]
            payloads = [bytes(x.payload) for x in tuple(ear.seen) if "/_all/" not in x.topic]
            assert any(clear[-1][:512] in raw for raw in payloads), "the search finds clear models"
        finally:
            ear.stop()
        for name in list(one.running):
            require_key(one, name)
        ear = Listener(one.street.url)
        try:
            for name in ("home-01", "home-02"):
                begin = {other: one.step(other) for other in one.running}
                one.until(lambda begin=begin: all(one.step(n) > s + 1 for n, s in begin.items()))
                one.kill(name)
                one.start(name)
            begin = {other: one.step(other) for other in one.running}
            one.until(lambda: all(one.step(n) > s + 2 for n, s in begin.items()))
            used = one.used()
            assert any(
                used["home-01"][step] for step in range(begin["home-01"], one.step("home-01"))
            )
        finally:
            ear.stop()
        one.stop()
        keys = {}
        for name in one.running:
            with DeviceStore.open(tmp_path / name, read_only=True) as store:
                keys[name] = DecryptionKey(store.paper(PAPER))
    bodies = peers(ear)
    assert {body[0] for *_, body in bodies} == {0x94}
    own = [
        one for one in ear.seen if "/_all/" not in one.topic
    ]  # the first model is announced to all
    read = 0
    for sender, recipient, kind, body in bodies[-40:]:
        key = keys[recipient]
        context = BodyContext("street", kind, sender, recipient)
        content = decrypted_body(body, {key.kid: key}.get, context)
        if kind == "peer":
            message = codec.decode(PeerMessage, content)
            found = {x.topic for x in own if message.blob[:512] in bytes(x.payload)}
            assert not found, message.step
            read += 1
    assert read
