"""Real programs over a real broker, killed over and over: what the tests of this folder share."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter

import pytest

from aggregator import config as configs
from aggregator.extensions.audit.recompute import Audit, recompute
from aggregator.extensions.authority.access.broker_process import mosquitto_program
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import RunningProgram, command
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Scenario

KINDS = [
    pytest.param("embedded", marks=pytest.mark.soak),
    pytest.param(
        "mosquitto",
        marks=pytest.mark.skipif(
            mosquitto_program() is None,
            reason="mosquitto is not installed",
        ),
    ),
]


def kill(program: RunningProgram) -> None:
    """Kill a program; a device may just have ended by itself, its rounds done."""
    program.signal(signal.SIGKILL)
    assert program.wait(120) in (-signal.SIGKILL, 0), program.tail()


def federation(folder, family, kind, scenario: Scenario) -> tuple[Federation, str]:
    if kind == "mosquitto" and mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    url = start_broker(family, folder / "broker", kind)
    page = f"127.0.0.1:{free_port()}"
    samples = sample_set(scenario.samples)
    files = prepare(folder / "fleet", "kills", scenario, samples, broker=url, page=page)
    made = Federation(files, scenario.run.rounds, family)
    made.start_aggregator()
    made.start_devices()
    return made, url


def read(made: Federation) -> tuple[Audit, object]:
    """What the aggregator's store says once everybody has stopped; every round recomputed."""
    config = configs.AggregatorConfig.load(made.prepared.aggregator)
    bound = configs.bind(config)
    with open_store(config.database, read_only=True) as store:
        audit = recompute(store, bound.half, bound.first_state().w)
        saved = store.states.load(store.runs.latest().run)
        state = state_codec.rebuild(bound.half.init(bound.first_state().w), saved.leaves)
    assert audit.is_sound, audit.faults
    return audit, state


def database(device) -> str:
    return f"file:{device.config.parent / device.id / 'device.db'}?mode=ro"


def personal(made: Federation) -> dict[str, bytes]:
    found = {}
    for device in made.prepared.devices:
        with sqlite3.connect(database(device), uri=True) as db:
            found[device.id] = db.execute("SELECT leaves FROM learned").fetchone()[0]
            assert db.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0, "still owed"
    return found


def settled(made: Federation, limit: float = 60.0) -> None:
    """Wait until no device owes anything."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        owed = 0
        for device in made.prepared.devices:
            with sqlite3.connect(database(device), uri=True, timeout=5) as db:
                owed += db.execute("SELECT count(*) FROM outbox").fetchone()[0]
        if not owed:
            return
        time.sleep(0.3)
    pytest.fail("a device still owes an update")


class Storm:
    """Kills one of the programs now and then, and starts it again; first one of each kind."""

    def __init__(self, made: Federation, url: str, *, kind: str, folder, seed, most=10):
        self.made, self.family, self.kind, self.folder = made, made.family, kind, folder
        self.rng, self.most, self.kills = random.Random(seed), most, Counter()
        self.first = self.rng.sample(["broker", "aggregator", "device"], 3)
        self.port, family = url.rsplit(":", 1)[1], made.family
        self.broker = next(x for x in family.members if x.name == "broker")

    def __call__(self) -> None:
        time.sleep(self.rng.uniform(0.2, 1.2))
        if self.kills.total() >= self.most:
            return
        kinds = ["broker", "aggregator", "device", "device"]
        what = self.first.pop() if self.first else self.rng.choice(kinds)
        self.kills[what] += 1
        if what == "broker":
            kill(self.broker)
            options = ("--kind", self.kind, "--port", self.port)
            options += ("--folder", str(self.folder / "broker"))
            self.broker = self.again(self.broker, "gridfed-aggregator", "broker", "start", *options)
        elif what == "aggregator":
            kill(self.made.aggregator)
            config = str(self.made.prepared.aggregator)
            run = self.again(self.made.aggregator, "gridfed-aggregator", "run", config)
            self.made.aggregator = run
        else:
            at = self.rng.randrange(len(self.made.devices))
            kill(self.made.devices[at])
            path = str(self.made.prepared.devices[at].config)
            self.made.devices[at] = self.again(self.made.devices[at], "gridfed-edge", "run", path)

    def again(self, old: RunningProgram, *arguments: str) -> RunningProgram:
        self.family.members.remove(old)
        time.sleep(self.rng.uniform(0.0, 0.4))
        return self.family.start(old.name, command(*arguments))
