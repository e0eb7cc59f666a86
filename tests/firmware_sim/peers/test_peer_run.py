"""A direct run among peers gives the bits of real clients on a broker, and the table says how far they are apart."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from firmware_sim.commands.main import main
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.peers.peer_run import PeerRun
from firmware_sim.peers.settings import PeerPlan
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from firmware_sim.testing.loopback import LoopbackBroker

STEPS = {"steps": 2, "rate": 0.01}


def scenario_of(method="dfl_sgd", devices=4, graph=None, **settings):
    run = RunSettings(method, rounds=3, settings=STEPS | settings, graph=graph or {})
    chosen = Scenario("peers", devices=devices, bundle="load-mlp", run=run)
    return chosen.first_days(14, sample_set("homes"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "graph", "settings"),
    [
        ("dfl_gt", {"name": "torus"}, {"order": "atc"}),
        ("dfl_sgd", {"name": "ring"}, {"mixing": "best_constant", "wait_for_neighbours": True}),
    ],
)
def test_a_direct_run_gives_the_bits_of_clients_on_a_broker(tmp_path, method, graph, settings):
    chosen, samples = scenario_of(method, graph=graph, **settings), sample_set("homes")
    broker, found = LoopbackBroker(clock=time.monotonic), {}
    with display(is_quiet=True) as shown:
        run = PeerRun(
            chosen, samples, tmp_path, shown, "mqtt://127.0.0.1:1", limit=50.0,
            evaluated=("home-102040",),
            connect=lambda config, will: broker.link(config.id, will),
            ended=lambda clients: found.update({c.config.id: c.state.p.copy() for c in clients}),
        )  # fmt: skip
        run.run()
    simulation = DirectFleet.of(chosen, samples).peer_simulation()
    simulation.run()
    assert sorted(found) == sorted(simulation.devices)
    assert all((found[name] == one.state.p).all() for name, one in simulation.devices.items())
    assert run.disagreements[-1] == simulation.disagreement > 0
    assert run.errors.windows > 0


DIRECT = (
    "fleet",
    "--direct",
    "--bundle",
    "load-mlp",
    "--days",
    "14",
    "--steps",
    "1",
    "--rate",
    "0.01",
)


def run(capsys, *more):
    code = main([*DIRECT, *more, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out or "{}"), out.err


def test_methods_on_a_graph_are_compared_with_one_that_has_a_server(capsys):
    options = ("--method", "dfl_sgd,fedavg", "--devices", "6", "--rounds", "2")
    code, found, _ = run(
        capsys, *options, "--graph", "erdos_renyi", "--graph-option", "probability=0.6"
    )
    assert code == 0
    among, server = found["runs"]
    assert (among["rule"], server["rule"]) == ("erdos_renyi", "mean")
    assert len(among["disagreement"]) == 2
    assert server["disagreement"] == []
    assert all(row["windows"] > 0 for row in found["runs"])


def test_a_varying_graph_of_one_way_links_is_mixed_by_push_sum(capsys):
    options = ("--method", "dfl_sgd", "--devices", "4", "--rounds", "2", "--graph", "ring")
    ways = ("--graph-option", "directed=true", "--graph-option", "present=0.7")
    code, found, _ = run(capsys, *options, *ways)
    assert code == 0
    assert found["runs"][0]["disagreement"][-1] > 0
    again = run(capsys, *options, *ways)[1]
    assert again["runs"][0]["disagreement"] == found["runs"][0]["disagreement"]


def test_a_liar_among_neighbours_is_bounded_by_clipping(capsys):
    options = ("--method", "dfl_sgd", "--devices", "5", "--rounds", "4", "--graph", "complete")
    lie = ("--attack", "constant", "--attack-option", "value=0.05")
    plain = run(capsys, *options, *lie)[1]["runs"][1]
    clip = ("--setting", "robust=clip", "--setting", "radius=0.01")
    clipped = run(capsys, *options, *lie, *clip)[1]["runs"][1]
    assert clipped["disagreement"][-1] < plain["disagreement"][-1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--graph", "star"), "run.graph.name"),
        (("--rule", "median"), "--rule: dfl_sgd has no use for it"),
        (("--encoding", "q8"), "--encoding: dfl_sgd has no use for it"),
        (("--setting", "mixing=best"), "run.settings.mixing: unknown"),
        (("--setting", "quorum=3"), "run.settings.quorum"),
        (("--graph", "torus", "--devices", "5"), "a torus has rows and columns"),
        (("--graph-option", "probability=1e-6", "--graph", "erdos_renyi"), "run.graph.probability"),
    ],
)
def test_what_does_not_fit_is_named(capsys, more, words):
    code, _, said = run(capsys, "--method", "dfl_sgd", "--devices", "4", "--rounds", "1", *more)
    assert code == 2
    assert words in said


def test_trackers_do_not_go_over_one_way_links_and_no_broker_has_them():
    one_way = {"name": "ring", "directed": True}
    with pytest.raises(SettingsError, match=r"run\.graph\.directed"):
        PeerPlan.of(scenario_of("dfl_gt", graph=one_way).run)
    with pytest.raises(SettingsError, match="both ends of a link mix"):
        PeerPlan.of(scenario_of(graph=one_way).run).refuse_over_a_broker(None)


def test_push_sum_reaches_the_average_of_what_devices_began_with():
    """Without steps, models on one-way links that vary over time agree on the plain average."""
    chosen = scenario_of(
        graph={"name": "ring", "directed": True, "present": 0.8}, rate=0.0, steps=1
    )
    chosen = replace(chosen, run=replace(chosen.run, rounds=60))
    simulation = DirectFleet.of(chosen, sample_set("homes")).peer_simulation()
    wanted = 0.0
    for number, device in enumerate(simulation.devices.values()):
        device.state = replace(device.state, p=device.state.p + np.float32(number / 1000))
        shared = device.learner.spec.shared(device.state.p)
        wanted = wanted + shared.astype(np.float64) / len(simulation.devices)
    simulation.run()
    assert simulation.disagreement < 1e-9
    one = next(iter(simulation.devices.values()))
    assert one.learner.spec.shared(one.state.p) == pytest.approx(wanted, abs=1e-6)
