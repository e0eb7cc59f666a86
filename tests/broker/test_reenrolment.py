"""An operator orders a new identity key: real programs, `ca serve`, and Mosquitto with TLS."""

from __future__ import annotations

import signal

import pytest

from aggregator.store.opener import open_store
from edge_sdk.commands.main import main as edge
from edge_sdk.errors import OK
from edge_sdk.protocol.keys import load_device_key
from tests.broker.test_certificate_renewal import RenewalSite
from tests.broker.test_enrolment import run, sites, until

pytestmark = pytest.mark.broker

KILLED = """
import os, signal, sys
from pathlib import Path
from edge_sdk.commands.main import main
from edge_sdk.extensions.certificates import certificate_files
from edge_sdk.extensions.key_rotation import identity_rotation
from edge_sdk.store.store import DeviceStore

at, count = int(sys.argv[1]), 0

def fatal(function, is_meant=lambda *_, **__: True):
    def call(*args, **more):
        global count
        count += is_meant(*args, **more)
        if count == at and is_meant(*args, **more):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **more)
    return call

def is_step(*_, **facts):
    return facts.get(identity_rotation.STEP, 0) > 0

identity_rotation.save_signing_key = fatal(identity_rotation.save_signing_key)
certificate_files.write_atomically = fatal(certificate_files.write_atomically)
DeviceStore.set_facts = fatal(DeviceStore.set_facts, is_step)
DeviceStore.file_paper = fatal(DeviceStore.file_paper, is_step)
Path.replace = fatal(Path.replace, lambda path, *_: path.name.endswith(".next"))
sys.exit(main(["run", sys.argv[2]]))
"""
"""An agent that ends itself before the n-th step of a replacement, the renewed certificate included."""


@pytest.fixture
def site(tmp_path):
    yield from sites(RenewalSite, tmp_path)


def order(here, agent):
    """Order the replacement, and return the device's keys before it."""
    assert run("command", "meter-1", "reenrol", "--config", here.config) == OK
    return (load_device_key(agent.folder / "meter.key").public,)


def is_replaced(here, agent, before):
    """Return whether the aggregator knows the key in the device's file alone, and it is a new one."""
    key = load_device_key(agent.folder / "meter.key").public
    with open_store(here.folder / "state" / "aggregator.db", read_only=True) as store:
        return store.devices.get("meter-1").sign == (key,) != before


@pytest.mark.slow
def test_a_device_enrols_its_new_key_over_est_and_no_operator_acts(site, capsys):
    here = site()
    here.start("aggregator", "run", here.config)
    agent = here.enrolled(life=300)
    agent.start()
    agent.until(lambda said: "welcome received" in said)
    shown, certificate = here.devices(capsys)["meter-1"], agent.key()
    before = order(here, agent)
    agent.until(lambda said: "identity key replaced" in said)
    until(lambda: is_replaced(here, agent, before), "the former key is retired")
    agent.until(lambda said: "certificate confirmed" in said)
    assert agent.key() != certificate
    assert "identity key awaits approval" not in agent.said
    after = here.devices(capsys)["meter-1"]
    assert (after["generation"], after["state"]) == (shown["generation"], "enrolled")
    assert after["spent"] >= shown["spent"]
    assert agent.stop() == 0
    assert edge(["enrol", str(agent.config), "--renew"]) == OK  # the authority knows the new key
    agent.start()
    agent.until(lambda said: "welcome received" in said)
    assert agent.stop() == 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_kill_at_any_step_of_the_agent_ends_with_the_new_key(site, capsys):
    # Mosquitto 2.0.11 ends now and then when it reads its rules again while a client disconnects.
    here = site(reload=["true"])
    here.start("aggregator", "run", here.config)
    agent = here.enrolled(life=300)
    agent.start()
    agent.until(lambda said: "welcome received" in said)
    agent.stop()
    killed = 0
    for at in range(1, 10):  # order, key, TLS key, answer, step, copy, rename, step, rename
        agent.start("-c", KILLED, at, agent.config)
        agent.until(lambda said: "welcome received" in said)
        before = order(here, agent)

        def is_over(before=before):
            is_dead = agent.process.poll() is not None
            return is_dead or is_replaced(here, agent, before)

        until(is_over, f"step {at}", 240.0)
        if agent.process.poll() is not None:
            assert agent.process.wait() == -signal.SIGKILL
            here.programs.remove(agent.process)
            killed += 1
            agent.loads()
            agent.start()
        until(lambda before=before: is_replaced(here, agent, before), f"step {at}", 240.0)
        agent.stop()
    assert here.devices(capsys)["meter-1"]["generation"] == 1
    assert killed >= 8
