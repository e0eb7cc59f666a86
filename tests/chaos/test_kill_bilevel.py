"""kill -9 between the two questions of BiG-FL: the extra round trip is taken up where it broke off.

A round of BiG-FL asks twice: for trained weights, and then (``solve``) for what the map's step
needs. Kills come while the second question is open, of the aggregator, of a device that solves, and
of both. Nothing perishes: models and map are those of a run that nobody disturbed, to the bit.
"""

from __future__ import annotations

import sqlite3
import time

import pytest

from aggregator import config as configs
from firmware_sim.fleet.processes import ProcessGroup, command
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import federation, kill, read, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

DEVICES = 3
VICTIMS = (("aggregator",), ("aggregator", "device"))  # of each round's solving
LONG = {"iterations": 60, "tolerance": 0.0, "curvature_batches": 16}  # so that a kill falls into it
SETTINGS = {"steps": 2, "rate": 0.01, "map_rate": 0.5, "smooth": 0.3, **LONG}
LEARNING = RunSettings("bigfl", rounds=len(VICTIMS), settings=SETTINGS, deadline="300s")
HOMES = Scenario(
    "kill -9 while devices solve", devices=DEVICES, run=LEARNING, samples="homes",
    bundle="load-mlp", until="2018-03-01",
)  # fmt: skip


class Killer:
    """Kills, once a round, while the second question is open."""

    def __init__(self, made):
        self.made, self.killed = made, []
        database = configs.AggregatorConfig.load(made.prepared.aggregator).database
        self.database = f"file:{database}?mode=ro"

    def __call__(self):
        if len(self.killed) == len(VICTIMS):
            return
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            round_ = self.solving()
            if round_ is not None and round_ not in self.killed:
                self.strike(VICTIMS[len(self.killed)])
                self.killed.append(round_)
                return
            time.sleep(0.005)

    def solving(self):
        """The round in which somebody still has to solve."""
        with sqlite3.connect(self.database, uri=True, timeout=5) as db:
            row = db.execute(
                "SELECT max(round) FROM tasks WHERE ask = 'solve' AND state = 'open'"
            ).fetchone()
        return row[0]

    def strike(self, victims):
        if "aggregator" in victims:
            kill(self.made.aggregator)
        if "device" in victims:
            kill(self.made.devices[-1])
            path = str(self.made.prepared.devices[-1].config)
            self.made.devices[-1] = self.again(self.made.devices[-1], "gridfed-edge", "run", path)
        if "aggregator" in victims:
            path = str(self.made.prepared.aggregator)
            run = self.again(self.made.aggregator, "gridfed-aggregator", "run", path)
            self.made.aggregator = run

    def again(self, old, *arguments):
        self.made.family.members.remove(old)
        return self.made.family.start(old.name, command(*arguments))


def run(folder, *, disturbed):
    with ProcessGroup(folder / "logs") as family:
        made, _ = federation(folder, family, "embedded", HOMES)
        killer = Killer(made) if disturbed else None
        for _ in made.watch(800, serve=killer or (lambda: None)):
            pass
        settled(made)
        made.stop()
        audit, state = read(made)
    return audit, state, killer.killed if killer else []


@pytest.mark.soak
def test_kills_during_the_bilevel_solve_change_no_bit(tmp_path):
    _, calm, _ = run(tmp_path / "calm", disturbed=False)
    audit, state, killed = run(tmp_path / "storm", disturbed=True)
    assert len(killed) == len(VICTIMS)
    assert audit.moved == state.moved == len(VICTIMS)
    assert calm.moved == len(VICTIMS)
    assert {k: v.tobytes() for k, v in state.phi.items()} == {
        k: v.tobytes() for k, v in calm.phi.items()
    }
    assert state.held.keys() == calm.held.keys()
    for name, wanted in calm.held.items():
        assert state.held[name].tobytes() == wanted.tobytes(), name
