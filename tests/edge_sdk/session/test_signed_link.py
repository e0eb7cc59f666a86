"""What arrives while the disk is full is not lost: above all not that the link came up."""

from __future__ import annotations

import pytest

from edge_sdk.errors import StoreFull
from edge_sdk.link.transport import LinkDown, LinkUp, Message
from edge_sdk.protocol.keys import SigningKey
from edge_sdk.session.signed_link import SignedLink


class Link:
    """Gives what it was told, once."""

    is_up = True

    def open(self):
        pass

    def __init__(self, *happened):
        self.happened, self.acknowledged, self.waited = list(happened), [], []

    def poll(self, timeout):
        self.waited.append(timeout)
        given, self.happened = tuple(self.happened), []
        return given

    def acknowledge(self, message):
        self.acknowledged.append(message)


@pytest.fixture
def post():
    def made(*happened):
        key = SigningKey.from_seed(bytes(32))
        one = SignedLink(key, fleet="north", device="meter")
        one.connect(Link(*happened))
        return one

    return made


def unknown(_sender, _kid):
    return None


def test_an_event_that_met_a_full_disk_is_yielded_again_before_later_ones(post):
    one = post(LinkUp(65_536), LinkDown("cut"))
    with pytest.raises(StoreFull):  # noqa: PT012 - the loop is the consumer that fails
        for happening in one.poll(1.0, unknown):
            assert isinstance(happening, LinkUp)
            raise StoreFull("no space left")
    again = list(one.poll(1.0, unknown))
    assert [type(h) for h in again] == [LinkUp, LinkDown]
    assert one.link.waited == [1.0, 0.0], "there is work: it does not wait for more"
    assert list(one.poll(1.0, unknown)) == []


def test_an_unverified_message_is_acknowledged_and_dropped(post):
    noise = Message("gf/1/north/meter/down/receipt", b"noise")
    one = post(noise)
    assert list(one.poll(0.0, unknown)) == []
    assert one.link.acknowledged == [noise]
    assert one.bytes_down == 5
