"""kill -9 loses and doubles no update that is sent in chunks without a grant, or in one message."""

from __future__ import annotations

import json

import pytest

from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import Storm, federation, read, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.slow]

ROUNDS = 8
SCENARIO = Scenario(
    "kill -9 in chunks",
    samples="homes",
    devices=3,
    bundle="load-lstm-week",
    run=RunSettings("fedavg", ("",), ROUNDS, {"steps": 2}, deadline="1h"),
    until="2018-03-01",
)


def trained(folder, *, is_disturbed):
    """Train in the real programs; return the final model, and who was killed."""
    with ProcessGroup(folder / "logs") as family:
        made, url = federation(folder, family, "mosquitto", SCENARIO)
        storm = Storm(made, url, kind="mosquitto", folder=folder, seed=20182)
        for _ in made.watch(800, serve=storm if is_disturbed else lambda: None):
            pass
        settled(made)
        made.stop()
        audit, state = read(made)
        assert audit.moved == ROUNDS
        assert audit.updates == {device.id: ROUNDS for device in made.prepared.devices}
        return state.w.tobytes(), storm.kills


@pytest.mark.parametrize(
    "single",
    [
        pytest.param(0, id="six chunks"),
        pytest.param(262_144, id="one message", marks=pytest.mark.soak),
    ],
)
def test_updates_reach_the_same_bits_after_kills(tmp_path, monkeypatch, single):
    monkeypatch.setenv("GRIDFED_AGGREGATOR_ADMISSION__MAX_SINGLE_BYTES", str(single))
    calm, _ = trained(tmp_path / "calm", is_disturbed=False)
    disturbed, kills = trained(tmp_path / "storm", is_disturbed=True)
    assert disturbed == calm, json.dumps(kills)
    assert len(kills) == 3, f"the run ended before everybody was killed once: {kills}"
