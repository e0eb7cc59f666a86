"""A fleet with the shipped day bundle over a broker serves the profiles of the accuracy table's path."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from aggregator.extensions.analytic.profile_fleet import PASSES
from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from edge_sdk.extensions.analytic.residual_paths import fitted_paths
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario, unix_seconds
from tools.experiments.marks.days import SetOfDevices

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE = 300.0
SCENARIO = Scenario(
    "homes of six weeks",
    samples="homes",
    devices=3,
    bundle="load-day-1",
    run=RunSettings("analytic", rounds=PASSES, deadline="1h"),
    until="2018-02-12",
)


def test_agents_serve_the_profiles_by_which_the_table_is_computed(tmp_path):
    if mosquitto_program() is None and not has_embedded():
        pytest.skip("there is no broker on this machine")
    with ProcessGroup(tmp_path / "logs") as family:
        url, page = start_broker(family, tmp_path / "broker"), f"127.0.0.1:{free_port()}"
        prepared = prepare(
            tmp_path / "fleet", "days", SCENARIO, sample_set("homes"), broker=url, page=page
        )
        federation = Federation(prepared, PASSES, family)
        federation.start_aggregator()
        federation.start_devices()
        end = time.monotonic() + PATIENCE
        for running in federation.devices:
            running.wait(max(0.0, end - time.monotonic()))
        federation.stop()
    served = {
        one.id: json.loads(run(command("gridfed-edge", "forecast", str(one.config), "--json")))
        for one in prepared.devices
    }
    records = [record_of(one) for one in prepared.devices]
    table = SetOfDevices(SimpleNamespace(name="homes", series=records, day=24), SCENARIO.bundle)
    vectors = table.vectors("fleet", tmp_path, Console(quiet=True))
    for record in records:
        found, p = served[record.name], vectors[record.name]
        newest = np.array([len(record.value) - 1])
        median, before = (
            table.forecasts(record.name, x, newest)[0, :, 1] for x in (p, table.initial)
        )
        frame = table.whole[record.name]
        _, paths = table.run("day", p=p, x=frame.inputs(newest))
        expected = fitted_paths(
            frame.restore(paths.reshape(1, -1), newest).reshape(paths.shape)[0],
            median,
            np.array(found["interval"]),
            found["coverage"],
        )
        assert np.abs(median - before).max() > 0.01 * median.mean()  # the fleet has taught it
        assert found["values"] == pytest.approx(np.maximum(median, 0.0), rel=1e-5, abs=1e-5)
        expected = np.maximum(expected, 0.0).mean(axis=0)
        assert found["expected"] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def record_of(device):
    """Return a device's record, as the anchors cut a set, without a part to be tested on."""
    times, values = device.sample.column("load_kwh")
    known = times < unix_seconds(SCENARIO.until)
    times, values = times[known], values[known]
    return SimpleNamespace(
        name=device.id,
        times=times.astype("datetime64[s]"),
        value=values,
        filled=values,
        tod=times // 3600 % 24,
        train_end=len(values),
    )
