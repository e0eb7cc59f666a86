"""The link against a puppet that says, byte by byte, what a broker might."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import resource
import socket
import struct
import time

import paho.mqtt
import pytest

from edge_sdk.errors import LinkError
from edge_sdk.link.mqtt import LARGEST, LARGEST_UPDATE, WINDOW, Broker, MqttLink, Poller
from edge_sdk.link.transport import LinkDown, LinkUp, Message

OK5, OK4 = b"\x20\x03\x00\x00\x00", b"\x20\x02\x00\x00"


def connack(properties: bytes = b"", reason: int = 0) -> bytes:
    return bytes([0x20, 3 + len(properties), 0, reason, len(properties)]) + properties


def receive_maximum(number: int) -> bytes:
    return b"\x21" + struct.pack("!H", number)


class Puppet:
    """A listener; the test is its brain."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.peer: socket.socket | None = None

    def accept(self, link: MqttLink) -> None:
        """Take the link's next connection; what the link reports meanwhile is kept for later."""
        if self.peer is not None:
            self.peer.close()
        self.listener.settimeout(0)
        for _ in range(6000):
            link._poller.serve(0.01)
            with contextlib.suppress(BlockingIOError):
                self.peer, _ = self.listener.accept()
                self.peer.settimeout(60)
                link._poller.serve(0.01)
                return
        raise AssertionError("nobody connected")

    def packet(self) -> bytes:
        """The next whole packet (its remaining length fits four bytes)."""
        head = self.peer.recv(1)
        if not head:
            return b""
        length = shift = 0
        while True:
            byte = self.peer.recv(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        rest = b""
        while len(rest) < length:
            rest += self.peer.recv(length - len(rest))
        return head + rest

    def silent(self) -> bool:
        self.peer.settimeout(0.05)
        try:
            return self.peer.recv(1) == b""
        except TimeoutError:
            return True
        finally:
            self.peer.settimeout(60)

    def close(self) -> None:
        self.listener.close()
        if self.peer is not None:
            self.peer.close()


@pytest.fixture
def puppet():
    one = Puppet()
    yield one
    one.close()


@pytest.fixture
def make(puppet):
    links = []

    def build(*, poller=None, rng=None, **settings) -> MqttLink:
        settings = {"client_id": "me", "reconnect_min": 0.01} | settings
        broker = Broker(url=f"mqtt://127.0.0.1:{puppet.port}", **settings)
        links.append(MqttLink(broker, poller=poller, rng=rng))
        return links[-1]

    yield build
    for link in links:
        link.close()


def greet(puppet: Puppet, link: MqttLink, answer: bytes = OK5) -> bytes:
    """Bring the link up; the CONNECT it sent."""
    link.open()
    puppet.accept(link)
    connect = puppet.packet()
    puppet.peer.sendall(answer)
    return connect


def only(link: MqttLink, kind: type, patience: float = 60.0):
    found = [h for h in link.poll(patience) if isinstance(h, kind)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"url": "mqtt://broker.example"}, "unencrypted"),
        ({"url": "mqtt://10.0.0.1:1883"}, "unencrypted"),
        ({"url": "http://127.0.0.1"}, "not a broker address"),
        ({"url": "mqtts://broker.example"}, "needs ca_file"),
        ({"url": "mqtts://b", "ca_file": "a", "cert_file": "c"}, "set together"),
        ({"url": "mqtt://localhost", "protocol": 3}, "protocol 3"),
        ({"url": "mqtt://localhost", "keepalive": 0}, "keepalive 0"),
        ({"url": "mqtt://localhost", "reconnect_max": 0.0}, "never pauses"),
        ({"url": "mqtt://localhost", "client_id": ""}, "client id"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(settings, complaint):
    with pytest.raises(LinkError, match=complaint):
        Broker(**{"client_id": "me"} | settings)


def test_a_plain_link_to_elsewhere_must_be_asked_for():
    assert Broker(url="mqtt://10.0.0.1", client_id="me", insecure=True).port == 1883
    assert Broker(url="mqtts://10.0.0.1", client_id="me", ca_file="ca").port == 8883


def test_missing_tls_files_are_named():
    with pytest.raises(LinkError, match=r"nowhere\.pem"):
        MqttLink(Broker(url="mqtts://b", client_id="me", ca_file="nowhere.pem"))


def test_a_password_is_not_shown():
    assert "secret" not in repr(Broker(url="mqtt://localhost", client_id="me", password="secret"))


def test_the_session_is_kept_from_the_first_connect_on(puppet, make):
    connect = greet(puppet, make(will=("s", b"gone", True)))
    flags = connect[8]
    assert not flags & 0x02  # clean start: the library's default would set it the first time
    assert flags & 0x3C == 0x2C  # will, QoS 1, retained
    assert b"\x11" + struct.pack("!I", 86_400) in connect  # session expiry
    assert receive_maximum(WINDOW) in connect
    assert b"\x27" + struct.pack("!I", 65_536) in connect  # maximum packet size
    assert b"\x18" + struct.pack("!I", 30) in connect  # will delay


def test_a_new_session_is_asked_for_once_and_kept_from_then_on(puppet, make):
    """What the broker had queued goes with the old one; a publish in flight is the sender's to repeat."""
    link = make()
    greet(puppet, link)
    link.poll(1)
    assert link.publish("t", b"x")
    link.renew_session("the queue is full")
    assert only(link, LinkDown) == LinkDown("the queue is full")
    puppet.accept(link)
    assert puppet.packet()[8] & 0x02
    puppet.peer.sendall(OK5)
    only(link, LinkUp)
    assert (link.room(), link.counters["abandoned"]) == (WINDOW, 1)
    link.cut()
    puppet.accept(link)
    assert not puppet.packet()[8] & 0x02


def test_the_old_protocol_keeps_its_session_too(puppet, make):
    link = make(protocol=4)
    connect = greet(puppet, link, OK4)
    assert connect[7] == 4
    assert not connect[8] & 0x02
    assert only(link, LinkUp) == LinkUp(LARGEST)
    link.renew_session("it could keep no later one")
    assert link.is_up


def test_the_will_is_asked_for_before_every_connect(puppet, make):
    count = iter(range(9))
    link = make(will=lambda: ("s", b"life-%d" % next(count), True))
    assert b"life-0" in greet(puppet, link)
    link.poll(1)
    link.cut()
    puppet.accept(link)
    assert b"life-1" in puppet.packet()


def test_the_window_is_the_smaller_of_both(puppet, make):
    link = make()
    greet(puppet, link, connack(receive_maximum(3)))
    link.poll(1)
    assert link.room() == 3
    assert [link.publish("t", b"x") for _ in range(5)] == [True] * 3 + [False] * 2
    link.poll(0.05)
    mid = puppet.packet()[4:6]
    puppet.peer.sendall(b"\x40\x02" + mid)
    link.poll(0.1)
    assert link.room() == 1
    assert link.publish("t", b"x")


def test_a_poll_ends_when_an_acknowledgement_makes_room(puppet, make):
    link = make()
    greet(puppet, link, connack(receive_maximum(1)))
    link.poll(1)
    assert link.publish("t", b"x")
    link.poll(0.05)
    puppet.peer.sendall(b"\x40\x02" + puppet.packet()[4:6])
    begun = time.monotonic()
    assert link.poll(3600) == ()
    assert link.room() == 1
    assert time.monotonic() - begun < 600


def test_a_shared_poller_is_served_once(make):
    class Served:
        calls = 0

        def ready(self, *, readable, writable):
            self.calls += 1

    poller, other = Poller(), Served()
    link = make(poller=poller)
    here, there = socket.socketpair()
    with here, there:
        poller.watch(here.fileno(), other)
        there.send(b"x")  # never read, so the descriptor stays ready
        assert link.poll(3600) == ()
        assert other.calls == 1
        poller.forget(here.fileno())


def test_a_generous_server_does_not_widen_it(puppet, make):
    link = make()
    greet(puppet, link, connack(receive_maximum(500)))
    link.poll(1)
    assert link.room() == WINDOW


def test_nothing_is_taken_while_the_link_is_down(make):
    link = make()
    assert link.room() == 0
    assert not link.publish("t", b"x")
    assert not link.publish("t", b"x", qos=0)


def test_publishes_in_flight_are_sent_again_and_count_against_the_window(puppet, make):
    link = make()
    greet(puppet, link)
    link.poll(1)
    for i in range(3):
        link.publish("t", bytes([i]))
    link.poll(0.05)
    puppet.peer.close()
    only(link, LinkDown)
    greet(puppet, link)
    only(link, LinkUp)
    assert link.room() == WINDOW - 3
    link.poll(0.05)
    again = [puppet.packet() for _ in range(3)]
    assert [p[-1] for p in again] == [0, 1, 2]
    assert all(p[0] & 0x08 for p in again)  # marked as duplicates


def test_a_smaller_window_after_a_reconnect_is_not_overrun(puppet, make):
    link = make()
    greet(puppet, link, connack(receive_maximum(5)))
    link.poll(1)
    for _ in range(5):
        link.publish("t", b"x")
    link.poll(0.05)
    puppet.peer.close()
    only(link, LinkDown)
    greet(puppet, link, connack(receive_maximum(2)))
    only(link, LinkDown)
    assert link.counters["abandoned"] == 5
    assert puppet.packet() == b""  # the library alone would have sent all five
    greet(puppet, link, connack(receive_maximum(2)))
    only(link, LinkUp)
    assert link.room() == 2


def test_refused_publishes_and_those_without_subscriber_are_counted_apart(puppet, make):
    link = make()
    greet(puppet, link)
    link.poll(1)
    for reason in (0x87, 0x10, 0x00):
        link.publish("t", b"x")
        link.poll(0.05)
        puppet.peer.sendall(b"\x40\x03" + puppet.packet()[4:6] + bytes([reason]))
        link.poll(0.05)
    counts = link.counters
    assert (counts["publishes"], counts["refused_publishes"], counts["unheard_publishes"]) == (
        3,
        1,
        1,
    )
    assert link.room() == WINDOW


def test_the_servers_packet_limit_bounds_the_payload(puppet, make):
    link = make()
    greet(puppet, link, connack(b"\x27" + struct.pack("!I", 10_000)))
    assert only(link, LinkUp) == LinkUp(9_488)
    with pytest.raises(LinkError, match="at most 9488"):
        link.publish("t", bytes(9_489))


def test_a_server_that_states_a_large_packet_takes_a_whole_update(puppet, make):
    link = make()
    greet(puppet, link, connack(b"\x27" + struct.pack("!I", 1_000_000)))
    assert only(link, LinkUp) == LinkUp(LARGEST_UPDATE)
    assert link.publish("t", bytes(LARGEST_UPDATE))
    with pytest.raises(LinkError, match=f"at most {LARGEST_UPDATE}"):
        link.publish("t", bytes(LARGEST_UPDATE + 1))


@pytest.mark.parametrize(("size", "again"), [(LARGEST, 1), (LARGEST + 1, 0)])
def test_a_large_message_is_not_sent_again_on_the_next_connection(puppet, make, size, again):
    """A line that drops before it has arrived would carry nothing else; its sender has chunks."""
    link, large = make(), connack(b"\x27" + struct.pack("!I", 1_000_000))
    greet(puppet, link, large)
    link.poll(1)
    assert link.publish("t", bytes(size))
    link.poll(0.05)
    puppet.peer.close()
    only(link, LinkDown)
    greet(puppet, link, large)
    only(link, LinkUp)
    assert link.room() == WINDOW - again
    assert link.counters["abandoned"] == 1 - again


def test_nothing_is_retained_where_the_broker_cannot(puppet, make):
    link = make()
    greet(puppet, link, connack(b"\x25\x00"))
    assert not only(link, LinkUp).retains
    link.publish("t", b"x", retain=True)
    link.poll(0.05)
    assert puppet.packet()[0] & 0x01 == 0


def test_expiry_travels_in_the_new_protocol_only(puppet, make):
    link = make()
    greet(puppet, link)
    link.poll(1)
    link.publish("t", b"x", expiry=600)
    link.poll(0.05)
    assert b"\x02" + struct.pack("!I", 600) in puppet.packet()
    old = make(protocol=4)
    greet(puppet, old, OK4)
    old.poll(1)
    old.publish("t", b"x", expiry=600)
    old.poll(0.05)
    assert struct.pack("!I", 600) not in puppet.packet()


def incoming(mid: int, payload: bytes = b"x") -> bytes:
    rest = b"\x00\x01t" + struct.pack("!H", mid) + b"\x00" + payload
    return bytes([0x32, len(rest)]) + rest


def test_a_message_is_acknowledged_by_hand_and_only_on_its_own_connection(puppet, make):
    link = make()
    greet(puppet, link)
    link.poll(1)
    puppet.peer.sendall(incoming(7))
    message = only(link, Message)
    assert puppet.silent()
    link.acknowledge(message)
    link.poll(0.05)
    answer = puppet.packet()
    assert (answer[0], answer[1:3]) == (0x40, b"\x00\x07")
    link.cut()
    link.poll(0)
    greet(puppet, link)
    only(link, LinkUp)
    link.acknowledge(message)  # 7 may be another message by now
    link.poll(0.05)
    assert puppet.silent()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff\xff\xff\xff\xff\xff",
        b"\x20\x03\x00\x00\xff",
        b"\x32\x02\x00\xff",
        b"\x40\x01\x00",
        b"\x90\x00",
        b"\x32\x05\x00\x01t\x00\x01",
        b"\x00\x00",
        random.Random(7).randbytes(64),
    ],
)
def test_bytes_that_are_not_mqtt_end_the_connection_and_not_the_program(puppet, make, nonsense):
    link = make()
    greet(puppet, link)
    only(link, LinkUp)
    puppet.peer.sendall(nonsense)
    puppet.peer.close()
    only(link, LinkDown)
    greet(puppet, link)
    only(link, LinkUp)


@pytest.mark.parametrize(
    ("reason", "text"),
    [(0x87, "Not authorized"), (0x9A, "Retain not supported; .*retain_available true")],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_a_refusal_is_reported_with_the_brokers_reason(puppet, make, reason, text, is_later):
    link = make()
    greet(puppet, link, OK5 if is_later else connack(reason=reason))
    if is_later:
        only(link, LinkUp)
        puppet.peer.sendall(bytes([0xE0, 2, reason, 0]))
    why = only(link, LinkDown).why
    if not (is_later and paho.mqtt.__version__.startswith("2.1.")):  # reads no later reason
        assert re.search(text, why)
    assert not link.is_up


def test_a_take_over_is_reported(puppet, make):
    link = make()
    greet(puppet, link)
    only(link, LinkUp)
    puppet.peer.sendall(b"\xe0\x02\x8e\x00")
    why = only(link, LinkDown).why
    if not paho.mqtt.__version__.startswith("2.1."):  # which does not read the broker's reason
        assert "taken over" in why


class Longest(random.Random):
    """Draws the end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_attempts_double_their_delay_to_a_limit(puppet, make):
    now = [0.0]
    poller = Poller(clock=lambda: now[0])
    link = make(poller=poller, rng=Longest(), reconnect_min=1.0, reconnect_max=9.0)
    puppet.listener.close()
    link.open()
    tried = []
    for _ in range(60):
        if any(isinstance(h, LinkDown) for h in link.poll(0)):
            tried.append(now[0])
        now[0] += 0.5
    assert [b - a for a, b in itertools.pairwise(tried)] == [1, 2, 4, 8, 9]


def test_a_short_connection_does_not_reset_the_delay(puppet, make):
    now = [0.0]
    link = make(poller=Poller(clock=lambda: now[0]), rng=Longest(), reconnect_min=1.0)
    link.open()
    delays = []
    for lasting in (0.0, 0.0, 20.0):
        puppet.accept(link)
        puppet.peer.sendall(OK5)
        only(link, LinkUp)
        now[0] += lasting
        link.cut()
        only(link, LinkDown)
        before = now[0]
        while not link._is_connecting:
            now[0] += 0.25
            link._poller.serve(0)
        delays.append(now[0] - before)
    assert delays == [1.0, 2.0, 1.0]


def test_a_broker_that_never_answers_is_given_up(puppet, make):
    now = [0.0]
    link = make(poller=Poller(clock=lambda: now[0]))
    link.open()
    puppet.accept(link)
    now[0] += 31.0
    assert "no answer" in only(link, LinkDown, 0).why


def test_only_so_many_connect_at_once(puppet, make):
    poller = Poller(connecting_limit=2)
    links = [make(poller=poller, client_id=f"c{i}") for i in range(4)]
    for link in links:
        link.open()
    for _ in range(4):
        poller.serve(0.02)
    assert sum(link._is_connecting for link in links) == 2
    puppet.accept(links[0])
    puppet.peer.sendall(OK5)
    for _ in range(8):
        poller.serve(0.02)
    assert sum(link._is_connecting for link in links) == 2
    assert sum(link.is_up for link in links) == 1


def test_closing_sends_a_disconnect(puppet, make):
    link = make()
    greet(puppet, link)
    link.poll(1)
    link.publish("t", b"last")
    link.close()
    assert puppet.packet()[-4:] == b"last"
    assert puppet.packet()[0] == 0xE0
    assert puppet.packet() == b""


def test_a_link_works_beyond_descriptor_1024(puppet, make):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip(f"this process may open only {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        link = make()
        greet(puppet, link)
        only(link, LinkUp)
        assert link._descriptor > 1_024
        link.publish("t", b"x")
        link.poll(0.05)
        assert puppet.packet()[-1:] == b"x"
