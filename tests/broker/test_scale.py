"""What a round costs a device does not depend on how many others there are."""

from __future__ import annotations

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROUNDS = 3


def fleet(folder, devices):
    chosen = Scenario(
        "scale",
        samples="homes",
        devices=devices,
        bundle="load-lstm-week",
        run=RunSettings("fedavg", None, ROUNDS, {"steps": 1}, deadline="1h"),
        until="2018-01-22",
    )
    with display(is_quiet=True) as shown:
        run = FleetRun(
            chosen, sample_set("homes"), folder, shown, is_in_process=True, kind="mosquitto"
        )
        cost = run.run()
    assert run.refused == {}
    assert (cost.devices, cost.rounds) == (devices, ROUNDS)
    return cost.each


@pytest.mark.soak
def test_the_cost_per_device_is_the_same_for_15_and_60_devices(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    few, many = fleet(tmp_path / "few", 15), fleet(tmp_path / "many", 60)
    scalars = 4 * 5760
    for way in ("bytes_up", "bytes_down"):
        assert many[way] == pytest.approx(few[way], rel=0.05), way
        assert scalars < many[way]
    assert many["bytes_up"] < 1.05 * scalars
