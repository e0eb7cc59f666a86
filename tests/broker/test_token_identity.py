"""A device whose identity key is in a PKCS #11 token: real programs, a real Mosquitto, a real token."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from edge_sdk.commands.main import main as edge
from tests.broker.test_enrolment import READINGS, program, site, until, version_of, write_readings
from tests.pkcs11_tokens import PIN, opened

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

__all__ = ["site"]  # a fixture


ROUNDS = """
[run.schedule]
rounds_per_day = "continuous"
min_new_rows = 0
"""


class TokenDevice:
    """One device with its token; every agent writes a log of its own."""

    def __init__(self, here, token, est):
        self.here, self.token = here, token
        more = READINGS.replace('identity = { curve = "CURVE" }', token.section())
        self.config = here.device("meter-1", est, more)
        write_readings(self.config.parent)
        self.logs = []

    def enrol(self, *words):
        process = program("edge_sdk", "enrol", self.config, *words)
        assert process.wait() == 0
        self.token.settle()

    def start(self):
        log = self.config.parent / f"agent-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("w") as file:
            self.agent = self.here.start("edge_sdk", "run", self.config, stderr=file)

    def kill(self):
        self.agent.send_signal(signal.SIGKILL)
        self.agent.wait()
        with suppress(AssertionError):
            self.here.programs.remove(self.agent)
        self.token.settle()

    def has_logged(self, text):
        assert self.agent.poll() is None, self.logs[-1].read_text()
        return text in self.logs[-1].read_text()


@pytest.fixture(params=["softhsm", "swtpm"])
def token(request, tmp_path):
    with opened(request.param, tmp_path / "token") as found:
        yield found


def test_a_device_signs_with_its_token_through_kills_and_while_it_is_removed(site, token, capsys):
    here = site(more=ROUNDS)
    here.start("aggregator", "run", here.config)
    _, est, digest = here.serve()
    device = TokenDevice(here, token, est)
    device.enrol("--otp", here.password("meter-1"), "--ca", digest)
    until(lambda: "meter-1" in here.devices(capsys), "enrolled by the daemon")
    key = device.config.with_name("meter.pub").read_text()
    device.start()
    until(lambda: version_of(here, capsys) >= 1, "a round with an update of the token's key")

    token.remove()
    until(lambda: device.has_logged("token unreachable"), "the agent misses its token")
    assert edge(["status", str(device.config)]) == 0
    assert "token unreachable since" in capsys.readouterr().out
    before = version_of(here, capsys)
    token.put_back()
    until(lambda: device.has_logged("token reached again"), "the agent has its token again")
    until(lambda: version_of(here, capsys) > before, "an update after the token's return")

    device.kill()
    before = version_of(here, capsys)
    device.start()
    until(lambda: version_of(here, capsys) > before, "an update after a kill of the agent")

    device.kill()
    token.remove()
    before = version_of(here, capsys)
    device.start()
    until(lambda: device.has_logged("token unreachable"), "a start without the token")
    until(lambda: device.has_logged("link up"), "a connection without the token")
    token.put_back()
    until(lambda: version_of(here, capsys) > before, "an update after the token came late")

    device.kill()
    device.enrol("--renew")  # the request is signed in the token too
    assert device.config.with_name("meter.pub").read_text() == key
    assert not device.config.with_name("meter.key").exists()
    assert here.devices(capsys)["meter-1"]["state"] == "enrolled"
    assert PIN not in "".join(log.read_text() for log in device.logs)


def test_a_wiped_device_has_no_key_left_in_its_token(site, token, capsys):
    here = site(more=ROUNDS)
    _, est, digest = here.serve()
    device = TokenDevice(here, token, est)
    device.enrol("--otp", here.password("meter-1"), "--ca", digest)
    former = device.config.with_name("meter.pub").read_text()
    process = program("edge_sdk", "wipe", device.config, "--yes")
    assert process.wait() == 0
    token.settle()
    assert not device.config.with_name("meter.pub").exists()
    device.enrol("--otp", here.password("meter-1"), "--ca", digest)
    assert device.config.with_name("meter.pub").read_text() != former
