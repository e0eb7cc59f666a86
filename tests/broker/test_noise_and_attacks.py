"""Noise on the device and attackers in one fleet over a real broker: BAFDP's parts together."""

from __future__ import annotations

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, start
from edge_sdk.store.store import DeviceStore
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RANGE = [0.0, 6000.0]
INPUT = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "input", "range": RANGE},
    "budget": {"epsilon": 30.0, "delta": 1e-5},
}
LAPLACE = {
    "mode": "honest",
    "mechanism": {"name": "laplace", "point": "update", "clip_norm": 1.0, "noise_multiplier": 8.0},
    "budget": {"epsilon": 2.0, "max_releases": 8},
}
GRADIENT = {
    "mode": "honest",
    "mechanism": {
        "name": "gaussian",
        "point": "gradient",
        "range": RANGE,
        "clip_norm": 0.5,
        "noise_multiplier": 4.0,
    },
    "budget": {"epsilon": 100.0, "delta": 1e-5, "unit": "window"},
}
FLIPPING = AttackPlan("flipping", byzantine=0.25)
BAFDP = RunSettings("bafdp", None, 6, {"eps_cap": 30.0}, 2, deadline="1h")
FEDAVG = RunSettings("fedavg", None, 2, {"steps": 2}, 4, deadline="1h")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    with start("embedded", folder=tmp_path_factory.mktemp("broker")) as process:
        yield process.url


@pytest.mark.parametrize(
    ("learning", "privacy", "attack"),
    [
        pytest.param(BAFDP, INPUT, FLIPPING, id="bafdp"),
        pytest.param(FEDAVG, LAPLACE, None, id="laplace"),
        pytest.param(FEDAVG, GRADIENT, None, id="gradient"),
    ],
)
def test_a_noisy_fleet_moves_its_model_over_a_broker(url, tmp_path, learning, privacy, attack):
    """BAFDP fires on half of the fleet, while a fourth of it sends flipped models."""
    samples = sample_set("cells")
    scenario = Scenario(
        "noise", samples="cells", devices=4, bundle="cells-mlp-1", run=learning, privacy=privacy
    ).first_days(21, samples)
    with display(is_quiet=True) as shown:
        run = FleetRun(
            scenario,
            samples,
            tmp_path,
            shown,
            is_in_process=True,
            broker=url,
            fleet=f"noise-{learning.method}-{privacy['mechanism']['name']}",
            limit=120.0,
            attack_plan=attack,
        )
        run.run()
    assert run.moved == learning.rounds
    assert run.refused == {}
    stores = [path for path in (tmp_path / "fleet" / "devices").iterdir() if path.is_dir()]
    assert len(stores) == 4
    charged = [ledger(path) for path in stores]
    assert all(points == {privacy["mechanism"]["point"]} for points in charged)


def ledger(path):
    """Return the points at which a device's account was charged."""
    with DeviceStore.open(path, read_only=True) as store:
        return {charge.point for charge in store.ledger()}
