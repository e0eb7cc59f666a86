"""A direct simulation gives the bits of a run over a real broker, with the aggregator as a process."""

from __future__ import annotations

import pytest

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from aggregator.store.opener import open_store
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.direct.run import DirectRun
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(
        not (has_embedded() or mosquitto_program()), reason="neither iotcore nor mosquitto here"
    ),
]


@pytest.mark.slow
def test_every_round_has_the_same_bits(tmp_path):
    samples, run = sample_set("homes"), RunSettings(shared=("body.",), rounds=3, deadline="1h")
    chosen = Scenario("bits", devices=3, bundle="load-week-1", run=run).first_days(28, samples)
    with display(is_quiet=True) as shown:
        FleetRun(chosen, samples, tmp_path, shown, is_in_process=True).run()
        direct = DirectRun(chosen, samples, shown)
        direct.run()
    config = AggregatorConfig.load(next(tmp_path.rglob("aggregator.toml")))
    with open_store(config.database, read_only=True) as store:
        recorded = store.runs.versions(1)
    assert direct.result is not None
    assert len(recorded) == len(direct.result.rounds) == 3
    assert recorded[-1].digest.hex() == direct.result.digest
