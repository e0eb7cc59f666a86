"""From a sealed box to a member: real programs, a real Mosquitto with TLS, and no file carried by hand."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aggregator.commands.main import main
from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.access.broker_process import TlsFiles, mosquitto_program, start
from aggregator.extensions.authority.access.mosquitto_topics import mosquitto_access
from aggregator.extensions.authority.certificates import list_validity
from edge_sdk.errors import OK
from firmware_sim.fleet.federation import free_port

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
DAY = timedelta(days=1)


def run(*words):
    return main([str(word) for word in words])


def program(module, *words, **more):
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)], env=environ, text=True, **more
    )


def until(wanted, what, patience=600.0):
    end = time.monotonic() + patience
    while not (found := wanted()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


class Site:
    """An operator's machine: authority, broker with TLS, configuration, daemon, EST server."""

    def __init__(self, folder: Path, *, more: str = "", devices=None, quorum: int = 1, reload=None):
        self.folder, self.port = folder, free_port()
        self.ca, self.access = folder / "ca", folder / "access.acl"
        assert run("ca", "init", self.ca) == OK
        broker = ("--role", "broker", "--host", "localhost", "--host", "127.0.0.1")
        assert run("ca", "issue", "broker", *broker, "--folder", self.ca) == OK
        assert run("ca", "issue", "_agg", "--role", "aggregator", "--folder", self.ca) == OK
        issued = self.ca / "issued"
        self.access.write_text(mosquitto_access("north", devices))
        self.access.chmod(0o640)
        tls = TlsFiles(
            self.ca / "ca.pem",
            issued / "broker.pem",
            issued / "broker.key",
            revoked=self.ca / "revoked.pem",
        )
        self.broker = start("mosquitto", folder=folder / "broker", tls=tls, access=self.access)
        self.url = self.broker.url.replace("127.0.0.1", "localhost")
        self.config = folder / "aggregator.toml"
        self.config.write_text(
            f"""
fleet = "north"
state = "state"
[http]
listen = "off"
[broker]
url = "{self.url}"
ca_file = "ca/ca.pem"
cert_file = "ca/issued/_agg.pem"
key_file = "ca/issued/_agg.key"
[ca]
folder = "ca"
listen = "127.0.0.1:{self.port}"
hosts = ["localhost"]
access_file = "access.acl"
reload = {json.dumps(reload or ["kill", "-HUP", str(self.broker.pid)])}
{more}
[run]
bundle = "load-week-1"
method = "fedavg"
shared = ["body."]
rule = {{ name = "mean" }}
quorum = {quorum}
min_updates = {quorum}
deadline = "1m"
"""
        )
        assert run("init", self.config) == OK
        self.programs = []

    def start(self, module, *words, **more):
        process = program(module, *words, **more)
        self.programs.append(process)
        return process

    def serve(self):
        """Start the EST server; return its URL and the authority's digest, as it prints them."""
        words = ("ca", "serve", "--config", self.config)
        process = self.start("aggregator", *words, stdout=subprocess.PIPE)
        line = process.stdout.readline()
        found = re.fullmatch(r"serving (\S+); authority: (sha256:[0-9a-f]{64})\n", line)
        assert found, line
        return process, found[1], found[2]

    def password(self, serial):
        (self.folder / "serials.csv").write_text(f"serial\n{serial}\n")
        out = self.folder / "words.csv"
        words = ("ca", "passwords", self.folder / "serials.csv", "--out", out)
        assert run(*words, "--config", self.config) == OK
        return out.read_text().splitlines()[1].rsplit(",")[-1]

    def device(self, name, est, more=""):
        place = self.folder / name
        place.mkdir()
        (place / "meter.toml").write_text(
            f"""
id = "{name}"
fleet = "north"
state = "state"
bundle = "load-week-1"
broker = {{ url = "{self.url}", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }}
keys = {{ device = "meter.key", root = "root.pub" }}
privacy = {{ mechanism = {{ name = "none" }} }}
ca = {{ url = "{est}" }}
{more}
"""
        )
        return place / "meter.toml"

    def devices(self, capsys):
        capsys.readouterr()
        assert run("list", self.config, "--json") == OK
        return {one["id"]: one for one in json.loads(capsys.readouterr().out)["devices"]}

    def close(self):
        for process in self.programs:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.broker.stop()


def sites(kind, folder):
    """Yield a function that makes sites of a class, and close them."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    made = []

    def site(**more):
        made.append(kind(folder, **more))
        return made[-1]

    yield site
    for one in made:
        one.close()


@pytest.fixture
def site(tmp_path):
    yield from sites(Site, tmp_path)


def test_a_sealed_box_becomes_a_member_with_two_short_texts(site, capsys, tmp_path):
    here = site()
    daemon = here.start("aggregator", "run", here.config)
    server, est, digest = here.serve()
    word = here.password("meter-1")
    device = here.device("meter-1", est)
    server.send_signal(signal.SIGKILL)  # after the password was listed
    server.wait()
    _, est, digest = here.serve()
    done = program("edge_sdk", "enrol", device, "--otp", word, "--ca", digest)
    assert done.wait() == 0
    until(lambda: daemon.poll() is not None or "meter-1" in here.devices(capsys), "enrolled")
    assert daemon.poll() is None, "the daemon ended"
    log = tmp_path / "device.log"
    with log.open("w") as file:
        agent = here.start("edge_sdk", "run", device, stderr=file)
        until(lambda: "welcome received" in log.read_text(), "welcome from the aggregator")
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    assert here.devices(capsys)["meter-1"]["state"] == "enrolled"
    assert run("ca", "status", "--config", here.config) == OK
    assert "listed 1, not yet enrolled 0, members 1" in capsys.readouterr().out


READINGS = """
identity = { curve = "CURVE" }
heartbeat = "beat"
[[source]]
type = "csv"
path = "load.csv"
time_format = "epoch"
columns = { kwh = "elec.import.energy" }
"""


def write_readings(folder):
    """Write eight days of hourly readings up to the last full hour."""
    end = int(time.time()) // 3600 * 3600
    rows = [
        f"{end - 3600 * i},{1 + math.sin(i / 24 * math.tau) / 2:.3f}\n"
        for i in range(8 * 24, 0, -1)
    ]
    (folder / "load.csv").write_text("time,kwh\n" + "".join(rows))


def version_of(here, capsys):
    capsys.readouterr()
    assert run("status", here.config, "--json") == OK
    return json.loads(capsys.readouterr().out)["run"]["version"]


@pytest.mark.slow
def test_a_device_with_a_p256_key_enrols_over_est_and_moves_the_model(site, capsys):
    """Two devices, a round needs both: one signs with P-256, the other with Ed25519."""
    here = site(quorum=2)
    here.start("aggregator", "run", here.config)
    _, est, digest = here.serve()
    for name, curve in (("meter-1", "p256"), ("meter-2", "ed25519")):
        config = here.device(name, est, READINGS.replace("CURVE", curve))
        write_readings(config.parent)
        words = ("--otp", here.password(name), "--ca", digest)
        done = program("edge_sdk", "enrol", config, *words)
        assert done.wait() == 0
        until(lambda name=name: name in here.devices(capsys), "enrolled by the daemon")
        here.start("edge_sdk", "run", config)
    assert len((here.folder / "meter-1" / "meter.pub").read_text().strip()) == 66
    until(lambda: version_of(here, capsys) >= 1, "a round with updates of both")


def test_the_server_renews_a_list_of_revoked_certificates_and_reloads_the_broker(site, tmp_path):
    reloaded = tmp_path / "reloaded"
    here = site(reload=["touch", str(reloaded)])
    now = datetime.now(UTC).replace(microsecond=0)
    authority.renew_list(here.ca, now - 3 * DAY, 4 * DAY)
    before = (here.ca / "revoked.pem").read_bytes()
    here.serve()
    until(reloaded.exists, "the broker's reload")
    assert (here.ca / "revoked.pem").read_bytes() != before
    assert list_validity((here.ca / "revoked.pem").read_bytes())[1] >= now + 4 * DAY
