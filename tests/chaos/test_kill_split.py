"""kill -9 inside rounds of split learning: the run goes on, and nothing is applied twice.

Turns perish with the process that is killed. Where that is the aggregator, everybody begins the
round anew, and the run ends with the bits of one that nobody disturbed. Where it is a device, it
is missing from some turns; the journal says from which, and still folds to what was announced.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest

from firmware_sim.fleet.processes import ProcessGroup
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import Storm, federation, read, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

ROUNDS, TURNS, DEVICES = 5, 6, 4
STATIONS = ("broxden-park-and-ride", "kinross-park-and-ride", "south-inch", "rie-achan-road")


class Chosen(Storm):
    """Kills only what it was told to."""

    def __init__(self, *args, kinds, **more):
        super().__init__(*args, **more)
        self.first, self.kinds, self.rng.choice = [], kinds, self.chosen

    def chosen(self, _options):
        return self.kinds[self.kills.total() % len(self.kinds)]


def scenario(folder, deadline=30.0):
    sites = folder / "sites.toml"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"site-{name}" for name in STATIONS]
    sites.write_text("edges = " + json.dumps([[a, b] for a, b in itertools.pairwise(names)]))
    turns = {"batch": 8, "deadline": deadline, "forecast_batch_delay": 0.1}
    learning = RunSettings(
        "pfgl",
        rounds=ROUNDS,
        settings={"steps": TURNS, "rate": 0.003, "credit": 0.9, "turns": turns},
        deadline="120s",
        graph={"kind": "diffusion", "capacity": DEVICES, "sites": str(sites)},
    )
    return Scenario(
        "kill -9 of pfgl", devices=DEVICES, run=learning, samples="chargers",
        bundle="chargers-1",
    )  # fmt: skip


def run(folder, kinds=(), seed=None, deadline=30.0, most=8):
    storm = None
    with ProcessGroup(folder / "logs") as family:
        made, url = federation(folder, family, "mosquitto", scenario(folder, deadline))
        if kinds:
            storm = Chosen(
                made, url, kind="mosquitto", folder=folder, seed=seed, most=most, kinds=kinds
            )
        for _ in made.watch(800, serve=storm or (lambda: None)):
            pass
        settled(made)
        made.stop()
        audit, state = read(made)
    return audit, state, storm.kills if storm else Counter()


def bits(state):
    held = {name: np.asarray(vector).tobytes() for name, vector in state.held.items()}
    return held | {"net": state.net["p"].tobytes(), "first": state.net["first"].tobytes()}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    audit, state, _ = run(tmp_path_factory.mktemp("calm"))
    assert set(audit.updates.values()) == {ROUNDS}
    return bits(state)


def test_an_aggregator_killed_inside_rounds_ends_with_the_same_bits(tmp_path, calm):
    audit, state, kills = run(tmp_path, ("aggregator",), seed=3)
    assert kills["aggregator"] >= 3
    assert audit.moved == ROUNDS
    assert set(audit.updates.values()) == {ROUNDS}
    assert bits(state) == calm, json.dumps(kills)


def test_devices_and_a_broker_killed_inside_rounds_are_counted_once(tmp_path):
    audit, state, kills = run(tmp_path, ("device", "device", "broker"), seed=5, deadline=3.0)
    assert kills.total() >= 3
    assert audit.moved == state.version == ROUNDS
    assert set(audit.updates.values()) == {ROUNDS}, json.dumps(kills)
