"""A copied store, and both of its owners at work: found out, shut out, told, and mended."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from aggregator.commands import main as cli
from edge_sdk import Config
from edge_sdk.errors import Reason
from edge_sdk.protocol.keys import generate, save_public, save_signing_key
from firmware_sim.attacks.attack_plan import HONEST
from firmware_sim.fleet.in_process import enlist
from tests.fleet.conftest import history


def copied(one, number):
    """Start a second process from a copy of a device's folder, beside the first."""
    config = Config.load(one.folder / f"home-{number}.toml")
    one.die(number)
    shutil.copytree(config.state, config.state.with_name("copy"))
    one.start(number)
    return enlist(
        one.fleet,
        replace(config, state=config.state.with_name("copy")),
        HONEST,
        connect=lambda _config, will: one.broker.link("copy", will),
        history=lambda: history(number),
        clock=one.clock,
    )


def test_both_processes_of_a_cloned_identity_stop_and_the_fleet_continues(world, caplog, capsys):
    one = world(run={"quorum": 2})
    one.start_all()
    one.until(lambda: one.version >= 2)
    copy = copied(one, 0)
    both = (one.clients[0], copy)
    with caplog.at_level("WARNING"):
        one.until(lambda: {client.why_stopped for client in both} == {"TWO_LIVES"})
    assert "quarantined device=home-0" in caplog.text
    assert "another process uses this name and key" in caplog.text
    version = one.version
    one.until(lambda: one.version >= version + 2)
    cohorts = [v.report["cohort"] for v in one.daemon._store.runs.versions(1)]
    assert all(len(set(cohort)) == len(cohort) for cohort in cohorts)
    assert "home-0" not in cohorts[-1]
    for _ in range(20):
        one.turn()
    assert one.daemon.snapshot.status["alarms"]["home-0"].startswith("TWO_LIVES: ")
    assert b"gridfed_devices_quarantined 1.0" in one.daemon.metrics.text()
    one.kill_daemon()
    capsys.readouterr()
    assert cli.main(["status", str(one.config)]) == 0
    assert "ALARM home-0: quarantined, TWO_LIVES: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_key_readmits_the_device(world):
    one = world(run={"quorum": 2})
    one.start_all()
    one.until(lambda: one.version >= 2)
    copy = copied(one, 0)
    one.until(lambda: one.clients[0].why_stopped == copy.why_stopped == "TWO_LIVES")
    key = generate()
    save_signing_key(one.folder / "home-0.key", key)
    save_public(one.folder / "home-0.pub", key.public)
    public = str(one.folder / "home-0.pub")
    enrol = ["enrol", "home-0", "--public", public, "--config", str(one.config)]
    assert cli.main(enrol) == 0
    one.die(0)
    client = one.start(0)
    accepted = one.daemon._ingress.counts["ACCEPTED"]
    one.until(lambda: client.status()["counts"].get("accepted", 0) >= 2, turns=1000)
    assert not client.why_stopped
    assert one.daemon._ingress.counts["ACCEPTED"] > accepted
    assert copy.why_stopped == Reason.TWO_LIVES.name


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_restored_image_is_no_cloned_identity(world, times):
    one = world(run={"quorum": 2})
    one.start_all()
    state = Config.load(one.folder / "home-0.toml").state
    for number in range(1, times + 1):
        one.until(lambda: one.clients[0].status()["counts"].get("accepted", 0) >= 1)
        one.die(0)
        image = state.with_name(f"image-{number}")
        shutil.copytree(state, image)
        one.start(0)
        one.until(lambda: one.clients[0].status()["counts"].get("accepted", 0) >= 1)
        one.die(0)
        shutil.rmtree(state)
        shutil.copytree(image, state)
        one.start(0)
    one.until(lambda: one.clients[0].status()["counts"].get("accepted", 0) >= 2)
    assert not one.daemon._registry.quarantined()
