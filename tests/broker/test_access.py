"""The shipped access rules and bounds in a real Mosquitto: what a device with a certificate can do.

Each attack is the one that worked against the rules that were shipped before; ``FORMER`` shows it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import (
    BrokerProcess,
    TlsFiles,
    mosquitto_program,
    start,
)
from aggregator.extensions.authority.access.mosquitto import LARGEST_PACKET, check_mosquitto_config
from aggregator.extensions.authority.access.mosquitto_acl import read
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.ingress.flood_control import UPLINK
from edge_sdk.protocol import topics
from tests.aggregator.extensions.authority.access.test_mosquitto_topics import FORMER
from tests.broker.authority import Authority

pytestmark = pytest.mark.broker

ROOT = "gf/1/north"
DEVICES = ("m1", "m2", "m3")
NEAR = {"m1": {"m2"}, "m2": {"m1"}}
RULES = {
    "patterns": mosquitto_access("north", neighbours=NEAR),
    "devices": mosquitto_access("north", DEVICES, neighbours=NEAR),
    "former": FORMER,
}
NAMES = ("m1", "m2/up", "m2/down", "_all/part", "_all", "m2/peer", "stranger")


class Raw:
    """A client of MQTT 3.1.1 that follows no rule of ours."""

    def __init__(self, site, name: str):
        certificate, key = site.authority.issue(name.replace("/", "-"), subject=name)
        context = ssl.create_default_context(cafile=str(site.authority.file))
        context.load_cert_chain(certificate, key)
        port = int(site.process.url.rsplit(":", 1)[1])
        plain = socket.create_connection(("127.0.0.1", port), 10)
        self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        body = b"\x00\x04MQTT\x04\x02" + struct.pack("!H", 60) + text(name)
        self.send(0x10, body)
        site.open.append(self.socket)
        assert self.until(b"\x20\x02\x00")[-1:] == b"\x00"

    def send(self, first: int, body: bytes) -> None:
        size, length = len(body), b""
        while True:
            size, low = size >> 7, size & 127
            length += bytes([low | (0x80 if size else 0)])
            if not size:
                break
        self.socket.sendall(bytes([first]) + length + body)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.send(0x30 | retain, text(topic) + payload)

    def subscribe(self, pattern: str) -> None:
        self.send(0x82, b"\x00\x01" + text(pattern) + b"\x00")
        self.until(b"\x90\x03\x00\x01\x00")

    def settle(self) -> bool:
        """Wait until the broker has read all that was sent; False if it hung up instead."""
        try:
            self.send(0xC0, b"")
            self.until(b"\xd0\x00")
        except OSError:
            return False
        return True

    def until(self, end: bytes) -> bytes:
        heard = b""
        while end not in heard:
            more = self.socket.recv(65_536)
            if not more:
                raise ConnectionResetError
            heard += more
        return heard


def text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


class Site:
    def __init__(self, folder: Path, rules: str):
        self.authority = Authority(folder, "authority")
        certificate, key = self.authority.issue("broker", "127.0.0.1")
        tls = TlsFiles(self.authority.file, certificate, key)
        access = folder / "access"
        access.write_text(rules)
        self.process = start("mosquitto", folder=folder / "broker", tls=tls, access=access)
        self.config = folder / "broker" / "mosquitto.conf"
        self.open: list[socket.socket] = []

    def stop(self) -> None:
        for connection in self.open:
            connection.close()
        self.process.stop()

    @property
    def memory(self) -> float:
        return memory(self.process)


def memory(process: BrokerProcess) -> float:
    """Return Mosquitto's resident memory, MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    made: dict[str, Site] = {}

    def site(rules: str) -> Site:
        if rules not in made:
            made[rules] = Site(tmp_path_factory.mktemp(rules), RULES[rules])
        return made[rules]

    yield site
    for one in made.values():
        one.stop()


@pytest.fixture
def empty_site(tmp_path):
    """Start a broker of this test's own: another test fills the shared ones with retained messages."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    made: list[Site] = []

    def site(rules: str) -> Site:
        made.append(Site(tmp_path, RULES[rules]))
        return made[-1]

    yield site
    for one in made:
        one.stop()


@pytest.mark.parametrize("rules", RULES)
def test_mosquitto_grants_what_the_rules_say_here(empty_site, rules):
    """Every name tries every topic; what arrives is what `authority.access.mosquitto_acl` evaluates."""
    site, known = empty_site(rules), read(RULES[rules])
    hearer = Raw(site, "_agg")
    hearer.subscribe("gf/#")
    ends = [
        *(f"up/{kind}" for kind in UPLINK),
        *("status", "peer/m2", "peer/m3", "up/made-up", "up/chunk/w1", "down/task", "model"),
    ]
    wanted, tried = set(), set()
    for name in NAMES:
        sender = Raw(site, name)
        for whose in dict.fromkeys((name, "m1", "m2", "_all")):
            for rest in ends:
                topic = f"{ROOT}/{whose}/{rest}"
                tried.add((name, topic))
                wanted |= {(name, topic)} if known.may(name, topic, write=True) else set()
                sender.publish(topic, f"<{name}>".encode())
        assert sender.settle()
    last = Raw(site, "m1")
    last.publish(f"{ROOT}/m1/status", b"<last>")
    heard = hearer.until(b"<last>")
    arrived = {(n, t) for n, t in tried if text(t) + f"<{n}>".encode() in heard}
    assert arrived == wanted
    if rules != "former":
        assert not {n for n, t in arrived if "/m2/" in t}


def filled(site: Site) -> float:
    """Retain 26 MB in 800 topics below one device's id; return by how many MB the broker grew."""
    before, attacker = site.memory, Raw(site, "m1")
    for i in range(400):
        for topic in (f"up/t{i}", f"peer/p{i}"):
            attacker.publish(f"{ROOT}/m1/{topic}", b"x" * 33_000, retain=True)
    assert attacker.settle()
    return site.memory - before


def test_one_certificate_cannot_fill_the_broker(sites):
    """The former rules keep every topic that it makes up; these keep none."""
    grown = {rules: filled(sites(rules)) for rules in RULES}
    assert grown["former"] > 20
    assert grown["patterns"] < 5
    assert grown["devices"] < 5


def test_a_packet_above_the_size_limit_ends_the_connection(sites):
    attacker = Raw(sites("patterns"), "m1")
    attacker.socket.settimeout(10)
    with contextlib.suppress(OSError):  # the broker may hang up before all is written
        attacker.publish(f"{ROOT}/m1/up/update", b"x" * (LARGEST_PACKET + 1))
    assert not attacker.settle()


def test_the_broker_check_accepts_the_written_files_and_finds_faults_in_the_old_ones(sites):
    assert check_mosquitto_config(sites("patterns").config) == ()
    assert check_mosquitto_config(sites("devices").config) == ()
    assert "may write any topic" in "\n".join(check_mosquitto_config(sites("former").config))


def test_a_revoked_device_is_shut_out_while_it_is_connected(tmp_path):
    """Its block is gone from the file, and the broker has read that again: nothing arrives."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    site = Site(tmp_path, mosquitto_access("north", ["m1", "m2"]))
    try:
        hearer, device, other = Raw(site, "_agg"), Raw(site, "m1"), Raw(site, "m2")
        hearer.subscribe("gf/#")
        said = heard = 0
        until = time.monotonic() + 30
        while heard == said:  # until one of its messages does not arrive
            assert time.monotonic() < until
            if said == 1:
                (tmp_path / "access").write_text(mosquitto_access("north", ["m2"]))
                os.kill(site.process.pid, signal.SIGHUP)
            with contextlib.suppress(OSError):
                device.publish(f"{ROOT}/m1/up/hello", b"<m1>")
                device.settle()
            said += 1
            other.publish(f"{ROOT}/m2/up/hello", b"<m2 %d>" % said)
            heard += b"<m1>" in hearer.until(b"<m2 %d>" % said)
        assert heard >= 1
    finally:
        site.stop()


def test_the_time_message_is_not_queued_for_an_offline_device(room, tmp_path):
    """``upgrade_outgoing_qos`` raises quality to the subscription's, and that is 0 for ``time``."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with start("mosquitto", folder=tmp_path / "plain") as process:
        filters = topics.device_filters("north", "m1")
        server, device = room.join(process.url, "_agg"), room.join(process.url, "m1", *filters)
        device.link.close()
        for i in range(5):
            server.link.publish(topics.common("north", "time"), b"time %d" % i, qos=0)
        server.link.publish(topics.down("north", "m1", "receipt"), b"receipt")
        room.until(lambda: server.link.room() == 20)  # acknowledged, and so is what came before it
        again = room.join(process.url, "m1", *filters)
        room.until(lambda: b"receipt" in again.payloads)
        assert again.payloads == [b"receipt"]


def test_qos_0_messages_to_a_stalled_reader_are_bounded(tmp_path):
    """The reader asked for quality 1 and acknowledges nothing: ``max_queued_bytes`` holds."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with start("mosquitto", folder=tmp_path / "plain") as process:
        config = tmp_path / "plain" / "mosquitto.conf"
        small = config.read_text().replace("max_queued_bytes 67108864", "max_queued_bytes 8388608")
        assert "8388608" in small
        config.write_text(small)
        process.restart()
        port = int(process.url.rsplit(":", 1)[1])
        reader, writer = plain(port, "reader"), plain(port, "writer")
        reader.sendall(b"\x82\x0a\x00\x01" + text("flood") + b"\x01")
        assert reader.recv(5) == b"\x90\x03\x00\x01\x01", "subscribed with quality 1"
        packet = b"\x30\xe7\xd4\x03" + text("flood") + b"x" * 60_000
        for _ in range(700):  # 42 MB
            writer.sendall(packet)
        writer.sendall(b"\xc0\x00")
        assert writer.recv(2) == b"\xd0\x00"
        assert memory(process) < 35
        reader.close()
        writer.close()


def plain(port: int, name: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20)
    body = b"\x00\x04MQTT\x04\x02" + struct.pack("!H", 60) + text(name)
    connection.sendall(b"\x10" + bytes([len(body)]) + body)
    assert connection.recv(4) == b"\x20\x02\x00\x00"
    return connection
