"""kill -9 of aggregator, broker and devices, over and over, changes not one bit of the model."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from aggregator import config as configs
from aggregator import leaves
from aggregator.audit import recompute
from aggregator.store import SqliteStore
from firmware_sim.federation import Federation, free_port, start_broker
from firmware_sim.folders import prepare
from firmware_sim.processes import Family, Running, command
from firmware_sim.samples import sample_set
from firmware_sim.scenario import Learning, Scenario

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(400)]

ROUNDS = 12
SCENARIO = Scenario(
    "kill -9",
    samples="homes",
    devices=4,
    bundle="load-mlp",
    learning=Learning("fedadam", ("",), ROUNDS, {"steps": 3, "server_rate": 0.01}, deadline="1h"),
    until="2018-03-01",
)
KINDS = [
    "embedded",
    pytest.param(
        "mosquitto",
        marks=pytest.mark.skipif(
            not (shutil.which("mosquitto") or Path("/usr/sbin/mosquitto").exists()),
            reason="mosquitto is not installed",
        ),
    ),
]


def kill(program: Running) -> None:
    """Kill a program; a device may just have ended by itself, its rounds done."""
    program.signal(signal.SIGKILL)
    assert program.wait(10) in (-signal.SIGKILL, 0), program.tail()


def federation(folder, family, kind) -> tuple[Federation, str]:
    url = start_broker(family, folder / "broker", kind)
    page = f"127.0.0.1:{free_port()}"
    samples = sample_set(SCENARIO.samples)
    files = prepare(folder / "fleet", "kills", SCENARIO, samples, broker=url, page=page)
    made = Federation(files, ROUNDS, family)
    made.start_aggregator()
    made.start_devices()
    return made, url


def outcome(made: Federation) -> dict[str, object]:
    """What the stores say once everybody has stopped."""
    config = configs.Config.load(made.prepared.aggregator)
    bound = configs.bind(config)
    with SqliteStore.open(config.database, read_only=True) as store:
        audit = recompute(store, bound.half, bound.first_state().w)
        saved = store.load(store.run().run)
        state = leaves.rebuild(bound.half.init(bound.first_state().w), saved.leaves)
    assert audit.is_sound, audit.faults
    assert audit.moved == ROUNDS
    assert audit.updates == {device.id: ROUNDS for device in made.prepared.devices}
    return {"version": state.version, "w": state.w.tobytes()}


def personal(made: Federation) -> dict[str, bytes]:
    found = {}
    for device in made.prepared.devices:
        path = device.config.parent / device.id / "device.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            found[device.id] = db.execute("SELECT leaves FROM learned").fetchone()[0]
            assert db.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0, "still owed"
    return found


def settled(made: Federation, limit: float = 60.0) -> None:
    """Wait until no device owes anything."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        owed = 0
        for device in made.prepared.devices:
            path = device.config.parent / device.id / "device.db"
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as db:
                owed += db.execute("SELECT count(*) FROM outbox").fetchone()[0]
        if not owed:
            return
        time.sleep(0.3)
    pytest.fail("a device still owes an update")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    with Family(folder / "logs") as family:
        made, _ = federation(folder, family, "embedded")
        for _ in made.watch(120):
            pass
        settled(made)
        made.stop()
        return outcome(made)


@pytest.mark.parametrize("kind", KINDS)
def test_the_consensus_survives_any_kill(tmp_path, undisturbed, kind):
    rng = random.Random(20181)
    kills = {"broker": 0, "aggregator": 0, "device": 0}
    with Family(tmp_path / "logs") as family:
        made, url = federation(tmp_path, family, kind)
        broker = next(x for x in family.members if x.name == "broker")
        port, config = url.rsplit(":", 1)[1], str(made.prepared.aggregator)

        def disturb() -> None:
            nonlocal broker
            time.sleep(rng.uniform(0.2, 1.2))
            what = rng.choice(["broker", "aggregator", "device", "device"])
            if sum(kills.values()) >= 25:
                return
            kills[what] += 1
            if what == "broker":
                kill(broker)
                options = ("--kind", kind, "--port", port, "--folder", str(tmp_path / "broker"))
                broker = restart(broker, "gridfed-aggregator", "broker", "start", *options)
            elif what == "aggregator":
                kill(made.aggregator)
                made.aggregator = restart(made.aggregator, "gridfed-aggregator", "run", config)
            else:
                at = rng.randrange(len(made.devices))
                kill(made.devices[at])
                path = str(made.prepared.devices[at].config)
                made.devices[at] = restart(made.devices[at], "gridfed-edge", "run", path)

        def restart(old: Running, *arguments: str) -> Running:
            family.members.remove(old)
            time.sleep(rng.uniform(0.0, 0.4))
            return family.start(old.name, command(*arguments))

        for _ in made.watch(300, tend=disturb):
            pass
        settled(made)
        made.stop()
        assert outcome(made) == undisturbed, json.dumps(kills)
    assert min(kills.values()) >= 1, f"the run ended before everybody was killed once: {kills}"
