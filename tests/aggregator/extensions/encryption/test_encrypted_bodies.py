"""Keys that devices announce: what is encrypted to them, what replaces them, and what is refused."""

import sqlite3

import pytest

from aggregator.extensions.encryption.encrypted_bodies import (
    AnnouncedKey,
    AnnouncedKeys,
    EncryptedBodies,
)
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import Reason
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, decrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.messages import KINDS, RefusalMessage, StatusMessage
from tests.aggregator.rig import FLEET, SIGNER, Desk, Device, read

KEY, OTHER = DecryptionKey(bytes(range(32))), DecryptionKey(bytes(range(1, 33)))


class EncryptingDesk(Desk):
    """A desk whose aggregator can encrypt, from the first key that a device announces."""

    def _begin(self):
        super()._begin()
        self.encrypt(is_needed=bool(self.announced()))

    def encrypt(self, *, is_needed=True, are_required=False):
        def codec():
            signs = self.registry.is_signed_by
            return EncryptedBodies(
                FLEET, lambda _kid: None, self.store, signs, are_required=are_required
            )

        self.bodies.follow(codec, is_needed=is_needed)

    def announced(self):
        return self.store.table(AnnouncedKeys).all()


@pytest.fixture
def desk(tmp_path):
    one = EncryptingDesk(tmp_path, devices=("meter-1", "meter-2"))
    yield one
    one.close()


def bodies(desk):
    """Return kind and body of the last answers, as a broker sees them."""
    answers = desk.taken.answers
    return [(topics.parse(one.topic).kind, envelope.unproved(one.payload)) for one in answers]


def opened(answer, key=KEY, name="meter-1"):
    """Return an answer as the device with this key reads it."""
    address = topics.parse(answer.topic)
    sealed = envelope.unseal(
        answer.payload,
        kind=address.kind,
        sender="_agg",
        recipient=name,
        fleet=FLEET,
        key_of=lambda *_: SIGNER.public,
        decrypt=lambda kind, sender, body: decrypted_body(
            body, {key.kid: key}.get, BodyContext(FLEET, kind, sender, name)
        ),
    )
    assert sealed.clear is not None
    return codec.decode(KINDS[address.kind], sealed.content)


def send(device, message):
    """Send a message; return the answers as they are."""
    topic = topics.up(FLEET, device.name, message.kind)
    if isinstance(message, StatusMessage):
        topic = topics.status(FLEET, device.name)
    device.desk.taken = device.desk.intake.receive(envelope_of(topic, device.seal(message)))
    return device.desk.taken.answers


def envelope_of(topic, payload):
    from edge_sdk.link.transport import Message  # noqa: PLC0415

    return Message(topic, payload)


def greeted(desk, key=KEY, life=1):
    """Return a device whose hello of this life announced a key."""
    device = Device(desk)
    (welcome,) = send(device, device.hello(life=life, key=key.public))
    assert opened(welcome, key).life == life
    device.life = life
    return device


def test_everything_after_a_hello_with_a_key_is_encrypted_to_it(desk):
    device = greeted(desk)
    command = desk.store.commands.issue("meter-1", "report", {"days": 2.0})
    (receipt,) = send(device, device.update())
    assert opened(receipt).code == Reason.ACCEPTED
    (grant,) = send(device, device.offer(device.update()))
    assert opened(grant).kind == "grant"
    answers = send(device, device.hello(life=2, key=KEY.public))
    assert [opened(one).kind for one in answers] == ["welcome", "command"]
    assert opened(answers[1]) == command
    assert {body[0] for _, body in bodies(desk)} == {0x94}


def test_a_device_without_a_key_is_answered_in_the_clear(desk):
    greeted(desk)
    (welcome,) = Device(desk, "meter-2").greet()
    assert welcome.kind == "welcome"


def test_the_key_survives_a_crash_of_the_aggregator(desk):
    device = greeted(desk)
    desk.crash()
    (receipt,) = send(device, device.update())
    assert opened(receipt).code == Reason.ACCEPTED


def test_a_newer_hello_replaces_the_key_and_a_replayed_one_does_not(desk):
    device = greeted(desk, OTHER)
    old = device.hello(life=1, key=OTHER.public)
    (welcome,) = send(device, device.hello(life=2, key=KEY.public))
    assert opened(welcome).life == 2
    device.life = 2
    (floor,) = send(device, old)
    assert opened(floor, OTHER).life == 2, "the answer is for the holder of that hello's key"
    (receipt,) = send(device, device.update())
    assert opened(receipt).code == Reason.ACCEPTED


def test_a_device_that_lost_its_store_reads_the_floor_with_its_new_key(desk):
    greeted(desk, OTHER, life=3)
    (floor,) = send(Device(desk), Device(desk).hello(life=1, key=KEY.public, lost=True))
    assert opened(floor).life == 3


def test_a_newer_hello_without_a_key_turns_encryption_off(desk):
    device = greeted(desk)
    (welcome,) = device.greet()
    assert welcome.life == 2
    assert desk.announced() == {}


def test_a_key_is_not_used_under_another_identity(desk):
    greeted(desk)
    desk.registry.enrol(EnrolledDevice("meter-1", (keys.from_seed(bytes(32)).public,)))
    assert desk.bodies.key_of("meter-1") == b""


def test_where_keys_are_required_a_hello_without_one_is_refused_and_counted(desk):
    desk.encrypt(are_required=True)
    (refusal,) = Device(desk).greet()
    assert (refusal.code, desk.intake.counts["PLAIN_REFUSED"]) == (Reason.PLAIN_REFUSED, 1)
    assert desk.store.ledgers.get("meter-1").top == 0
    greeted(desk)


def test_where_keys_are_required_no_content_is_sent_to_a_device_without_one(desk):
    device = Device(desk)
    device.greet()
    desk.encrypt(are_required=True)
    (answer,) = device.say(device.update())
    assert isinstance(answer, RefusalMessage)
    assert answer.code == Reason.SAY_HELLO


def test_a_refused_hello_is_answered_to_its_own_key(desk):
    greeted(desk, OTHER)
    device = Device(desk)
    (refusal,) = send(device, device.hello(wire=(2, 3), life=2, key=KEY.public))
    assert opened(refusal).code == Reason.UPGRADE_REQUIRED


def test_a_key_of_small_order_is_refused(desk):
    device = Device(desk)
    (refusal,) = [read(one) for one in send(device, device.hello(key=bytes(32)))]
    assert refusal.code == Reason.CANNOT_OPEN
    assert desk.announced() == {}


def test_a_file_of_schema_8_has_no_encryption_keys_until_it_is_upgraded(tmp_path):
    file, key = tmp_path / "fleet.db", AnnouncedKey(bytes(8), bytes(range(32)))
    open_store(file).close()
    with sqlite3.connect(file) as db:
        db.executescript("DROP TABLE device_keys; PRAGMA user_version = 8;")
    with open_store(file, read_only=True) as store:
        assert store.table(AnnouncedKeys).all() == {}
        assert not store.has_rows("device_keys")
    with open_store(file) as store:
        store.table(AnnouncedKeys).save("meter-1", key)
    with open_store(file) as store:
        assert store.has_rows("device_keys")
        assert store.table(AnnouncedKeys).all() == {"meter-1": key}
        store.table(AnnouncedKeys).save("meter-1", None)
        assert store.table(AnnouncedKeys).all() == {}
