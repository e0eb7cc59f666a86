"""Closed form over a real broker: a device of another width, and devices that lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aggregator.commands.main import program
from aggregator.extensions.authoring.closed_form import ANALYTIC, made
from aggregator.extensions.authority.access.broker_process import has_embedded, start
from edge_sdk import Client, Config
from edge_sdk.extensions.analytic.bundle_section import statistic_layout
from edge_sdk.protocol.keys import generate, save_signing_key
from edge_sdk.session.identity import load_signer
from edge_sdk.training.training_transaction import UpdateSealer
from firmware_sim.attacks.attack_plan import HONEST, AttackPlan
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = pytest.mark.broker

CLOSED = Scenario(
    "closed form",
    samples="homes",
    devices=2,
    bundle="load-analytic",
    run=RunSettings("analytic", deadline="1h", rounds=4),
    until="2018-02-01",
)


class WideSealer(UpdateSealer):
    """Seals the statistic of a bundle with 61 random units instead of 60."""

    def __init__(self, config, signer):
        super().__init__(config, signer)
        wide, _ = made(replace(ANALYTIC["load-analytic"], units=61), name="wide", version=1)
        self.spec, self.size = wide.spec().digest, statistic_layout(3, 115).size

    def seal(self, message, encrypt=bytes):
        return super().seal(replace(message, spec=self.spec, blob=bytes(4 * self.size)))


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    with start("embedded", folder=tmp_path_factory.mktemp("broker")) as process:
        yield process.url


def finished(url, folder, scenario, name, **more):
    """Run a fleet to its end: a real aggregator, and devices in this process."""
    samples = sample_set(scenario.samples)
    with display(is_quiet=True) as shown:
        run = FleetRun(
            scenario, samples, folder, shown, is_in_process=True, broker=url, fleet=name,
            limit=240.0, **more,
        )  # fmt: skip
        run.run()
    return run


@pytest.mark.slow
def test_a_device_of_another_width_is_refused_and_the_others_go_on(url, tmp_path, monkeypatch):
    """Its statistic cannot be added up with theirs: the layout in its offer says so."""

    def wide(config, *, parts, **options):
        sealer = WideSealer(config, load_signer(config))
        return Client(config, parts=replace(parts, sealer=sealer), **options)

    def roles(_self, ids):
        last = max(ids)
        return lambda device: replace(HONEST, make=wide) if device == last else HONEST

    monkeypatch.setattr(FleetRun, "_roles", roles)
    scenario = replace(CLOSED, devices=3, run=replace(CLOSED.run, quorum=2))
    run = finished(url, tmp_path, scenario, "wide")
    assert run.moved == 4
    assert set(run.refused) == {"WRONG_SPEC"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "refused"), [("flipping", {"NORM_EXCEEDED"}), ("label_flip", set())]
)
def test_one_liar_of_five_is_refused_or_outvoted(url, tmp_path, attack, refused):
    """No data has the negative of a statistic; false labels look like data."""
    run = RunSettings(
        "analytic", deadline="1h", rounds=4, quorum=4,
        settings={"combine": "votes"}, rule={"name": "trimmed_mean", "f": 1},
    )  # fmt: skip
    scenario = replace(CLOSED, devices=5, run=run)
    plan = AttackPlan(attack, byzantine=0.2)
    found = finished(url, tmp_path, scenario, f"liar-{attack.replace('_', '-')}", attack_plan=plan)
    assert found.moved == 4
    assert set(found.refused) == refused


@pytest.fixture(scope="module")
def on_net(tmp_path_factory):
    """Export a bundle with the last hidden layer of a shipped network, as an operator does."""
    pytest.importorskip("onnx", reason="graphs are cut with onnx (extra: train)")
    folder = tmp_path_factory.mktemp("hidden")
    save_signing_key(folder / "root.key", generate())
    out = folder / "load-hidden"
    words = ["export", "load-analytic", str(out), "--key", str(folder / "root.key")]
    assert program().main([*words, "--hidden", "load-week-1"]) == 0
    return out


@pytest.mark.slow
def test_a_networks_last_hidden_layer_is_solved_over_a_broker(url, tmp_path, on_net):
    """Every device answers, and its own solution weighs the network's units."""
    scenario = replace(CLOSED, bundle=str(on_net))
    run = finished(url, tmp_path, scenario, "hidden")
    assert run.moved == 4
    assert not run.refused
    for config in sorted(tmp_path.rglob("devices/*.toml")):
        with Client(Config.load(config)) as client:
            learner, state = client.learner, client.state
            first = learner.manifest.analytic.features.index("hidden:0")
            own = learner.vector(state)[2 * len(learner.manifest.analytic.features) :]
            assert np.abs(own.reshape(3, -1)[:, first : first + 64]).max() > 0.0
