"""Three devices, a daemon and a broker as programs: every device serves what was best on held-back data."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from edge_sdk.extensions.choice.combination import CANDIDATES, LAST_GOOD, MARGIN
from edge_sdk.forecasting.forecast import COMMON, FLEET, TUNED
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import prepare
from firmware_sim.reports.evaluation import last_status
from firmware_sim.samples import sample_set
from tests.broker.test_federation import SHORT

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE = 300.0


def test_every_device_says_what_it_serves_and_why(tmp_path):
    if mosquitto_program() is None and not has_embedded():
        pytest.skip("there is no broker on this machine")
    scenario = replace(SHORT, devices=3, until="2018-04-01")
    with ProcessGroup(tmp_path / "logs") as family:
        url = start_broker(family, tmp_path / "broker")
        page = f"127.0.0.1:{free_port()}"
        prepared = prepare(
            tmp_path / "fleet", "trial", scenario, sample_set("homes"), broker=url, page=page
        )
        for device in prepared.devices:
            text = device.config.read_text("utf-8")
            device.config.write_text(f"{text}\n[training]\nholdout_fraction = 0.2\n", "utf-8")
        federation = Federation(prepared, scenario.run.rounds, family)
        federation.start_aggregator()
        federation.start_devices()
        end = time.monotonic() + PATIENCE
        for running in federation.devices:
            running.wait(max(0.0, end - time.monotonic()))
        ended = [last_status(running) for running in federation.devices]
        federation.stop()
    for device, last in zip(prepared.devices, ended, strict=True):
        found = json.loads(run(command("gridfed-edge", "status", str(device.config), "--json")))
        assert found["forecast"] == last["forecast"]
        errors = found["forecast"]["error relative to fleet"]
        assert found["forecast"]["days compared"] >= 7
        assert set(CANDIDATES) - {COMMON, LAST_GOOD} <= set(errors)
        assert errors[FLEET] == 1.0
        served = found["forecast"]["served"]
        assert (1.0 - MARGIN) * errors[served] <= min(errors.values()) + 1e-4  # rounded
        assert last["counts"]["models tuned"] >= 1
        told = json.loads(run(command("gridfed-edge", "forecast", str(device.config), "--json")))
        assert set(told["candidates"]) == set(errors)
        assert "served" in run(command("gridfed-edge", "forecast", str(device.config)))
        scores = json.loads(run(command("gridfed-edge", "backtest", str(device.config), "--json")))
        by_name = {row["name"]: row for row in scores["rows"]}
        assert set(CANDIDATES) - {COMMON, TUNED, LAST_GOOD} <= set(by_name)
        assert not any(row["trained on these windows"] for row in by_name.values())
        assert by_name[FLEET]["error"] > 0.0
