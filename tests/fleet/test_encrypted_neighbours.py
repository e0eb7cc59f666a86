"""Neighbours encrypt to each other: what a broker sees, a lost store, and a neighbour without a key."""

from __future__ import annotations

import shutil

import pytest

from edge_sdk.errors import Refused
from edge_sdk.extensions.encryption.body_keys import PAPER
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, decrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.extensions.inspection import status
from edge_sdk.extensions.peers.messages import PeerMessage
from edge_sdk.protocol import codec, envelope, topics
from edge_sdk.store.store import DeviceStore
from tests.fleet.street import Street, ring
from tests.fleet.test_hosting import among, hosted
from tests.fleet.test_neighbours import NAMES, SOUND, Block


def require_key(path):
    with path.open("a", encoding="utf-8") as file:
        file.write("\n[encryption]\nrequired = true\n")


class Tap:
    """A client of the loopback broker that reads every topic."""

    def __init__(self, broker):
        self.link = broker.link("tap")
        self.link.open()
        self.link.poll(0.0)
        self.link.subscribe("#")
        self.seen = []

    def read(self):
        for one in self.link.poll(0.0):
            if hasattr(one, "payload") and one.payload:
                self.seen.append((one.topic, bytes(one.payload)))
                self.link.acknowledge(one)
        return self.seen

    def peers(self):
        """Return sender, recipient, kind and body of the messages between neighbours."""
        found = [(topics.parse(topic), raw) for topic, raw in self.read()]
        return [
            (at.id, at.tail, envelope.kind_of(raw), envelope.unproved(raw))
            for at, raw in found
            if at is not None and at.direction == "peer"
        ]


def encrypted(world, method="dfl_sgd", **settings):
    """Return a hosted neighbourhood whose devices require encryption, and a tap."""
    one = world(
        devices=4,
        run={
            "quorum": 3,
            "deadline": "1h",
            "method": method,
            "settings": {"rate": 0.02, "interval": 1.0, "deadline": 3.0, **settings},
        },
    )
    for number in range(4):
        require_key(one.folder / f"home-{number}.toml")
    tap = Tap(one.broker)
    one.start_all()
    return one, tap


def key_of(folder):
    with DeviceStore.open(folder, read_only=True) as store:
        return DecryptionKey(store.paper(PAPER))


def stepped(one, tap, numbers, step):
    def is_there():
        tap.read()
        return all(among(one, n)["step"] >= step for n in numbers)

    return is_there


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
def test_a_broker_reads_nothing_between_neighbours(world, method):
    one, tap = encrypted(world, method, total_steps=5)
    one.until(stepped(one, tap, range(4), 5))
    bodies = tap.peers()
    assert {kind for _, _, kind, _ in bodies} == {"peer", "settle"}
    assert {body[0] for *_, body in bodies} == {0x94}
    keys = {f"home-{n}": key_of(one.folder / f"home-{n}") for n in range(4)}
    everything = [raw for _, raw in tap.seen]
    read = 0
    for sender, recipient, kind, body in bodies:
        context = BodyContext("north", kind, sender, recipient)
        key = keys[recipient]
        clear = decrypted_body(body, {key.kid: key}.get, context)
        if kind == "peer":
            message = codec.decode(PeerMessage, clear)
            if message.step:  # the first model is the announced one
                assert not any(message.blob[:512] in raw for raw in everything)
                read += 1
        other = keys[sender]
        with pytest.raises(Refused, match="CANNOT_OPEN"):
            decrypted_body(body, lambda _kid, other=other: other, context)
    assert read >= 4 * 4


def test_clear_neighbours_are_read_by_a_broker(world):
    """What the tests above search for is found where nothing is encrypted."""
    one = hosted(world, "dfl_sgd", total_steps=3)
    tap = Tap(one.broker)
    one.until(stepped(one, tap, range(4), 3))
    blobs = [
        codec.decode(PeerMessage, body).blob for _, _, kind, body in tap.peers() if kind == "peer"
    ]
    assert blobs
    assert all(any(blob[:512] in raw for _, raw in tap.seen) for blob in blobs)


def test_neighbours_continue_with_the_new_key_of_one_that_lost_its_store(world):
    one, tap = encrypted(world, total_steps=40)
    one.until(stepped(one, tap, range(4), 3))
    epoch, before = among(one, 0)["epoch"], key_of(one.folder / "home-1")
    one.die(1)
    shutil.rmtree(one.folder / "home-1")
    one.start(1)
    one.until(stepped(one, tap, [1], 8))
    after = key_of(one.folder / "home-1")
    assert after.kid != before.kid
    bodies = [body for _, recipient, _, body in tap.peers() if recipient == "home-1"]
    assert any(after.kid in body for body in bodies[-4:])
    assert among(one, 0)["epoch"] == epoch, "the exchange was not begun again"
    used = one.clients[0]._session.counts["links used"]
    one.until(lambda: one.clients[0]._session.counts["links used"] >= used + 4)
    assert {body[0] for *_, body in tap.peers()} == {0x94}


def test_a_killed_daemon_and_a_killed_device_change_nothing(world):
    one, tap = encrypted(world, total_steps=14)
    one.until(stepped(one, tap, range(4), 2))
    one.kill_daemon()
    one.die(2)
    one.start(2)
    one.until(stepped(one, tap, range(4), 5))
    one.start_daemon()
    one.until(stepped(one, tap, range(4), 14))
    assert {body[0] for *_, body in tap.peers()} == {0x94}
    assert not one.clients[0]._session.traffic().get("arrived CANNOT_OPEN")


def test_an_older_list_of_keys_is_ignored(world):
    """A broker may replay a list that was signed before a neighbour announced another key."""
    one, tap = encrypted(world, total_steps=60)
    one.until(stepped(one, tap, range(4), 2))
    topic = topics.down("north", "home-0", "task")
    old = [raw for at, raw in tap.read() if at == topic]
    before = key_of(one.folder / "home-1")
    one.die(1)
    shutil.rmtree(one.folder / "home-1")
    one.start(1)
    one.until(stepped(one, tap, [1], 6))
    after = key_of(one.folder / "home-1").kid
    replay = one.broker.link("replay")
    replay.open()
    replay.poll(0.0)
    for raw in old:
        assert replay.publish(topic, raw)
    seen = len(tap.peers())
    step = among(one, 0)["step"]
    one.until(stepped(one, tap, [0], step + 3))
    sent = [body for a, b, _, body in tap.peers()[seen:] if (a, b) == ("home-0", "home-1")]
    assert sent
    assert all(after in body for body in sent[1:])
    assert not any(before.kid in body for body in sent[1:])


# --- without an aggregator


@pytest.fixture
def block(tmp_path):
    made = []

    def make(**options):
        made.append(Block(Street(tmp_path, ring(NAMES), "dfl_sgd", say=options), SOUND))
        return made[-1]

    yield make
    for one in made:
        one.close()


def restart(one, known=NAMES):
    """Stop every device; start it with encryption and the keys that ``status`` shows."""
    for client in one.clients.values():
        client.close()
    for name in NAMES:
        require_key(one.street.path(name))
    keys = {}
    for name in NAMES:  # each draws its key at a first start
        one.start(name)
    for client in one.clients.values():
        client.close()
    for name in NAMES:
        keys[name] = status.status(one.street.config(name))["encryption_key"]
    for name in known:
        near = {other: keys[other] for other in one.street.graph[name]}
        one.street.write(name, encryption_keys=near)
        require_key(one.street.path(name))
    for name in NAMES:
        one.start(name)


def test_without_an_aggregator_the_keys_are_configured(block):
    one = block(total_steps=6)
    restart(one)
    tap = Tap(one.broker)
    one.until(lambda: tap.read() is not None and all(one.step(n) >= 6 for n in NAMES))
    assert {body[0] for *_, body in tap.peers()} == {0x94}
    assert all(c._session.counts["links used"] >= 10 for c in one.clients.values())


def test_a_device_that_requires_encryption_sends_nothing_to_a_neighbour_without_a_key(block):
    one = block(total_steps=3)
    restart(one, known=NAMES[1:])
    tap = Tap(one.broker)
    one.until(lambda: tap.read() is not None and all(one.step(n) >= 3 for n in NAMES))
    assert NAMES[0] not in {sender for sender, *_ in tap.peers()}
    assert one.clients[NAMES[0]]._session.traffic()["arrived CANNOT_OPEN"] > 0
    assert one.clients[NAMES[0]]._session.counts["links used"] == 0


def test_a_clear_neighbour_is_refused_and_counted(block):
    """A downgrade: one neighbour sends in the clear to a device that requires encryption."""
    one = block(total_steps=3)
    restart(one)
    for client in one.clients.values():
        client.close()
    one.street.write(NAMES[0])
    for name in NAMES:
        one.start(name)
    one.until(lambda: one.step(NAMES[2]) >= 3)
    near = one.street.graph[NAMES[0]]
    assert all(one.clients[n]._session.traffic().get("arrived PLAIN_REFUSED") for n in near)
    assert one.clients[NAMES[0]]._session.counts["links used"] == 0
