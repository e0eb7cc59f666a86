"""Hostile encrypted messages to a device: whatever they hold is refused by reason, and never an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import Reason
from edge_sdk.extensions.encryption.body_keys import BodyKeys
from edge_sdk.extensions.encryption.encrypted_body import BodyContext, encrypted_body
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol import codec, keys, topics
from edge_sdk.protocol.envelope import seal
from edge_sdk.protocol.messages import ReceiptMessage
from edge_sdk.session.bodies import Bodies
from edge_sdk.session.signed_link import SignedLink
from firmware_sim.testing.loopback import LoopbackBroker

FLEET, DEVICE = "north", "meter-1"
AGGREGATOR, KEY = keys.from_seed(bytes(32)), DecryptionKey(bytes(range(32)))
CONTEXT = BodyContext(FLEET, "receipt", "_agg", DEVICE)
RECEIPT = ReceiptMessage(1, 2, bytes(16), 0, 1, 3)
BODY = encrypted_body(codec.encode(RECEIPT), KEY.public, CONTEXT)
REASONS = {Reason.CANNOT_OPEN, Reason.MALFORMED, Reason.PLAIN_REFUSED, Reason.UNKNOWN_FIELD}


def received(body):
    """Return what a device makes of a signed receipt with this body: messages, and refusals by reason."""
    broker = LoopbackBroker()
    link = SignedLink(
        keys.from_seed(b"d" * 32),
        fleet=FLEET,
        device=DEVICE,
        bodies=Bodies(lambda: BodyKeys(KEY, is_required=True), is_required=True),
    )
    link.connect(broker.link(DEVICE))
    sender = broker.link("_agg")
    sender.open()
    sender.poll(0.0)

    def key_of(_sender, _kid):
        return AGGREGATOR.public

    list(link.poll(0.0, key_of))
    link.subscribe()
    way = {"kind": "receipt", "sender": "_agg", "recipient": DEVICE, "fleet": FLEET}
    payload = seal(body, signer=AGGREGATOR, **way)
    assert sender.publish(topics.down(FLEET, DEVICE, "receipt"), payload)
    found = [one.message for one in link.poll(0.0, key_of)]
    return found, dict(link.refused)


def test_the_message_itself_is_read():
    assert received(BODY) == ([RECEIPT], {})


@given(at=st.integers(0, len(BODY) - 1), mask=st.integers(1, 255))
def test_a_changed_byte_is_refused(at, mask):
    changed = bytearray(BODY)
    changed[at] ^= mask
    found, refused = received(bytes(changed))
    assert found == []
    assert len(refused) == 1
    assert refused.keys() <= REASONS


@given(st.binary(max_size=300))
def test_random_bodies_are_refused(body):
    found, refused = received(body)
    assert found == []
    assert refused.keys() <= REASONS


@given(st.binary(max_size=300))
def test_random_content_under_a_valid_encryption_is_refused(content):
    found, refused = received(encrypted_body(content, KEY.public, CONTEXT))
    assert found == []
    assert refused.keys() <= REASONS
