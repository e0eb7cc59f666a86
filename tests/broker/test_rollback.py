"""Version 1, version 2, back to 1, and back on a schedule: real programs on Mosquitto."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import load_signing_key
from firmware_sim.fleet.processes import ProgramRefused, command, run
from tests.broker.test_federation import ENDLESS, SHIPPED, Trial, begin, rewrite

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]


def second_version(trial: Trial, folder: Path, version: int = 2) -> Path:
    """Write the shipped bundle as a later version, signed by the fleet's root."""
    folder = shutil.copytree(SHIPPED / "load-mlp", folder / "load-mlp-2")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    raw = replace(manifest, version=version).canonical()
    (folder / MANIFEST).write_bytes(raw)
    root = load_signing_key(next(trial.config.parent.rglob("root.key")))
    (folder / SIGNATURE).write_bytes(seal(root, raw))
    return folder


def trains(trial: Trial, number: int) -> None:
    """Wait until a run has moved its model, and every device has joined it and can forecast."""
    trial.until(lambda: trial.status()["run"]["run"] == number)
    trial.until(lambda: trial.status()["run"]["version"] >= 1)
    for i in range(len(trial.run.prepared.devices)):
        trial.until(lambda i=i: trial.device(i)["run"] == number)
        config = str(trial.run.prepared.devices[i].config)
        said = json.loads(run(command("gridfed-edge", "forecast", config, "--json")))
        assert None not in said["values"]
        assert said["source"] not in ("none", "")


def stop(trial: Trial) -> None:
    trial.family.stop([trial.run.aggregator])
    trial.family.members.remove(trial.run.aggregator)


def announced(trial: Trial) -> str:
    said = run(command("gridfed-aggregator", "announce", str(trial.config)))
    trial.run.start_aggregator()
    return said


def test_a_fleet_goes_to_version_two_and_back_and_trains_and_forecasts(begin, tmp_path):
    trial = begin(ENDLESS, "mosquitto")
    trains(trial, 1)

    stop(trial)
    trial.say("bundle", "promote", "load-mlp")
    rewrite(trial.config, "run", bundle="load-mlp@live")
    assert "run 1 continues" in run(command("gridfed-aggregator", "announce", str(trial.config)))
    trial.say("bundle", "promote", str(second_version(trial, tmp_path)))
    assert "fetch bundle load-mlp version 2" in announced(trial)
    trains(trial, 2)

    stop(trial)
    rewrite(trial.config, "run", bundle="load-mlp")  # the shipped version 1, which devices refuse
    with pytest.raises(ProgramRefused, match="devices have version 2 and refuse a lower version"):
        run(command("gridfed-aggregator", "announce", str(trial.config)))
    rewrite(trial.config, "run", bundle="load-mlp@live")
    assert "version 3, with the content of version 1" in trial.say(
        "bundle", "rollback", "load-mlp", "--to", "1"
    )
    announced(trial)
    trains(trial, 3)
    assert "bundle_refused" not in trial.status()

    config = trial.config
    rewrite(config, "run", schedule={"rounds_per_day": 1})
    stop(trial)
    trial.run.start_aggregator()
    trial.until(lambda: "next round" in trial.status()["schedule"])
    before = trial.status()["run"]["version"]
    run(command("gridfed-aggregator", "round", "now", str(config)))
    trial.until(lambda: trial.status()["run"]["version"] == before + 1)
    trial.until(lambda: "next round" in trial.status()["schedule"])
    said = json.loads(run(command("gridfed-aggregator", "status", str(config), "--json")))
    assert said["run"]["phase"] == "pause"


def size_of(path):
    """Return the bytes of a file that may be replaced at this moment; 0 without it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.soak
def test_a_device_whose_bundle_is_damaged_uses_the_one_before_and_requests_it_again(
    begin, tmp_path
):
    trial = begin(ENDLESS, "mosquitto")
    trains(trial, 1)
    stop(trial)
    trial.say("bundle", "promote", "load-mlp")
    trial.say("bundle", "promote", str(second_version(trial, tmp_path)))
    rewrite(trial.config, "run", bundle="load-mlp@live")
    announced(trial)
    trains(trial, 2)

    stop(trial)  # no aggregator answers, so the device has to go on with what it has
    agent, device = trial.run.devices[0], trial.run.prepared.devices[0]
    agent.signal(signal.SIGKILL)
    agent.wait(30.0)
    trial.family.members.remove(agent)
    (kept,) = device.config.parent.glob(f"{device.id}/bundle/[!.]*")
    (kept / "forecast.onnx").write_bytes(b"a page of flash that cannot be read")
    said = json.loads(run(command("gridfed-edge", "forecast", str(device.config), "--json")))
    assert said["source"] not in ("none", "")
    agent = trial.run.devices[0] = trial.run.start_device(device)
    trial.until(lambda: "bundle not used" in agent.tail(200))
    assert 'instead="load-mlp version 1"' in agent.tail(200)

    trial.run.start_aggregator()
    trial.until(lambda: size_of(kept / "forecast.onnx") > 100)
    trial.until(lambda: trial.device(0)["run"] == 2)
    version = trial.status()["run"]["version"]
    trial.until(lambda: trial.device(0)["version"] > version)
