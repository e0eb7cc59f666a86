"""Who may connect, write and read: Mosquitto, client certificates and the fleet's access rules."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import (
    TlsFiles,
    mosquitto_program,
    probe,
    start,
)
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.tls_validity import files, look
from edge_sdk.link.transport import LinkDown
from tests.broker.authority import Authority

pytestmark = pytest.mark.broker

FLEET = "gf/1/north"


class Site:
    """A broker with an authority, and the settings of those who come to it."""

    def __init__(self, folder: Path, revoked: tuple[float, float] | None = None):
        if mosquitto_program() is None:
            pytest.skip("mosquitto is not installed")
        self.authority = Authority(folder, "authority")
        certificate, key = self.authority.issue("broker", "127.0.0.1")
        probe_certificate, probe_key = self.authority.issue("probe")
        self.tls = TlsFiles(
            authority=self.authority.file,
            certificate=certificate,
            key=key,
            revoked=None if revoked is None else self.authority.revoked(days=revoked),
            probe_certificate=None if revoked else probe_certificate,  # it may be refused, too
            probe_key=None if revoked else probe_key,
        )
        access = folder / "access"
        access.write_text(mosquitto_access("north"))
        self.process = start("mosquitto", folder=folder / "broker", tls=self.tls, access=access)

    def files(self, name: str) -> dict[str, Path]:
        certificate, key = self.authority.issue(name)
        return {"ca_file": self.authority.file, "cert_file": certificate, "key_file": key}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    one = Site(tmp_path_factory.mktemp("site"))
    yield one
    one.process.stop()


def attempt(site: Site, **settings) -> str:
    """Why the link did not come up, or "" if it did."""
    link = MqttLink(Broker(url=site.process.url, **settings))
    link.open()
    try:
        for _ in range(200):
            for happening in link.poll(0.05):
                if isinstance(happening, LinkDown):
                    return happening.why
            if link.is_up:
                return ""
        return "nothing happened"
    finally:
        link.close()


def test_a_device_with_a_valid_certificate_connects(site):
    assert attempt(site, client_id="dev1", **site.files("dev1")) == ""


def test_a_certificate_works_with_mqtt_3_1_1(site):
    assert attempt(site, client_id="dev1", protocol=4, **site.files("dev1")) == ""


def test_a_client_without_a_certificate_is_refused(site):
    assert attempt(site, client_id="dev1", ca_file=site.authority.file) != ""


def test_a_link_uses_a_renewed_certificate(site, tmp_path):
    """One that was renewed is used at the next attempt; a key that comes later does no harm."""
    certificate, key = site.authority.issue("dev7", days=(-2.0, -1.0))
    mine = tmp_path / "dev7.crt", tmp_path / "dev7.key"
    mine[0].write_bytes(certificate.read_bytes())
    mine[1].write_bytes(key.read_bytes())
    files = {"ca_file": site.authority.file, "cert_file": mine[0], "key_file": mine[1]}
    settings = {"client_id": "dev7", "reconnect_min": 0.1, "reconnect_max": 0.2, **files}
    link = MqttLink(Broker(url=site.process.url, **settings))
    link.open()
    try:
        assert downs(link) >= 2
        certificate, key = site.authority.issue("dev7")
        mine[0].write_bytes(certificate.read_bytes())
        assert downs(link) >= 2  # certificate and key do not fit: the old pair is shown
        mine[1].write_bytes(key.read_bytes())
        for _ in range(200):
            link.poll(0.05)
            if link.is_up:
                break
        assert link.is_up
    finally:
        link.close()


@pytest.mark.parametrize(("days", "is_in"), [((-9.0, 9.0), True), ((-9.0, -1.0), False)])
def test_an_expired_revocation_list_refuses_every_device_and_is_reported(tmp_path, days, is_in):
    """Finding 11 of the field notes: why the daemon watches a file that it does not use."""
    one = Site(tmp_path, days)
    try:
        assert (attempt(one, client_id="dev1", **one.files("dev1")) == "") is is_in
    finally:
        one.process.stop()
    (seen,) = look(files("mqtt://127.0.0.1", crl=one.tls.revoked))
    assert seen.expiry.is_over(time.time()) is not is_in


def downs(link: MqttLink, seconds: float = 2.0) -> int:
    """How often an attempt failed."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += sum(isinstance(happening, LinkDown) for happening in link.poll(0.05))
        assert not link.is_up
    return count


def test_a_certificate_of_another_authority_is_refused(site, tmp_path):
    certificate, key = Authority(tmp_path, "other").issue("dev1")
    files = {"ca_file": site.authority.file, "cert_file": certificate, "key_file": key}
    assert attempt(site, client_id="dev1", **files) != ""


def test_a_broker_certificate_of_another_authority_is_refused(site, tmp_path):
    files = site.files("dev1") | {"ca_file": Authority(tmp_path, "other").file}
    assert "CERTIFICATE_VERIFY_FAILED" in attempt(site, client_id="dev1", **files)


def test_a_broker_certificate_with_another_name_is_refused(site):
    port = site.process.url.rsplit(":", 1)[1]
    link = MqttLink(Broker(url=f"mqtts://localhost:{port}", client_id="dev1", **site.files("dev1")))
    link.open()
    events, end = [], time.monotonic() + 120
    while not events:
        assert time.monotonic() < end
        events = link.poll(1)
    link.close()
    down = events[0]
    assert "CERTIFICATE_VERIFY_FAILED" in down.why  # the certificate names 127.0.0.1


def test_plain_mqtt_gets_no_answer_on_the_tls_port(site):
    assert not probe(site.process.url.replace("mqtts", "mqtt"), patience=1)


@pytest.fixture
def cast(site, room):
    def enter(name: str, *filters: str, by: str = "", **more):
        settings = site.files(by or name) | {"session_expiry": 0} | more
        return room.join(site.process.url, name, *filters, **settings)

    return enter


def test_a_device_publishes_and_receives_on_its_own_topics(cast, room):
    server, device = cast("_agg", f"{FLEET}/+/up/+"), cast("dev1", f"{FLEET}/dev1/down/#")
    device.link.publish(f"{FLEET}/dev1/up/hello", b"up")
    server.link.publish(f"{FLEET}/dev1/down/welcome", b"down")
    room.until(lambda: server.payloads == [b"up"] and device.payloads == [b"down"])


@pytest.mark.parametrize("protocol", [5, 4])
@pytest.mark.parametrize(
    "topic",
    ["dev2/up/hello", "dev2/status", "dev1/down/welcome", "_all/model", "dev2/peer/dev3"],
)
def test_a_device_cannot_publish_on_other_topics(cast, room, topic, protocol):
    everything = cast("_agg", f"{FLEET}/#")
    device = cast("dev1", protocol=protocol)
    device.link.publish(f"{FLEET}/{topic}", b"forged")
    device.link.publish(f"{FLEET}/dev1/up/hello", b"mine")
    room.until(lambda: b"mine" in everything.payloads)
    room.serve(0.2)
    assert everything.payloads == [b"mine"]
    refused = device.link.counters["refused_publishes"]
    assert refused == (1 if protocol == 5 else 0)  # 3.1.1 cannot say no


def test_a_device_receives_no_messages_of_other_devices(cast, room):
    server = cast("_agg")
    spy = cast("dev1", "#", f"{FLEET}/dev2/down/#", f"{FLEET}/+/up/+")
    cast("dev2").link.publish(f"{FLEET}/dev2/up/update", b"secret")
    server.link.publish(f"{FLEET}/dev2/down/task", b"secret")
    server.link.publish(f"{FLEET}/dev1/down/task", b"mine")
    server.link.publish(f"{FLEET}/_all/model", b"for all")
    room.until(lambda: {b"mine", b"for all"} <= set(spy.payloads))
    room.serve(0.3)
    assert b"secret" not in spy.payloads


def test_a_client_id_of_another_device_receives_nothing(cast, room):
    victim = cast("dev2", f"{FLEET}/dev2/down/#")
    thief = cast("dev2", f"{FLEET}/dev2/down/#", by="dev1")  # dev1's certificate, dev2's name
    server = cast("_agg")
    room.serve(0.3)
    assert victim.link.is_up
    assert not any(isinstance(h, LinkDown) for h in victim.heard)
    server.link.publish(f"{FLEET}/dev2/down/task", b"for dev2")
    room.until(lambda: victim.payloads == [b"for dev2"])
    room.serve(0.2)
    assert thief.payloads == []


def test_large_messages_pass_through_tls_buffers(cast, room):
    """Bytes that TLS has decrypted and epoll cannot see must not be left lying."""
    server, device = cast("_agg", f"{FLEET}/+/up/+"), cast("dev1")
    for i in range(12):
        assert device.link.publish(f"{FLEET}/dev1/up/chunk", bytes([i]) * 32_768)
    for i in range(8):
        assert device.link.publish(f"{FLEET}/dev1/up/metrics", bytes([i]))
    room.until(lambda: len(server.messages) == 20)
    assert sum(map(len, server.payloads)) == 12 * 32_768 + 8


def test_a_last_will_on_another_devices_topic_is_not_published(cast, room):
    everything = cast("_agg", f"{FLEET}/+/status")
    liar = cast("dev1", protocol=4, will=(f"{FLEET}/dev2/status", b"lost", True), by="dev1")
    liar.link._wanted = False
    liar.link.cut()
    room.serve(0.5)
    assert everything.payloads == []
