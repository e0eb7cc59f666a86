"""Devices of one process share graphs, and start with their readings in their stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_sdk import Config
from edge_sdk.wire.link.loopback import LoopbackBroker
from firmware_sim.fleet.in_process import Fleet, populate
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario


@pytest.fixture
def fleet(tmp_path):
    samples = sample_set("homes")
    chosen = Scenario("shared", devices=3, bundle="load-mlp", run=RunSettings(rounds=1))
    chosen = replace(chosen.first_days(14, samples), newcomer_days=9)
    prepared = prepare(
        tmp_path / "fleet", "sim", chosen, samples, broker="mqtt://127.0.0.1:1", page="off"
    )
    broker = LoopbackBroker()
    with Fleet() as fleet:
        populate(
            fleet,
            prepared.devices,
            samples,
            chosen,
            lambda config, will: broker.link(config.id, will),
        )
        yield fleet


def test_one_bundle_serves_all_devices(fleet):
    assert len({id(client.learner.bundle) for client in fleet.clients}) == 1


def test_readings_are_in_the_store_and_in_use(fleet):
    for client in fleet.clients:
        assert client._store.count_readings() > 0
        assert client.is_ready


def test_the_last_device_has_the_history_of_a_newcomer(fleet):
    first, *_, last = (len(client.learner.series) for client in fleet.clients)
    assert first == 14 * 24
    assert last == 9 * 24


def test_a_configuration_made_of_another_devices_is_that_of_the_file(tmp_path):
    samples = sample_set("homes")
    samples = replace(samples, samples=samples.samples[:1])
    chosen = Scenario("alike", devices=3, bundle="load-mlp", run=RunSettings(rounds=1))
    fleet = prepare(
        tmp_path / "fleet", "sim", chosen, samples, broker="mqtt://127.0.0.1:1", page="off"
    )
    first, *others = fleet.devices
    like = Config.load(first.config)
    for device in others:
        assert device.configured(like) == Config.load(device.config) != like
