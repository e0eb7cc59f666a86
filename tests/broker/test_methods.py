"""Every method for two rounds over a real broker: real aggregator, real clients, a small model."""

from __future__ import annotations

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, start
from aggregator.methods import METHODS
from edge_sdk.protocol.contract.method import CONTRACTS, answered
from firmware_sim.commands.fleet_run import FleetRun
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario

pytestmark = pytest.mark.broker

DEVICES = 2
BUNDLES = {"fedgru": "load-gru", "fedntp": "load-lstm-week", "analytic": "load-analytic"}
SETTINGS = {
    "nbafl": {"min_samples": 100, "epsilon": 50.0},
    "udp": {"crd": True, "discount_factor": 1.0},
    "fesem": {"centres": 2},
}
QUORUM = {"fedasync": 1}
NOISY = {"dp_rsa"}  # a device takes part with a mechanism at its signs only
SPLIT = {name for name, asks in CONTRACTS.items() if "encode" in asks}
RECURRENT = {"lstm_cnn_fedavg", "lstm_cnn_pfl"}  # with exported models: test_paper_models.py
HOSTED = {"dfl_sgd", "dfl_gt"}  # no common model moves: test_neighbours.py


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    with start("embedded", folder=tmp_path_factory.mktemp("broker")) as process:
        yield process.url


def chosen(method):
    """The smallest shipped model that has the method's graphs, and readings for it."""
    if method in SPLIT:
        learning = RunSettings(
            method,
            None,
            2,
            {"steps": 2, "turns": {"batch": 4}},
            DEVICES,
            deadline="1h",
            graph={"kind": "diffusion", "capacity": DEVICES},
        )
        samples = sample_set("chargers")
        return Scenario(
            method, samples="chargers", devices=DEVICES, bundle="chargers-1", run=learning
        ).first_days(35, samples)
    _, ask = answered(CONTRACTS[method])
    is_plain = set(ask.graphs) <= {"gradient", "statistic"}
    bundle = BUNDLES.get(method, "load-mlp" if is_plain else "cells-mlp-1")
    return Scenario(
        method,
        samples="homes" if is_plain else "cells",
        devices=DEVICES,
        bundle=bundle,
        run=RunSettings(
            method, None, 2, SETTINGS.get(method, {}), QUORUM.get(method, DEVICES), deadline="1h"
        ),
    ).first_days(21, sample_set("homes" if is_plain else "cells"))


EACH = sorted(METHODS.keys() - NOISY - HOSTED - RECURRENT)


@pytest.mark.slow
@pytest.mark.parametrize("method", EACH)
def test_every_method_closes_rounds_over_a_real_broker(url, tmp_path, method):
    scenario = chosen(method)
    with display(is_quiet=True) as shown:
        run = FleetRun(
            scenario,
            sample_set(scenario.samples),
            tmp_path,
            shown,
            is_in_process=True,
            broker=url,
            fleet=f"walk-{method.replace('_', '-')}",
            limit=600.0,
        )
        cost = run.run()
    assert run.moved == 2
    assert run.refused == {}
    assert cost.devices == DEVICES
