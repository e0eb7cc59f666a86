"""A device that was given models of its own is found out: real programs, two brokers, one stolen key."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_sdk.protocol import keys
from firmware_sim.fleet.federation import free_port, start_broker
from firmware_sim.fleet.processes import command
from tests.broker.test_federation import ENDLESS, begin, rewrite

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


ROOT = Path(__file__).resolve().parents[2]
EITHER = replace(ENDLESS, run=replace(ENDLESS.run, quorum=1))
"""A run in which one device is enough for a round."""


def stop(trial, program):
    program.signal(signal.SIGTERM)
    program.wait(60)
    trial.family.members.remove(program)


def log(*args, cwd=None):
    done = subprocess.run(
        [sys.executable, "-m", "aggregator", "log", *args, "--json"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def log_of(trial, number):
    return trial.device(number).get("model log", {"size": 0})


def test_a_forked_aggregator_is_found_by_comparison_by_the_device_and_by_the_honest_one(
    begin, tmp_path
):
    trial = begin(EITHER)
    first, devices = trial.run.prepared.devices[0], trial.run.devices
    trial.until(lambda: trial.status()["run"]["version"] >= 1)
    trial.until(lambda: log_of(trial, 0)["size"] >= 2)
    stop(trial, devices[0])
    stop(trial, trial.run.aggregator)

    # whoever copies keys and database can go on with one device alone, at another broker
    honest, hostile = trial.config.parent, tmp_path / "hostile"
    shutil.copytree(honest, hostile)
    config = hostile / trial.config.name
    other = start_broker(trial.family, tmp_path / "other-broker", "embedded")
    rewrite(config, "broker", url=other)
    rewrite(config, "http", listen=f"127.0.0.1:{free_port()}")
    own = trial.url
    trial.run.start_aggregator()
    forger = trial.family.start("forger", command("gridfed-aggregator", "run", str(config)))
    rewrite(first.config, "broker", url=other)
    deceived = trial.family.start("deceived", command("gridfed-edge", "run", str(first.config)))
    trial.until(lambda: "round closed" in forger.tail(200))  # until then both logs are equal
    before = log_of(trial, 0)["size"]
    trial.until(lambda: log_of(trial, 0)["size"] > before)
    stop(trial, deceived)
    deceived_log = log_of(trial, 0)
    assert deceived_log["fork"] == ""  # it cannot know yet
    stop(trial, forger)
    trial.until(lambda: log_of(trial, 1)["size"] > deceived_log["size"])

    # back at the fleet's broker, the device refuses the fleet's models, and both ends report it
    rewrite(first.config, "broker", url=own)
    back = trial.family.start("back", command("gridfed-edge", "run", str(first.config)))
    trial.until(lambda: log_of(trial, 0)["fork"])
    found = log_of(trial, 0)
    assert (found["size"], found["root"]) == (deceived_log["size"], deceived_log["root"])
    assert found["fork"].count(f"gridfed-log/1/{trial.device(0)['fleet']}/1\n") == 2
    assert any("model log fork" in line for line in back.tail(200).splitlines())
    trial.until(lambda: "device follows another model log" in trial.run.aggregator.tail(2000))
    assert log_of(trial, 1)["fork"] == ""

    # a third party finds it from the export and the two devices' notes alone
    (tmp_path / "deceived").write_text(deceived_log["note"], "utf-8")
    (tmp_path / "other").write_text(log_of(trial, 1)["note"], "utf-8")
    log("export", "--config", str(trial.config), "--out", str(tmp_path / "log"))
    public = honest / "aggregator" / "aggregator.key"
    keys.save_public(tmp_path / "public", keys.load_signing_key(public).public)
    against = ("--public", "public", "--against", "deceived", "other")
    code, found = log("verify", "log", *against, cwd=tmp_path)
    assert (code, [one["reason"] for one in found["notes"]]) == (1, ["LOG_FORK", ""])
