"""The PFGL paper's nets between real programs, and the example of charging sites."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.authority.access.broker_process import has_embedded
from aggregator.store import state_codec
from aggregator.store.opener import open_store
from edge_sdk.bundle import shipped_names
from edge_sdk.protocol.keys import SigningKey
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.fleet.processes import command, run
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario, scenario

pytestmark = [pytest.mark.broker]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICES = 3
SITES = "client,latitude,longitude\n{},56.30,-3.40\n{},56.31,-3.41\n{},56.70,-3.80\n"
CASES = [
    pytest.param("pfgl", "pfgl", "chargers-1", id="pfgl", marks=pytest.mark.slow),
    pytest.param("cnfgnn", "graphnet", "chargers-1", id="cnfgnn", marks=pytest.mark.slow),
    pytest.param("pfgl", "pfgl", "chargers-paper-6", id="pfgl-paper", marks=pytest.mark.soak),
    *(
        pytest.param(method, kind, f"chargers-paper-{net}", id=name, marks=pytest.mark.soak)
        for method, kind, net, name in (
            ("pfgl", "pfgl", "lstm-conv-6", "pfgl-lstm-encoder"),
            ("cnfgnn", "graphnet", "gru-1", "cnfgnn-paper"),
            ("lstm_cnn_fedavg", "conv2d", "lstm-conv-1", "lstm_cnn_fedavg"),
            ("lstm_cnn_pfl", "conv2d", "lstm-conv-1", "lstm_cnn_pfl"),
            ("fedavg", "", "lstm-1", "lstm-fedavg"),
            ("pfl", "", "lstm-1", "lstm-pfl"),
        )
    ),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return a shipped name, or the folder of a model of the paper's size, exported once."""
    folder, made = tmp_path_factory.mktemp("bundles"), {}

    def of(name):
        if name in shipped_names():
            return name
        if name not in made:
            pytest.importorskip("torch")
            from aggregator.extensions.authoring.export import export, make  # noqa: PLC0415 - it imports torch

            module, recipe = make(name)
            key = SigningKey.generate()
            out = folder / name
            made[name] = str(export(module, recipe, name=name, version=1, signer=key, out=out))
        return made[name]

    return of


def federate(chosen, folder):
    """Run a fleet of real programs; return its aggregator's configuration and what it counted."""
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    with display(is_quiet=True) as shown:
        one = FleetRun(
            chosen,
            sample_set(chosen.samples),
            folder,
            shown,
            is_in_process=False,
            kind="embedded",
            limit=500.0,
        )
        one.run()
    assert one.moved == chosen.run.rounds
    assert one.refused == {}
    return folder / "fleet" / "aggregator.toml"


def ended(config):
    """Return a finished run's binding and its state."""
    bound = bind(AggregatorConfig.load(config, {}))
    with open_store(bound.config.database, read_only=True) as store:
        saved = store.states.load(store.runs.latest().run)
    return bound, state_codec.rebuild(bound.first_state(), saved.leaves)


@pytest.mark.parametrize(("method", "kind", "name"), CASES)
def test_the_papers_nets_train_between_real_programs(tmp_path, bundle, method, kind, name):
    """Two rounds; the graph and every station learn, and an audit finds the same bits again."""
    samples = sample_set("chargers")
    names = [sample.device for sample in samples.samples[:DEVICES]]
    (tmp_path / "sites.csv").write_text(SITES.format(*names))
    near, graph, turns = str(tmp_path / "sites.csv"), {}, {}
    if kind:
        graph = {"kind": kind, "sites": near, "capacity": DEVICES + 1}
        turns = {"turns": {"batch": 4}}
    mixed = {"alpha": 0.8, "neighbours": near} if method in {"pfgl", "pfl", "lstm_cnn_pfl"} else {}
    settings = {"steps": 2, **mixed, **turns}
    learning = RunSettings(method, None, 2, settings, DEVICES, deadline="1h", graph=graph)
    chosen = Scenario(
        "nets", samples="chargers", devices=DEVICES, bundle=bundle(name), run=learning
    ).first_days(35, samples)
    config = federate(chosen, tmp_path / "run")
    bound, state = ended(config)
    audited = json.loads(run(command("gridfed-aggregator", "audit", str(config), "--json")))
    assert (audited["rounds"], audited["faults"]) == (2, [])
    if kind:
        first = bound.first_state().net["p"]
        assert np.abs(state.net["p"] - first).max() > 1e-4
        assert {state.slots[name] for name in names} == {0, 1, 2}
    held = [np.asarray(state.held[name]) for name in names] if method != "fedavg" else []
    assert all(np.abs(one - bound.first_state().w).max() > 1e-4 for one in held)


@pytest.mark.slow
def test_the_charging_example_runs_as_it_is_written(tmp_path):
    """All of its ``[run]`` but the number of rounds and steps; sites have the sample's names."""
    samples = sample_set("chargers")
    table = tomllib.loads((EXAMPLES / "charging-graph.toml").read_text("utf-8"))["run"]
    text = (EXAMPLES / "charging-sites.csv").read_text("utf-8")
    for row, sample in zip(text.splitlines()[1:], samples.samples, strict=True):
        text = text.replace(row.split(",")[0], sample.device)
    (tmp_path / "charging-sites.csv").write_text(text)
    located = {"neighbours": str(tmp_path / table["settings"]["neighbours"])}
    learning = RunSettings(
        table["method"],
        None,
        2,
        {**table["settings"], **located, "steps": 4},
        table["quorum"],
        deadline=table["deadline"],
        graph={**table["graph"], "sites": str(tmp_path / table["graph"]["sites"])},
    )
    chosen = Scenario(
        "the example", samples="chargers", devices=8, bundle=table["bundle"], run=learning
    ).first_days(35, samples)
    config = federate(chosen, tmp_path / "run")
    _, state = ended(config)
    credit = run(command("gridfed-aggregator", "credit", str(config), "--json"))
    weights = json.loads(credit)
    assert len(state.slots) == 8
    assert weights


def test_the_scenario_of_charging_sites_uses_the_papers_net():
    """Its file names every site, so that neighbourhood has a weight in the mixture (17)."""
    chosen = scenario("ev-graph")
    assert chosen.run.graph["kind"] == "pfgl"
    ids = [sample.device for sample in sample_set(chosen.samples).samples]
    sites = Path(chosen.run.graph["sites"]).read_text("utf-8").splitlines()[1:]
    assert [row.split(",")[0] for row in sites] == ids
    assert chosen.run.settings["neighbours"] == chosen.run.graph["sites"]
    assert chosen.run.settings["alpha"] == 0.9
