"""One run after another: devices keep their weights, and nothing else of the run before."""

from __future__ import annotations

import itertools
import tomllib

import pytest

from aggregator.commands import main as cli
from firmware_sim.fleet.run_files import toml

METHODS = {
    "fedavg": {"steps": 4, "rate": 0.003},
    "bafdp": {"steps": 2, "regulariser": "off"},
    "fesem": {"centres": 2, "first_steps": 5},
    "pfl": {"steps": 2},
}


def table_of(one):
    return tomllib.loads(one.config.read_text("utf-8"))


def begin(one, method, settings=None):
    """Say something else and begin its run, as an operator does."""
    one.kill_daemon()
    table = table_of(one)
    table["run"] |= {"method": method, "settings": settings or METHODS[method]}
    one.config.write_text(toml(table))
    assert cli.main(["announce", str(one.config)]) == 0
    one.start_daemon()


def finish(one, run=1):
    one.until(lambda: one.daemon.is_done)
    one.until(lambda: all(has_taken_over(client, run) for client in one.clients.values()))


def has_taken_over(client, run):
    """Whether a device has this run's final model."""
    said = client.status()
    return (said["run"], said["version"]) == (run, 1) and said["counts"].get("final models", 0) > 0


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(METHODS, 2)))
def test_a_fleet_changes_to_another_method(world, first, second):
    one = world(run={"method": first, "settings": METHODS[first], "rounds": 1})
    one.start_all()
    finish(one)
    begin(one, second)
    one.until(lambda: all(client.status()["run"] == 2 for client in one.clients.values()))
    one.die(0)
    one.start(0)  # what was saved is still the first run's
    finish(one, 2)
    assert {client.status()["run"] for client in one.clients.values()} == {2}
    assert one.version == 1
    assert one.daemon.metrics.refusals() == {}


def test_a_new_run_of_the_same_method_keeps_the_weights_only(world):
    said = {"model_selection": "last", "final_tuning": False}
    one = world(run={"method": "pfl", "settings": {"steps": 2} | said, "rounds": 1})
    one.start_all()
    finish(one)
    assert {int(client.state.moments["taken"]) for client in one.clients.values()} == {2}
    begin(one, "pfl", {"steps": 3} | said)
    finish(one, 2)
    assert {int(client.state.moments["taken"]) for client in one.clients.values()} == {3}
