"""Real programs over a real broker: training that explodes ruins no device, and stops no run."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from firmware_sim.fleet.processes import ProgramDied, command, run
from tests.broker.test_federation import PATIENCE, SHORT, begin, rewrite

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

EXPLODING = replace(
    SHORT,
    run=replace(SHORT.run, rounds=12, settings={"steps": 64, "rate": 1.0}, deadline="2s"),
)


def returned(trial):
    """How often each device returned to its last good parameters; 0 before it has a state."""
    counts = []
    for number in range(len(trial.run.prepared.devices)):
        try:
            counts.append(trial.device(number)["models returned"])
        except ProgramDied:
            counts.append(0)
    return counts


def forecast(trial, number):
    config = str(trial.run.prepared.devices[number].config)
    return json.loads(run(command("gridfed-edge", "forecast", config, "--json")))


def test_devices_keep_the_last_good_model_and_train_again_at_a_valid_rate(begin):
    trial = begin(EXPLODING, "mosquitto")
    trial.until(lambda: all(count > 0 for count in returned(trial)))
    assert trial.status()["run"]["version"] == 0, "what exploded moved the model"
    for number in range(2):
        told = forecast(trial, number)
        assert told["source"] != "none"  # which one is served depends on how much is compared
        assert all(0.0 < value < 100.0 for value in told["values"]), told
    rewrite(trial.config, "run", settings={"steps": 4, "rate": 1000.0})
    done = subprocess.run(
        command("gridfed-aggregator", "check-config", str(trial.config)),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert "run.settings.rate: 1000 is above 1" in done.stderr
    trial.restart_aggregator(settings={"steps": 4, "rate": 0.003})
    trial.until(lambda: trial.status()["run"]["version"] >= 3)
    for number in range(2):
        told = forecast(trial, number)
        assert told["source"] != "none"
        assert all(0.0 < value < 100.0 for value in told["values"]), told
