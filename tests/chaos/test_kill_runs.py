"""kill -9 of a daemon with two runs, its broker and its devices changes not one bit of either model."""

from __future__ import annotations

import json
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator import config as configs
from aggregator.extensions.audit.recompute import recompute
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from firmware_sim.fleet.federation import Federation, fetched, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, command, run
from firmware_sim.fleet.run_files import Prepared, join, prepare, toml
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tests.chaos.storm import KINDS, Storm, settled

pytestmark = [pytest.mark.chaos, pytest.mark.broker]

ROUNDS = 8
METERS = Scenario(
    "kill -9",
    samples="homes",
    devices=2,
    bundle="load-mlp",
    run=RunSettings("fedadam", ("",), ROUNDS, {"steps": 3, "server_rate": 0.01}, deadline="1h"),
    until="2018-03-01",
)
CELLS = replace(
    METERS,
    samples="cells",
    bundle="cells-mlp-1",
    run=RunSettings("fedavg", ("",), ROUNDS, {"steps": 3}, deadline="1h"),
    until=None,
)


def begun(folder, family, kind) -> tuple[Federation, str]:
    """Start one daemon with two runs, and two devices of each."""
    url = start_broker(family, folder / "broker", kind)
    page = f"127.0.0.1:{free_port()}"
    made = prepare(folder / "fleet", "kills", METERS, sample_set("homes"), broker=url, page=page)
    table = tomllib.loads(made.aggregator.read_text("utf-8"))
    meters = table["run"] | {"name": "meters", "cohort": {"kind": "meter"}}
    cells = meters | {"name": "cells", "cohort": {"kind": "cell"}, "bundle": CELLS.bundle}
    cells |= {"method": "fedavg", "settings": dict(CELLS.run.settings)}
    made.aggregator.write_text(toml(table | {"run": [meters, cells]}), "utf-8")
    run(command("gridfed-aggregator", "announce", str(made.aggregator)))
    joined = join(folder / "cells", made.aggregator, CELLS, sample_set("cells"), broker=url)
    for name, devices in (("meter", made.devices), ("cell", joined.devices)):
        for device in devices:
            words = ("label", f"kind={name}", device.id, "--config", str(made.aggregator))
            run(command("gridfed-aggregator", *words))
    devices = (*made.devices, *joined.devices)
    federation = Federation(Prepared(made.folder, made.aggregator, devices, page), ROUNDS, family)
    federation.start_aggregator()
    federation.start_devices()
    return federation, url


def play(made: Federation, serve: Callable[[], None] = lambda: None, limit: float = 800.0) -> None:
    """Wait until every run has done its rounds."""
    until, versions = time.monotonic() + limit, []
    while versions != [ROUNDS, ROUNDS]:
        assert time.monotonic() < until, versions
        serve()
        time.sleep(0.2)
        made.family.require_running()
        document = fetched(made.prepared.page, "/status")
        runs = json.loads(document or "{}").get("runs", ())  # a daemon that begins has none yet
        versions = [one["version"] for one in runs]


def outcome(made: Federation) -> dict[str, tuple[Counter[str], bytes]]:
    """Return the updates used and the digest of the last state of each run, after a recomputation."""
    config = configs.AggregatorConfig.load(made.prepared.aggregator)
    found = {}
    with open_store(config.database, read_only=True) as store:
        for view in config.views():
            bound, number = configs.bind(view), store.runs.latest(view.run.name).run
            first = bound.first_state().w
            audit = recompute(store, bound.half, first, number)
            assert audit.is_sound, audit.faults
            assert audit.moved == ROUNDS
            assert set(audit.updates.values()) == {ROUNDS}
            state = state_codec.rebuild(bound.half.init(first), store.states.load(number).leaves)
            found[view.run.name] = (Counter(audit.updates), state_codec.digest(state))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    with ProcessGroup(folder / "logs") as family:
        made, _ = begun(folder, family, "embedded")
        play(made)
        settled(made)
        made.stop()
        return outcome(made)


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_ends_with_the_bits_of_the_undisturbed_one(tmp_path, kind, undisturbed):
    with ProcessGroup(tmp_path / "logs") as family:
        made, url = begun(tmp_path, family, kind)
        storm = Storm(made, url, kind=kind, folder=tmp_path, seed=7, most=8)
        play(made, storm)
        settled(made)
        made.stop()
        found = outcome(made)
    assert [sorted(one[0]) for one in found.values()] == [
        sorted(one[0]) for one in undisturbed.values()
    ]
    assert found == undisturbed, json.dumps(storm.kills)
    assert storm.kills["aggregator"], f"the daemon was never killed: {storm.kills}"
