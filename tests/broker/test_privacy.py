"""What a device sends of its newest window, captured at a real broker while real programs run."""

from __future__ import annotations

import time
import tomllib

import numpy as np
import pytest

from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from edge_sdk import Config, Reading
from edge_sdk.client import Client
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import unproved
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml
from tests.fleet.conftest import World
from tests.fleet.test_split import HOURS, demand, sites

pytestmark = pytest.mark.broker

STREAM = "ev.demand.energy"
BEGIN = 1_514_764_800
INPUT = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "input", "range": [0.0, 40.0]},
    "budget": {"epsilon": 30.0, "delta": 1e-5},
}


class Programs:
    """A daemon and its devices on one real broker, turned by hand."""

    def __init__(self, one: World, url: str, privacy: dict) -> None:
        self.folder = one.folder
        for path in one.folder.glob("*.toml"):
            table = tomllib.loads(path.read_text("utf-8"))
            table["broker"] = {"url": url}
            if path.name.startswith("home-"):
                table["privacy"] = privacy
                table["timeouts"] = {"reply": "1s", "retained_model": "1s"}
            path.write_text(toml(table))
        self.daemon = Daemon(AggregatorConfig.load(one.config))
        self.daemon.open()
        self.clients = [self.start(number) for number in range(one.devices)]
        for number, client in enumerate(self.clients):
            for reading in demand(number):
                client.observe(reading)

    def config(self, number: int) -> Config:
        return Config.load(self.folder / f"home-{number}.toml")

    def start(self, number: int) -> Client:
        return Client(self.config(number))

    def turn(self) -> None:
        self.daemon.turn(0.0)
        for client in self.clients:
            client.tick(0.005)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.daemon.close()


@pytest.fixture
def programs(tmp_path):
    made = []

    def make(url, privacy=INPUT, **run):
        def world(**options):
            return World(tmp_path, **options)

        one = sites(world, devices=2, rounds=1, turns={"batch": 4}, steps=1, **run)
        made.append(Programs(one, url, privacy))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(room, one, condition, patience=600.0):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, [client.status() for client in one.clients]
        one.turn()
        room.poller.serve(0.0)
        room.take()


def served(line, device):
    """Return the activations that a device sent for its newest windows, by window number."""
    out = {}
    for publish in line.messages:
        if publish.topic.split("/")[3] != device:
            continue
        said = decode("signal", unproved(publish.payload))
        if said.ask == "serve":
            assert said.num == said.shape[0]
            out.setdefault(said.step, []).append(
                np.frombuffer(said.blob, "<f4").reshape(said.shape)
            )
    return out


def activations(client, frame):
    """Return what the encoder makes of the newest window of a frame, by this device's model."""
    learner = client.learner
    x = frame.inputs(np.array([len(frame) - 1]))
    return learner.bundle.graphs["encode"](p=client.state.chosen, x=x)[0]


def test_a_sent_window_is_the_noisy_one(room, broker, programs):
    line = room.join(broker.url, "capture", "gf/1/+/+/up/signal")
    one = programs(broker.url)
    until(room, one, lambda: all(client.is_done for client in one.clients))
    client = one.clients[0]
    until(room, one, lambda: client.forecast().source == "model")
    step = client.step
    for ahead in range(3):
        at = BEGIN + step * (HOURS + ahead)
        client.observe(Reading(STREAM, float(at), 20.0 + ahead))
        until(room, one, lambda: client.forecast().source == "model")
        until(room, one, lambda at=at: at // step in served(line, "home-0"))
        (h, *again) = served(line, "home-0")[at // step]
        assert all(np.array_equal(h, other) for other in again)
        with DeviceStore.open(client.config.state, read_only=True) as store:
            assert (STREAM, at // step) in store.noised()
            drawn = sum(charge.count for charge in store.ledger() if charge.point == "input")
            assert drawn >= HOURS + ahead + 1
        noised = client.learner.learnable().frame  # drawn above, or this call would draw it
        np.testing.assert_allclose(h, activations(client, noised), atol=1e-5)
        assert np.abs(h - activations(client, client.learner.frame())).max() > 0.05
        assert client.learner.frame().raw[-1] == 20.0 + ahead  # its own display sees it clean
