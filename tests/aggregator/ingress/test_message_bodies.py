"""Bodies of messages: clear without a codec, and a codec from the moment at which something needs it."""

import pytest

from aggregator.ingress.message_bodies import BodyCodec, MessageBodies
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, envelope, keys
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.messages import ENCRYPTED, StatusMessage, UpdateMessage

KEY = keys.from_seed(bytes(32))
STATUS = StatusMessage("online", 1, 1)


class Reversed(BodyCodec):
    """Bodies backwards behind the mark of an encrypted one; updates must have it."""

    def decrypt(self, kind, sender, body):
        return body[:0:-1]

    def refuse_clear(self, kind, sender):
        if kind == UpdateMessage.kind:
            raise Refused(Reason.PLAIN_REFUSED, sender)

    def encoded(self, device, message, key):
        return message.kind, bytes([ENCRYPTED]) + codec.encode(message)[::-1]


def sealed(body, kind=StatusMessage.kind):
    return envelope.seal(
        body, kind=kind, sender="m-1", recipient=AGGREGATOR, fleet="north", signer=KEY
    )


def opened(bodies, payload, kind=StatusMessage.kind):
    return bodies.unseal(payload, kind=kind, sender="m-1", key_of=lambda *_: KEY.public)


def hidden():
    return sealed(Reversed().encoded("m-1", STATUS, b"")[1])


def test_without_a_codec_bodies_are_clear_and_encrypted_ones_are_refused():
    bodies = MessageBodies("north")
    assert opened(bodies, sealed(codec.encode(STATUS))).content == codec.encode(STATUS)
    assert bodies.encoded("m-1", STATUS, b"k" * 32) == ("status", codec.encode(STATUS))
    with pytest.raises(Refused, match="CANNOT_OPEN"):
        opened(bodies, hidden())


def test_a_codec_is_loaded_by_the_first_message_that_needs_it():
    loaded = []
    bodies = MessageBodies("north")
    bodies.follow(lambda: loaded.append(1) or Reversed(), is_needed=False)
    assert bodies.encoded("m-1", STATUS, b"") == ("status", codec.encode(STATUS))
    assert opened(bodies, sealed(codec.encode(STATUS))).clear is None
    assert loaded == []
    assert opened(bodies, hidden()).content == codec.encode(STATUS)
    assert bodies.encoded("m-1", STATUS, b"")[1][0] == ENCRYPTED
    assert loaded == [1]


def test_a_codec_that_is_configured_refuses_clear_bodies_at_once():
    bodies = MessageBodies("north")
    bodies.follow(Reversed, is_needed=True)
    with pytest.raises(Refused, match="PLAIN_REFUSED"):
        opened(bodies, sealed(codec.encode(STATUS), "update"), "update")
