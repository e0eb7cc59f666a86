"""Certificates of ``gridfed-aggregator ca`` with Mosquitto, configured by ``broker config``."""

from __future__ import annotations

import stat
import subprocess
import time

import pytest

from aggregator.commands.main import main
from aggregator.extensions.authority.access.broker_process import mosquitto_program
from edge_sdk.errors import OK, USAGE
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.transport import LinkDown
from firmware_sim.fleet.federation import free_port

pytestmark = pytest.mark.broker


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture
def place(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    ca = tmp_path / "ca"
    assert run("ca", "init", ca) == OK
    words = ("--role", "broker", "--host", "127.0.0.1", "--folder", ca)
    assert run("ca", "issue", "broker", *words) == OK
    for name in ("meter-1", "meter-2"):
        assert run("ca", "issue", name, "--folder", ca) == OK
    return tmp_path


def configured(place, capsys, port):
    """What an operator does with the printed configuration, on a port of this machine."""
    issued = place / "ca" / "issued"
    capsys.readouterr()
    code = run(
        *("broker", "config", "--fleet", "north", "--folder", place / "broker", "--port", port),
        *("--address", "127.0.0.1"),
        *("--ca", place / "ca" / "ca.pem", "--cert", issued / "broker.pem"),
        *("--key", issued / "broker.key", "--crl", place / "ca" / "revoked.pem"),
    )
    assert code == OK
    file = place / "mosquitto.conf"
    file.write_text(capsys.readouterr().out)
    return file


def attempt(place, port, name):
    """Return the state of a device's link: ``up``, or the reason that it is down."""
    issued = place / "ca" / "issued"
    link = MqttLink(
        Broker(
            url=f"mqtts://127.0.0.1:{port}",
            client_id=name,
            ca_file=place / "ca" / "ca.pem",
            cert_file=issued / f"{name}.pem",
            key_file=issued / f"{name}.key",
        )
    )
    link.open()
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for happening in link.poll(0.05):
                if isinstance(happening, LinkDown):
                    return happening.why
            if link.is_up:
                return "up"
    finally:
        link.close()
    return "nothing happened"


def test_a_device_connects_with_its_certificate_until_it_is_revoked(place, capsys):
    port = free_port()
    config = configured(place, capsys, port)
    process = subprocess.Popen([mosquitto_program(), "-c", str(config)])
    try:
        end = time.monotonic() + 60
        while (state := attempt(place, port, "meter-1")) != "up":
            assert time.monotonic() < end, state
            assert process.poll() is None
            time.sleep(0.1)
        assert run("ca", "revoke", "meter-1", "--folder", place / "ca") == OK
        process.send_signal(1)  # SIGHUP: read the list again
        end = time.monotonic() + 60
        while (state := attempt(place, port, "meter-1")) == "up" and time.monotonic() < end:
            time.sleep(0.2)
        assert state != "up"
        assert attempt(place, port, "meter-2") == "up"
    finally:
        process.kill()
        process.wait()


def test_access_rules_of_another_fleet_are_not_overwritten(place, capsys):
    words = ("broker", "config", "--folder", place / "broker")
    assert run(*words, "--fleet", "north") == OK
    access = place / "broker" / "access.acl"
    before = access.read_text()
    assert stat.S_IMODE(access.stat().st_mode) == 0o640
    assert run(*words, "--fleet", "south") == USAGE
    assert "holds the access rules of fleet north, not of south" in capsys.readouterr().err
    assert access.read_text() == before
    assert run(*words, "--fleet", "north") == OK
