"""Fleets that hide their readings: rounds move, power cuts change no noise, budgets end."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from edge_sdk import Reading
from edge_sdk.link.transport import Message
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml
from tests.fleet.test_split import HOURS, sites, start_all

PUBLIC = ["weather.temperature", "weather.wind_speed"]
INPUT = {
    "mode": "honest",
    "mechanism": {
        "name": "gaussian",
        "point": "input",
        "range": [0.0, 10.0],
        "public_streams": PUBLIC,
    },
    "budget": {"epsilon": 30.0, "delta": 1e-5},
}
UPDATE = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "update", "clip_norm": 0.1, "noise_multiplier": 1.0},
    "budget": {"epsilon": 12.0, "delta": 1e-5},
}


def hide(one, privacy, numbers=(0, 1, 2)):
    for number in numbers:
        path = one.folder / f"home-{number}.toml"
        table = tomllib.loads(path.read_text("utf-8"))
        path.write_text(toml(table | {"privacy": privacy}))


def noised(one, number):
    with DeviceStore.open(one.folder / f"home-{number}", read_only=True) as store:
        return store.noised()


def charged(one, number):
    with DeviceStore.open(one.folder / f"home-{number}", read_only=True) as store:
        return sum(charge.releases for charge in store.ledger()), store.numbers().spent


@pytest.mark.parametrize("method", ["fedavg", "afl"])
def test_training_uses_noisy_readings_that_survive_power_cuts(world, method):
    run = {"method": method, "rounds": 4}
    if method == "afl":
        run["settings"] = {"steps": 2, "rate": 0.003}
    one = world(run=run)
    hide(one, INPUT)
    one.start_all()
    one.until(lambda: one.version >= 2)
    before = noised(one, 1)
    for number in range(3):
        one.die(number)
        one.start(number)
    one.until(lambda: one.version >= 4)
    assert noised(one, 1) == before
    assert {stream for stream, _ in before} == {"elec.import.energy"}
    assert one.daemon.metrics.refusals() == {}
    for client in one.clients.values():
        clean = client.learner.series.values("elec.import.energy")
        seen = client.learner.learnable().frame.raw
        assert np.nanmean(np.abs(seen - clean)) > 1.0
        assert client.status()["budget"]["epsilon"] == pytest.approx(30.0, rel=1e-6)
        assert client.forecast().source == "model"


def test_a_device_with_a_spent_budget_leaves_and_the_others_continue(world):
    run = {
        "rounds": 40,
        "quorum": 2,
        "deadline": "20s",
    }  # four seconds at the least, a round a turn
    one = world(run=run, local_rounds={"interval": "1s"})
    hide(one, UPDATE, numbers=[0])
    one.start_all()
    one.until(lambda: one.version >= 40)
    told = one.clients[0].status()
    assert told["budget"]["left"] == 0
    assert told["budget"]["epsilon"] <= 12.0
    assert 1 <= told["spent"] < 8
    assert charged(one, 0) == (told["spent"], told["spent"])
    assert one.clients[1].status()["spent"] >= 39
    assert told["counts"]["rounds alone"] > 0
    ledger = one.daemon._store.ledgers.get("home-0")
    assert ledger.spent == told["spent"]


def test_the_release_count_of_the_aggregator_stops_a_device(world):
    one = world(run={"rounds": 6, "quorum": 3, "deadline": "5s"}, admission={"max_updates": 3})
    one.start_all()
    clients = one.clients.values()
    one.until(lambda: all(client.status()["stopped"] == "budget" for client in clients))
    assert one.version == 3
    assert {client.status()["counts"]["refused BUDGET_SPENT"] for client in clients} == {1}
    assert {client.status()["spent"] for client in clients} == {4}


# --- the newest window of a split method ---------------------------------------------------------

DEMAND = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "input", "range": [0.0, 40.0]},
    "budget": {"epsilon": 30.0, "delta": 1e-5},
}


def split(world, privacy, **run):
    """A split run with one capturing link, played to its end."""
    one = sites(world, devices=2, rounds=1, turns={"batch": 4}, steps=1, **run)
    hide(one, privacy, numbers=(0, 1))
    line = one.broker.link("capture")
    line.open()
    line.poll(0.0)
    line.subscribe("gf/1/+/+/up/signal")
    start_all(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    return one, line


def windows(line, device):
    """Return the numbers of the windows that a device sent to be served, as a broker saw them."""
    said = [
        decode("signal", unproved(arrived.payload))
        for arrived in line.poll(0.0)
        if isinstance(arrived, Message) and topics.parse(arrived.topic).id == device
    ]
    return {signal.step for signal in said if signal.ask == "serve"}


def observed(one, number=0):
    """Let a device measure one value more, and return its window's number."""
    at = 1_514_764_800 + 3600 * HOURS
    one.clients[number].observe(Reading("ev.demand.energy", float(at), 21.0))
    return at // 3600


def test_with_a_spent_budget_no_window_is_sent_after_the_run(world, caplog):
    spent = {**DEMAND, "budget": {**DEMAND["budget"], "max_releases": 1}}
    one, line = split(world, spent)
    client = one.clients[0]
    assert not client.status()["budget"]["left"]
    before, kept = windows(line, "home-0"), noised(one, 0)
    newest = observed(one)
    one.until(lambda: client.status()["counts"].get("graph not asked", 0) > 0)
    for _ in range(400):
        one.turn()
    assert windows(line, "home-0") | before == before
    assert newest not in before
    assert noised(one, 0) == kept  # and nothing was drawn for what does not leave
    assert client.forecast().source == "without graph"
    assert any("graph model unavailable why=budget" in said.getMessage() for said in caplog.records)


def test_a_window_with_readings_older_than_a_lost_store_is_not_sent(world, caplog):
    one, line = split(world, DEMAND)
    client = one.clients[0]
    one.until(lambda: client.forecast().source == "model")
    assert windows(line, "home-0")
    newest = observed(one)
    client._store.begin_noise_anew(3600 * newest)
    one.until(lambda: client.status()["counts"].get("graph not asked", 0) > 0)
    assert newest not in windows(line, "home-0")
    assert client.forecast().source == "without graph"
    assert any("window not learnable" in said.getMessage() for said in caplog.records)


def test_paper_input_noise_works_with_split_rounds(world):
    paper = {
        "mode": "paper",
        "mechanism": {"name": "gaussian", "point": "input", "noise_multiplier": 0.1},
    }
    one, line = split(world, paper)
    one.until(lambda: one.clients[0].forecast().source == "model")
    assert windows(line, "home-0")
    assert one.version == 1


LAPLACE = {
    "mode": "honest",
    "mechanism": {"name": "laplace", "point": "update", "clip_norm": 1.0, "noise_multiplier": 8.0},
    "budget": {"epsilon": 2.0, "max_releases": 4},
}
GRADIENT = {
    "mode": "honest",
    "mechanism": {
        "name": "gaussian",
        "point": "gradient",
        "range": [0.0, 10.0],
        "clip_norm": 0.5,
        "noise_multiplier": 4.0,
    },
    "budget": {"epsilon": 30.0, "delta": 1e-5, "unit": "window"},
}
LAPLACE_INPUT = {
    "mode": "honest",
    "mechanism": {
        "name": "laplace",
        "point": "input",
        "range": [0.0, 10.0],
        "public_streams": PUBLIC,
    },
    "budget": {"epsilon": 5.0},
}


@pytest.mark.parametrize(
    ("privacy", "bundle"),
    [(LAPLACE, "load-mlp"), (LAPLACE_INPUT, "load-mlp"), (GRADIENT, "load-week-1")],
    ids=["laplace at the update", "laplace at the input", "gradient"],
)
def test_a_fleet_learns_with_laplace_and_with_gradient_noise(world, privacy, bundle):
    """Every release is charged before it leaves, and a restarted device keeps its account."""
    one = world(run={"rounds": 3, "bundle": bundle, "settings": {"steps": 2, "rate": 0.003}})
    hide(one, privacy)
    one.start_all()
    one.until(lambda: one.version >= 1)
    one.die(1)
    one.start(1)
    one.until(lambda: one.version >= 3)
    assert one.daemon.metrics.refusals() == {}
    for number, client in one.clients.items():
        told = client.status()
        assert told["budget"]["epsilon"] > 0.0
        releases, spent = charged(one, number)
        assert releases == spent == told["spent"] >= 3
        assert np.isfinite(client.state.p).all()
