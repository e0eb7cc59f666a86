"""Schedules with real clients: new data, asynchronous methods, forecasts through the graph."""

from __future__ import annotations

import tomllib

from edge_sdk import Reading
from firmware_sim.fleet.run_files import toml
from tests.fleet.conftest import HOURS, history
from tests.fleet.test_split import HOURS as SITE_HOURS
from tests.fleet.test_split import demand, sites, start_all

DAY = 86_400.0


def waits(one):
    return one.daemon._engine.is_waiting


def later(one, seconds, turns=60):
    """Let time pass in steps, each with a few turns."""
    for _ in range(int(seconds / 1800)):
        one.clock.now += 1800
        one.turn()
        one.turn()
    for _ in range(turns):
        one.turn()


def observe(one, number, first, hours):
    """Let a device record further hours."""
    for reading in list(history(number, first + hours)):
        if reading.time >= 1_514_764_800.0 + 3600 * first:
            one.clients[number].observe(Reading(reading.stream, reading.time, reading.value))


def test_a_round_a_day_opens_only_when_devices_have_recorded_new_windows(world):
    one = world(devices=2, run={"schedule": {"rounds_per_day": 1}})
    one.start_all()
    one.until(lambda: one.version == 1 and waits(one))
    later(one, 2 * DAY)
    reported = {name: report.new for name, report in one.daemon._registry.metrics.items()}
    assert reported == {"home-0": 0, "home-1": 0}
    assert (one.version, waits(one)) == (1, True)
    for number in range(2):
        observe(one, number, HOURS, 30)
    later(one, 3600)
    one.until(lambda: one.version == 2)
    assert waits(one)


def test_a_start_of_an_asynchronous_method_gives_each_device_one_update(world):
    schedule = {"rounds_per_day": 1, "min_new_rows": 0}
    run = {"method": "fedbuff", "quorum": 1, "schedule": schedule}
    one = world(devices=3, run=run)
    one.start_all()
    one.until(lambda: waits(one))
    stopped = one.version
    assert 3 <= stopped <= 5  # updates that were on their way count too
    for _ in range(300):
        one.turn()
    assert one.version <= stopped + 2
    stopped = one.version
    later(one, DAY)
    one.until(lambda: waits(one) and one.version >= stopped + 3)
    assert one.version <= stopped + 5


def test_devices_are_served_by_the_graph_while_the_next_round_waits(world):
    one = sites(world, devices=2, rounds=2)
    table = tomllib.loads(one.config.read_text("utf-8"))
    table["run"]["schedule"] = {"rounds_per_day": 1, "min_new_rows": 0}
    one.config.write_text(toml(table))
    start_all(one)
    one.until(lambda: waits(one))
    assert one.version == 1
    client = one.clients[0]
    before = client.status()["counts"].get("bytes down serve", 0)
    client.observe(
        list(demand(0, SITE_HOURS + 1))[-1]
    )  # a new window, which the graph has not seen
    one.until(lambda: client.forecast().source == "model")
    assert client.status()["counts"]["bytes down serve"] > before
    assert (one.version, waits(one)) == (1, True)
    later(one, DAY)
    one.until(lambda: one.daemon.is_done)
    assert one.version == 2
