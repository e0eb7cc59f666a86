"""Actors of a Ray cluster train the devices of a direct simulation, and change no bit."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace

import pytest

from firmware_sim.bench.ray_devices import RayDevices
from firmware_sim.bench.ray_runs import LOCAL, RayRunError, ray_cluster
from firmware_sim.commands.main import main
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.samples import sample_set
from tests.fleet.test_direct import CASES, scenario_of, simulated
from tests.fleet.test_direct_workers import SLOW_IGNORED, check_same

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SEED = 5


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster(LOCAL, 2) as made:
        yield made


def trained(cluster, chosen, *, actors=2):
    """Run with the devices in actors; return the simulation with their final states, and the costs."""
    samples = sample_set("homes")
    fleet = DirectFleet.of(chosen, samples, seed=SEED)
    made = fleet.simulation()
    devices = RayDevices(cluster.ray, actors)
    with devices.trainer(chosen, samples, fleet.ids, seed=SEED, devices=made.devices) as trainer:
        made.run(trainer=trainer)
        return made, trainer.collect()


@pytest.mark.parametrize(
    ("method", "more"),
    [*(case for case in CASES if case[0] in ("fedasync", "fedbuff") or case[1]), SLOW_IGNORED],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_a_cluster_gives_the_same_bits(cluster, method, more):
    chosen = scenario_of(method, **more)
    made, costs = trained(cluster, chosen)
    assert len(costs) == 2
    assert all(one.processor > 0.0 for one in costs)
    check_same(simulated(chosen), made)


def test_the_command_gives_the_model_of_one_process(cluster, capsys, monkeypatch):
    """It splits more devices than one call of an actor takes, and keeps none in its own process."""
    options = ["fleet", "--direct", "--devices", "70", "--rounds", "2", "--steps", "1"]
    options += ["--bundle", "load-mlp", "--json"]
    found = []
    monkeypatch.setattr("firmware_sim.bench.ray_runs.ray_cluster", lambda *_: nullcontext(cluster))
    for more in (["--workers", "0"], ["--ray", "--workers", "2"]):
        assert main([*options, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    one, other = ({key: run[key] for key in ("state", "model", "updates")} for run in found)
    assert one == other
    assert [run["ray"] for run in found] == [None, LOCAL]


def test_an_actor_that_dies_ends_the_run_with_a_message(cluster):
    chosen = scenario_of("fedavg", rounds=50)
    samples = sample_set("homes")
    fleet = DirectFleet.of(chosen, samples, seed=SEED)
    made = fleet.simulation(has_devices=False)
    with RayDevices(cluster.ray, 2).trainer(chosen, samples, fleet.ids, seed=SEED) as trainer:
        victims = [cluster.ray.get(trainer._actors[1].__ray_call__.remote(lambda _: os.getpid()))]

        def kill():
            if victims:
                os.kill(victims.pop(), signal.SIGKILL)

        with pytest.raises(RayRunError, match="an actor of the simulation ended"):
            made.run(kill, trainer)


@pytest.mark.parametrize(
    ("differs", "message"),
    [({"mark": "0"}, "other readings or another bundle"), ({"versions": {}}, "versions .* numpy")],
)
def test_a_machine_with_other_files_or_packages_is_refused(cluster, differs, message):
    chosen = scenario_of("fedavg")
    trainer = RayDevices(cluster.ray, 1).trainer(chosen, sample_set("homes"), ["a"], seed=SEED)
    trainer._block = replace(trainer._block, **differs)
    with pytest.raises(RayRunError, match=message), trainer:
        pytest.fail("it was not refused")


def test_more_actors_than_processors_are_refused(cluster):
    chosen = scenario_of("fedavg")
    with pytest.raises(RayRunError, match="the cluster has 2"):
        RayDevices(cluster.ray, 3).trainer(chosen, sample_set("homes"), ["a", "b", "c"])
