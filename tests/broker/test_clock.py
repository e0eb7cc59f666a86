"""TLS where the clock is known to be wrong: the broker's dates are judged by what was signed."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from edge_sdk.link.mqtt import Broker, MqttLink
from edge_sdk.link.transport import LinkDown
from firmware_sim.fleet.federation import free_port
from tests.broker.authority import Authority

pytestmark = pytest.mark.broker

DAY = 86_400.0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A mosquitto whose certificate begins in ten days and ends in twenty."""
    yield from dated_broker(tmp_path_factory.mktemp("future"), (10, 20))


def dated_broker(folder, days):
    """Run a mosquitto whose certificate is valid between two moments, in days from now."""
    program = mosquitto_program()
    if program is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("broker", "127.0.0.1", days=days)
    settings = {"listener": f"{port} 127.0.0.1", "allow_anonymous": "true", "certfile": certificate}
    told = settings | {"keyfile": key, "user": "root"}
    (folder / "conf").write_text("".join(f"{name} {value}\n" for name, value in told.items()))
    with subprocess.Popen([program, "-c", folder / "conf"], stderr=subprocess.DEVNULL) as process:
        for _ in range(2000):
            try:
                socket.create_connection(("127.0.0.1", port), 0.1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"mqtts://127.0.0.1:{port}", authority.file, folder
        process.terminate()


def attempt(url, authority, days):
    """Why the link did not come up, or "" if it did; ``days`` from now is what the device knows."""
    judged_at = None if days is None else (lambda: time.time() + days * DAY)
    broker = Broker(url=url, client_id="dev1", ca_file=authority, judged_at=judged_at)
    link = MqttLink(broker)
    link.open()
    try:
        for _ in range(2000):
            for happening in link.poll(0.05):
                if isinstance(happening, LinkDown):
                    return happening.why
            if link.is_up:
                return ""
        return "nothing happened"
    finally:
        link.close()


def test_a_certificate_not_yet_valid_is_refused_with_a_trusted_clock(site):
    url, authority, _ = site
    assert "not yet valid" in attempt(url, authority, None)


def test_a_device_with_newer_server_time_than_its_clock_connects(site):
    url, authority, _ = site
    assert attempt(url, authority, 11) == ""


@pytest.mark.parametrize("days", [9, 21])
def test_server_time_outside_the_dates_of_a_certificate_refuses_it(site, days):
    url, authority, _ = site
    assert "this machine's clock is wrong" in attempt(url, authority, days)


def test_the_chain_is_verified_when_dates_are_checked_by_server_time(site, tmp_path):
    url, _, _ = site
    other = Authority(tmp_path, "other").file
    assert "CERTIFICATE_VERIFY_FAILED" in attempt(url, other, 11)


def test_the_host_name_is_verified_when_dates_are_checked_by_server_time(site):
    url, authority, _ = site
    why = attempt(url.replace("127.0.0.1", "localhost"), authority, 11)
    assert "CERTIFICATE_VERIFY_FAILED" in why


def test_a_clock_that_was_set_is_trusted_again(site):
    url, authority, _ = site
    known = [time.time() + 11 * DAY, None]
    broker = Broker(url=url, client_id="dev1", ca_file=authority, judged_at=lambda: known.pop(0))
    link = MqttLink(broker)
    link.open()
    try:
        for _ in range(2000):
            link.poll(0.05)
            if link.is_up:
                break
        assert link.is_up
        link.cut()
        heard = []
        for _ in range(2000):
            heard += [h.why for h in link.poll(0.05) if isinstance(h, LinkDown)]
            if any("not yet valid" in why for why in heard):
                break
        assert any("not yet valid" in why for why in heard), heard
    finally:
        link.close()
