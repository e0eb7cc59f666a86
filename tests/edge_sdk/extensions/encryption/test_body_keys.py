"""The key of a device: made once, kept, announced, and required of what is sent to the device alone."""

import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.body_keys import PAPER, BodyKeys
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, encrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed, digest, seal, unproved
from edge_sdk.store.store import DeviceStore
from tests.edge_sdk.conftest import AGG_KEY, DEVICE, FLEET, Aggregator

CONTEXT = BodyContext(FLEET, "receipt", AGGREGATOR, DEVICE)


def proved(kind="receipt", clear=None):
    return Sealed(kind, AGGREGATOR, b"\x92", bytes(32), b"", clear)


def test_a_key_is_made_once_and_kept(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        one = BodyKeys.of(store, is_required=True)
    with DeviceStore.open(tmp_path) as store:
        two = BodyKeys.of(store, is_required=True)
        assert two.announced == one.announced
        body = encrypted_body(b"\x92\x80\xc4\x00", one.announced, CONTEXT)
        assert two.decrypt(body, CONTEXT) == b"\x92\x80\xc4\x00"


def test_no_key_is_made_where_none_is_required(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        assert BodyKeys.of(store, is_required=False).announced == b""
        assert store.paper(PAPER) is None


def test_a_key_that_is_not_required_any_more_reads_what_is_on_its_way(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        public = BodyKeys.of(store, is_required=True).announced
        later = BodyKeys.of(store, is_required=False)
    assert later.announced == b""
    later.refuse_clear(proved())
    body = encrypted_body(b"\x92\x80\xc4\x00", public, CONTEXT)
    assert later.decrypt(body, CONTEXT) == b"\x92\x80\xc4\x00"


def test_clear_content_is_refused_and_a_floor_or_a_refusal_is_not():
    one = BodyKeys(DecryptionKey(bytes(32)), is_required=True)
    with pytest.raises(Refused, match="PLAIN_REFUSED"):
        one.refuse_clear(proved())
    one.refuse_clear(proved(clear=b"\x92"))
    one.refuse_clear(proved("floor"))
    one.refuse_clear(proved("refusal"))


def test_the_key_is_announced_again_at_most_once_a_minute():
    one = BodyKeys(DecryptionKey(bytes(32)), is_required=True)
    assert not one.is_hello_due(0.0)
    due = []
    for now in (1.0, 2.0, 60.0, 61.0, 62.0):
        with pytest.raises(Refused):
            one.refuse_clear(proved())
        due.append(one.is_hello_due(now))
    assert due == [True, False, False, True, False]


class EncryptingAggregator(Aggregator):
    """The scripted aggregator; it encrypts what it sends to the device while ``is_encrypting``."""

    is_encrypting, public = True, b""

    def welcome(self, hello, ref):
        self.public = hello.key
        super().welcome(hello, ref)

    def send(self, topic, message, signer, sender, recipient):
        if recipient != DEVICE or not (self.is_encrypting and self.public):
            super().send(topic, message, signer, sender, recipient)
            return
        context = BodyContext(FLEET, message.kind, sender, recipient)
        body = encrypted_body(codec.encode(message), self.public, context)
        way = {"kind": message.kind, "sender": sender, "recipient": recipient, "fleet": FLEET}
        assert self._link.publish(topic, seal(body, signer=signer, **way))


@pytest.fixture
def encrypted(make):
    fleet = make(encryption={"required": True})
    fleet.server.__class__ = EncryptingAggregator
    return fleet


def test_a_device_follows_encrypted_messages_and_refuses_clear_ones(encrypted):
    fleet = encrypted
    client = fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(1, 0, [0.1, 0.2, 0.3, 0.4])
    fleet.run(40)
    assert client._session.counts["accepted"] == 1
    assert len(fleet.server.public) == 32

    fleet.server.is_encrypting = False
    before, hellos = dict(client._session.traffic()), fleet.server.counts["hello"]
    fleet.server.answer(m.CommandMessage(1, "stop"))
    fleet.run(3)
    assert client._session.traffic()["arrived PLAIN_REFUSED"] >= 1
    assert "arrived PLAIN_REFUSED" not in before
    assert not client._session.participation.is_held, "a clear command is not executed"
    fleet.run(20)
    assert fleet.server.counts["hello"] > hellos, "the device announces its key again"

    fleet.server.is_encrypting = True
    fleet.run(400, seconds=1.0)  # the hello is repeated until its answer can be read
    fleet.server.answer(m.CommandMessage(1, "stop"))
    fleet.run(5)
    assert client._session.participation.is_held


def test_a_killed_device_announces_the_same_key(encrypted):
    fleet = encrypted
    fleet.device.start()
    fleet.run(10)
    before = fleet.server.public
    fleet.device.kill()
    fleet.server.public = b""
    fleet.device.start()
    fleet.run(10)
    assert (fleet.server.public, len(before)) == (before, 32)


def test_a_reference_to_an_encrypted_message_is_to_its_clear_body(encrypted):
    """It is encrypted again each time it is sent, and its references must stay the same."""
    fleet = encrypted
    fleet.device.start()
    fleet.run(10)
    command = m.CommandMessage(1, "report")
    fleet.server.answer(command)
    fleet.run(5)
    refs = [one.ref for one in fleet.server.receipts]
    assert refs == [digest(codec.encode(command))[:16]]


def test_an_encrypted_announcement_to_all_is_refused(encrypted):
    fleet = encrypted
    client = fleet.device.start()
    fleet.run(10)
    time = m.TimeMessage(9, 1_800_000_000_000)
    context = BodyContext(FLEET, "time", AGGREGATOR, "_all")
    body = encrypted_body(codec.encode(time), fleet.server.public, context)
    way = {"kind": "time", "sender": AGGREGATOR, "recipient": "_all", "fleet": FLEET}
    payload = seal(body, signer=AGG_KEY, **way)
    assert unproved(payload)[0] == 0x94
    assert fleet.server._link.publish(topics.common(FLEET, "time"), payload)
    fleet.run(3)
    assert client._session.traffic()[f"arrived {Reason.CANNOT_OPEN.name}"] == 1
