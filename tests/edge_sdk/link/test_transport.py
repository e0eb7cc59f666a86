"""Messages leave in order, within the window, and one that cannot be carried holds up no other."""

import pytest

from edge_sdk.link.transport import PublishQueue, QueuedPublish
from edge_sdk.protocol.keys import SigningKey
from edge_sdk.protocol.messages import StatusMessage
from edge_sdk.session.signed_link import SignedLink
from firmware_sim.testing.loopback import LoopbackBroker

TOPIC = "gf/1/north/meter/up/update"


@pytest.fixture
def broker():
    return LoopbackBroker(window=2)


@pytest.fixture
def link(broker):
    one = broker.link("meter")
    one.open()
    one.poll(0)
    return one


@pytest.fixture
def queue():
    sent, refused = [], []
    one = PublishQueue(
        on_published=lambda message: sent.append(message.payload),
        on_refused=lambda message, _error: refused.append(message.payload),
    )
    one.sent, one.refused = sent, refused
    return one


def messages(*payloads, **options):
    return [QueuedPublish(TOPIC, payload, **options) for payload in payloads]


def test_messages_beyond_the_window_wait_in_order(queue, link):
    for one in messages(b"1", b"2", b"3"):
        queue.append(one)
    queue.flush(link)
    assert (queue.sent, len(queue)) == ([b"1", b"2"], 1)
    link.poll(0)
    queue.flush(link)
    assert (queue.sent, len(queue)) == ([b"1", b"2", b"3"], 0)


def test_a_message_of_quality_0_needs_no_room_in_the_window(queue, link):
    for one in (*messages(b"1", b"2"), *messages(b"3", qos=0)):
        queue.append(one)
    queue.flush(link)
    assert queue.sent == [b"1", b"2", b"3"]


def test_a_message_that_the_link_cannot_carry_is_dropped_and_reported(queue, broker, link):
    broker.max_payload = 4
    for one in messages(b"large", b"ok"):
        queue.append(one)
    queue.flush(link)
    assert (queue.refused, queue.sent, len(queue)) == ([b"large"], [b"ok"], 0)


def test_truncation_removes_the_newest_and_nothing_is_sent_without_a_link(queue, broker, link):
    for one in messages(b"1", b"2", b"3"):
        queue.append(one)
    queue.truncate(1)
    broker.cut("meter", stay_down=True)
    queue.flush(link)
    assert (queue.sent, len(queue)) == ([], 1)
    queue.clear()
    assert len(queue) == 0


def test_a_device_drops_a_message_that_its_link_cannot_carry(broker, link, caplog):
    device = SignedLink(SigningKey.from_seed(bytes(32)), fleet="north", device="meter")
    device.connect(link)
    status = StatusMessage(state="online", life=1, conn=1)
    broker.max_payload = 10
    device.publish_status(status)
    broker.max_payload = 65_536
    device.publish_status(status)
    assert "publish failed" in caplog.text
    assert device.bytes_up == len(device.sealed(status))
