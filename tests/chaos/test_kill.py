"""kill -9 of aggregator, broker and devices, over and over, changes not one bit of the model."""

from __future__ import annotations

import json

import pytest

from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import KINDS, Storm, federation, read, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

ROUNDS = 8
SCENARIO = Scenario(
    "kill -9",
    samples="homes",
    devices=4,
    bundle="load-mlp",
    run=RunSettings("fedadam", ("",), ROUNDS, {"steps": 3, "server_rate": 0.01}, deadline="1h"),
    until="2018-03-01",
)


def outcome(made) -> dict[str, object]:
    """What the stores say once everybody has stopped."""
    audit, state = read(made)
    assert audit.moved == ROUNDS
    assert audit.updates == {device.id: ROUNDS for device in made.prepared.devices}
    return {"version": state.version, "w": state.w.tobytes()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    with ProcessGroup(folder / "logs") as family:
        made, _ = federation(folder, family, "embedded", SCENARIO)
        for _ in made.watch(800):
            pass
        settled(made)
        made.stop()
        return outcome(made)


@pytest.mark.parametrize("kind", KINDS)
def test_consensus_reaches_the_same_bits_after_kills(tmp_path, undisturbed, kind):
    with ProcessGroup(tmp_path / "logs") as family:
        made, url = federation(tmp_path, family, kind, SCENARIO)
        storm = Storm(made, url, kind=kind, folder=tmp_path, seed=20181)
        for _ in made.watch(800, serve=storm):
            pass
        settled(made)
        made.stop()
        assert outcome(made) == undisturbed, json.dumps(storm.kills)
    assert len(storm.kills) == 3, f"the run ended before everybody was killed once: {storm.kills}"
