"""Devices of one process share graphs, and start with their readings in their stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_sdk import Config
from firmware_sim.fleet import in_process
from firmware_sim.fleet.in_process import Fleet, _Served, populate
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from firmware_sim.testing.loopback import LoopbackBroker


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


@pytest.mark.slow
def test_one_bundle_serves_all_devices(fleet):
    assert len({id(client.learner.bundle) for client in fleet.clients}) == 1


def test_readings_are_in_the_store_and_in_use(fleet):
    for client in fleet.clients:
        assert len(client._store.readings) > 0
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


class Ticking:
    """Stands for a client and its link."""

    def __init__(self, now):
        self.now, self.ticks, self.has_news = now, [], False

    def tick(self, _timeout):
        self.ticks.append(self.now[0])
        self.has_news = False


def test_idle_devices_of_a_large_fleet_share_the_turns_of_a_second(monkeypatch):
    monkeypatch.setattr(in_process, "IDLE_TURNS", 1.0)
    now = [100.0]
    fleet = Fleet(clock=lambda: now[0])
    devices = [Ticking(now) for _ in range(3)]
    fleet._served = [_Served(one, [one]) for one in devices]
    for step in range(8):
        now[0] = 100.0 + step
        fleet.serve()
    assert devices[1].ticks == devices[2].ticks == [100.0, 103.0, 106.0]


def test_a_device_without_news_is_served_once_a_second():
    now = [100.0]
    fleet = Fleet(clock=lambda: now[0])
    first, quiet, busy = devices = [Ticking(now) for _ in range(3)]
    fleet._served = [_Served(one, [one]) for one in devices]
    for step in range(30):
        now[0] = 100 + step / 10
        busy.has_news = step in (5, 12)
        fleet.serve()
    assert len(first.ticks) == 30
    assert quiet.ticks == pytest.approx([100.0, 101.0, 102.0])
    assert busy.ticks == pytest.approx([100.0, 100.5, 100.6, 101.2, 101.3, 102.3])
