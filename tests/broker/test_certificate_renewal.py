"""The running agent renews its certificate: real programs, `ca serve`, and Mosquitto with TLS."""

from __future__ import annotations

import json
import math
import os
import signal
import ssl
import subprocess
import sys
import time

import pytest

from edge_sdk.commands.main import main as edge
from edge_sdk.errors import OK
from tests.broker.authority import Authority
from tests.broker.test_enrolment import ROOT, Site, run, sites, until

pytestmark = pytest.mark.broker

HOUR = 3600

SERVE = """
import sys
from datetime import timedelta
from aggregator.extensions.authority import certificates, est_server
from aggregator.extensions.authority.commands import ca_enrolment
from aggregator.commands.main import main

begun, life, grace = (timedelta(seconds=float(word)) for word in sys.argv[1:4])
certificates.SKEW, est_server.RETRY_AFTER = begun, 1
policy = ca_enrolment.EnrolmentPolicy
ca_enrolment.EnrolmentPolicy = lambda fleet, *_: policy(fleet, life, grace)
sys.exit(main(["ca", "serve", "--config", sys.argv[4]]))
"""
"""`ca serve` with certificates that live for seconds, and began so many seconds before."""

KILLED = """
import os, signal, sys
from pathlib import Path
from edge_sdk.commands.main import main
from edge_sdk.extensions.certificates import certificate_files as module

at, count = int(sys.argv[1]), 0

def fatal(function, suffix):
    def call(path, *args, **more):
        global count
        if not path.name.startswith("tls.pem") or not path.name.endswith(suffix):
            return function(path, *args, **more)
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(path, *args, **more)
    return call

module.write_atomically = fatal(module.write_atomically, "")
Path.replace = fatal(Path.replace, ".next")
Path.unlink = fatal(Path.unlink, ".previous")
sys.exit(main(["run", sys.argv[2]]))
"""
"""An agent that ends itself before the n-th change of a certificate's file."""

FOREIGN = """
import sys
from datetime import datetime, timedelta, timezone
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from edge_sdk.commands.main import main
from edge_sdk.extensions.certificates import certificate_enrolment as module

key = serialization.load_pem_private_key(open(sys.argv[1], "rb").read(), None)

def signed(_address, der, **_):
    request, now = x509.load_der_x509_csr(der), datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(request.subject).issuer_name(request.subject)
        .public_key(request.public_key()).serial_number(7)
        .not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=30))
        .sign(key, hashes.SHA256())
    )
    return [made.public_bytes(serialization.Encoding.PEM)]

module.request_certificate = signed
sys.exit(main(["run", sys.argv[2]]))
"""
"""An agent whose EST server signs with another authority's key."""

TRAINING = """
[run.schedule]
rounds_per_day = "continuous"
min_new_rows = 0
"""


class RenewalSite(Site):
    """A site whose EST server issues certificates that live for seconds."""

    est = None

    def serve_short(self, *, life, begun=0.0, grace=1e6):
        if self.est is not None:
            self.est.kill()
            self.est.wait()
            self.est.stdout.close()
            self.programs.remove(self.est)
        words = [sys.executable, "-c", SERVE, *map(str, (begun, life, grace, self.config))]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.est = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ)
        self.programs.append(self.est)
        line = self.est.stdout.readline()
        assert line.startswith("serving "), line
        return line.split()[1].rstrip(";"), line.split()[-1]

    def enrolled(self, name="meter-1", **how):
        est, digest = self.serve_short(**how)
        device = self.device(name, est)
        assert edge(["enrol", str(device), "--otp", self.password(name), "--ca", digest]) == OK
        end = int(time.time()) // HOUR * HOUR
        rows = [
            f"{end - HOUR * i},{1 + math.sin(i / 24 * math.tau) / 2:.3f}\n"
            for i in range(8 * 24, 0, -1)
        ]
        (device.parent / "load.csv").write_text("time,kwh\n" + "".join(rows))
        with device.open("a") as file:
            file.write(
                '[[source]]\ntype = "csv"\npath = "load.csv"\ntime_format = "epoch"\n'
                'columns = { kwh = "elec.import.energy" }\n'
            )
        return Agent(self, device)


class Agent:
    """The agent of one device, and its log."""

    def __init__(self, site, config):
        self.site, self.config, self.folder = site, config, config.parent
        self.pem, self.process, self.begun = self.folder / "tls.pem", None, 0

    def start(self, *words):
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        words = words or ("-m", "edge_sdk", "run", self.config)
        self.begun = len(self.log)
        with (self.folder / "log").open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, words)], env=environ, stderr=file, stdout=file
            )
        self.site.programs.append(self.process)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(120)
        self.site.programs.remove(self.process)
        return code

    @property
    def log(self):
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    @property
    def said(self):
        """What the present process has logged."""
        return self.log[self.begun :]

    def until(self, wanted, patience=240.0):
        def found():
            assert self.process.poll() is None, self.said
            return wanted(self.said)

        try:
            until(found, "not reached", patience)
        except AssertionError:
            pytest.fail(self.said[-6000:])

    def key(self):
        return self.pem.read_bytes().partition(b"-----BEGIN CERT")[0]

    def loads(self):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.pem)

    def status(self, capsys):
        capsys.readouterr()
        assert edge(["status", str(self.config), "--json"]) == OK
        return json.loads(capsys.readouterr().out)["certificate renewal"]


@pytest.fixture
def site(tmp_path):
    yield from sites(RenewalSite, tmp_path)


@pytest.mark.slow
def test_certificates_of_seconds_are_renewed_while_the_device_trains_and_no_round_is_lost(
    site, capsys
):
    here = site(more=TRAINING)
    daemon = here.start("aggregator", "run", here.config)
    agent = here.enrolled(life=40, begun=30)  # renewed after 5 to 12 s
    first = agent.key()
    agent.start()

    def document():
        capsys.readouterr()
        assert run("status", here.config, "--json") == OK
        return json.loads(capsys.readouterr().out)

    agent.until(lambda said: said.count("certificate confirmed") >= 3)
    agent.until(lambda _: len(document()["rounds"]) >= 4)
    assert agent.stop() == 0
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(120) == 0
    said = agent.log
    assert agent.key() != first
    assert said.count("certificate renewed") >= 3
    assert said.count("link up") > said.count("certificate confirmed")
    assert "certificate refused" not in said
    rounds = document()["rounds"]
    assert [one["version"] for one in rounds] == [one["round"] for one in rounds]  # none abandoned
    assert {(one["result"], one["updates"]) for one in rounds} == {("moved", 1)}


@pytest.mark.slow
def test_a_kill_at_any_step_of_the_running_agent_leaves_a_certificate_that_connects(site):
    here = site()
    agent = here.enrolled(life=300, begun=600)  # past its half from the beginning: renewed at once
    for at in range(1, 6):  # key, answer, copy, rename, removal
        before = agent.key()
        agent.start("-c", KILLED, at, agent.config)
        assert agent.process.wait(240) == -signal.SIGKILL
        here.programs.remove(agent.process)
        agent.loads()
        agent.start()
        agent.until(lambda said: "certificate confirmed" in said)
        assert "certificate refused" not in agent.said
        agent.stop(signal.SIGKILL)
        agent.loads()
        assert agent.key() != before


@pytest.mark.slow
def test_a_certificate_that_the_broker_refuses_is_taken_back(site, tmp_path):
    here = site()
    agent = here.enrolled(life=300, begun=600)
    other = Authority(tmp_path, "other").issue("signer")[1]
    before = agent.pem.read_bytes()
    agent.start("-c", FOREIGN, other, agent.config)
    agent.until(lambda said: "the broker refuses the new certificate" in said)
    assert "certificate refused" in agent.said
    assert agent.said.count("link up") >= 2
    agent.stop(signal.SIGKILL)
    assert agent.pem.read_bytes() == before
    agent.start()
    agent.until(lambda said: "certificate confirmed" in said)
    agent.stop()
    assert agent.pem.read_bytes() != before


def test_a_device_that_expired_past_the_grace_waits_for_approval(site, capsys):
    here = site()
    agent = here.enrolled(life=2)
    time.sleep(3)
    here.serve_short(life=2, grace=0)
    agent.start()
    agent.until(lambda said: "certificate awaits approval" in said)
    remedy = "gridfed-aggregator ca approve meter-1"
    assert remedy in agent.said
    assert "link up" not in agent.said
    until(lambda: remedy in agent.status(capsys)["state"], "the stored state")
    here.serve_short(life=600, grace=0)
    assert run("ca", "approve", "meter-1", "--config", here.config) == OK
    agent.until(lambda said: "certificate confirmed" in said)
    assert agent.stop() == 0
    assert agent.status(capsys)["state"] == "valid"


def test_an_expired_device_is_renewed_within_the_grace_at_its_next_start(site):
    here = site()
    agent = here.enrolled(life=2)
    time.sleep(3)
    here.serve_short(life=600)
    agent.start()
    agent.until(lambda said: "certificate confirmed" in said)
    assert "certificate not renewed" not in agent.said
    agent.stop()


@pytest.mark.slow
def test_an_unreachable_server_stops_neither_link_nor_agent(site, capsys):
    here = site()
    agent = here.enrolled(life=300, begun=600)
    here.est.kill()
    here.est.wait()
    before = agent.pem.read_bytes()
    agent.start()
    agent.until(lambda said: said.count("certificate not renewed") >= 3 and "link up" in said)
    assert "link down" not in agent.said
    found = until(lambda: agent.status(capsys), "status")
    assert found["failures"] >= 1
    assert "Connection refused" in found["why"]
    assert found["do"].startswith("check ca.url")
    assert agent.stop() == 0
    assert agent.pem.read_bytes() == before
