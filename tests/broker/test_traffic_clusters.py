"""FedDA's averaged weeks and traffic clusters between real programs over a real broker."""

from __future__ import annotations

import json

import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.authority.access.broker_process import has_embedded
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.fleet.processes import command, run
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = pytest.mark.broker

DEVICES = 3
SETTINGS = {
    "steps": 2,
    "clustering": "profiles",
    "cluster_count": 2,
    "quasi": "weeks",
    "quasi_rounds": 1,
}


@pytest.mark.slow
def test_devices_train_on_averaged_weeks_and_are_clustered_by_their_profiles(tmp_path):
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    samples = sample_set("homes")
    learning = RunSettings("fedda", None, 3, SETTINGS, DEVICES, deadline="1h")
    chosen = Scenario(
        "traffic", samples="homes", devices=DEVICES, bundle="load-mlp", run=learning
    ).first_days(56, samples)
    with display(is_quiet=True) as shown:
        one = FleetRun(
            chosen, samples, tmp_path, shown, is_in_process=False, kind="embedded", limit=200.0
        )
        one.run()
    assert (one.moved, one.refused) == (3, {})
    config = tmp_path / "fleet" / "aggregator.toml"
    audited = json.loads(run(command("gridfed-aggregator", "audit", str(config), "--json")))
    assert (audited["rounds"], audited["faults"]) == (3, [])
    bound = bind(AggregatorConfig.load(config, {}))
    with open_store(bound.config.database, read_only=True) as store:
        saved = store.states.load(store.runs.latest().run)
    state = state_codec.rebuild(bound.first_state(), saved.leaves)
    members = [name for names in state.clusters.values() for name in names]
    assert len(members) == DEVICES
    assert len(state.clusters) == 2
