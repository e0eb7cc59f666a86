"""A bundle in numpy, an aggregator that follows a script, and a device on a loopback link."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edge_sdk import client as client_module
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import Refused
from edge_sdk.forecasting.series import Reading
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.manifest import (
    SIGNATURES,
    Feature,
    Golden,
    GraphFile,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.contract.manifest import Loss as LossOf
from edge_sdk.protocol.envelope import ROOT
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.statements import command_statement
from firmware_sim.testing.loopback import LoopbackBroker
from firmware_sim.testing.scripted_aggregator import AGGREGATOR_KEY as AGG_KEY
from firmware_sim.testing.scripted_aggregator import (
    DEVICE_KEY,
    ROOT_KEY,
    ManualClock,
    ScriptedAggregator,
)

FLEET, DEVICE = "north", "meter-1"
LOOKBACK = 4


def linear_gradient(**feeds):
    p, x, y = feeds["p"], feeds["x"][:, :, 0], feeds["y"][:, 0]
    error = x @ p[:LOOKBACK] + p[LOOKBACK] - y
    g = np.append(2 * error @ x, 2 * error.sum()) / len(x)
    return np.float32(np.mean(error**2)), g.astype(np.float32)


def linear_forecast(**feeds):
    p, x = feeds["p"], feeds["x"][:, :, 0]
    return ((x @ p[:LOOKBACK] + p[LOOKBACK])[:, None].astype(np.float32),)


MANIFEST = Manifest(
    name="linear",
    version=1,
    min_sdk="0.1.0",
    layers=(("body.w", (LOOKBACK,)), ("head.b", (1,))),
    shared=("body.",),
    window=Window(LOOKBACK, 1, 3600),
    features=(Feature("load", "target", "kWh"),),
    target=Target("elec.import.energy", "kWh", "level", "device"),
    loss=LossOf("mse"),
    training=Training(optimiser="sgd", rate=0.1, batch=8, steps=3, minibatch="fresh"),
    graphs={
        name: GraphFile(f"{name}.onnx", *SIGNATURES[name]) for name in ("gradient", "forecast")
    },
    golden=Golden(tuple((0.0,) for _ in range(LOOKBACK)), (0.0,)),
)


@dataclass(frozen=True)
class NumpyBundle:
    """What the client needs of a bundle, without files or an engine."""

    manifest: Manifest = MANIFEST
    digest: bytes = hashlib.sha256(b"archive").digest()
    graphs: Mapping = field(
        default_factory=lambda: {"gradient": linear_gradient, "forecast": linear_forecast}
    )

    @property
    def initial(self):
        return np.linspace(-0.2, 0.2, self.manifest.size, dtype=np.float32)


class Aggregator(ScriptedAggregator):
    """The scripted aggregator of the bundle in numpy."""

    def __init__(self, broker: LoopbackBroker, *, inline: int = 32768, chunk: int = 8192) -> None:
        super().__init__(MANIFEST, NumpyBundle().digest, broker=broker, fleet=FLEET, device=DEVICE)
        self.inline, self.chunk = inline, chunk

    def announce(self, _kind: str, message, signer=ROOT_KEY, sender=ROOT) -> None:
        self.publish(message, signer, sender)


class Device:
    """A client over a folder, which can be killed and started again."""

    def __init__(self, broker: LoopbackBroker, folder: Path, clock: ManualClock, **changes) -> None:
        self.broker, self.folder, self.clock = broker, folder, clock
        self.config = device_config(folder, **changes)
        self.client: Client | None = None

    def start(self) -> Client:
        self.client = Client(
            self.config,
            transport=lambda will: self.broker.link(DEVICE, will),
            clock=self.clock,
        )
        return self.client

    def kill(self) -> None:
        """Power cut: nothing is flushed, nothing is said."""
        self.broker.cut(DEVICE)
        self.client._store.close()
        self.client = None

    def observe(self, hours: int = 60) -> None:
        for hour in range(hours):
            value = 1.0 + np.sin(hour / 3.0) * 0.5 + 0.01 * (hour % 7)
            self.client.observe(
                Reading("elec.import.energy", 1_700_000_000 // 3600 * 3600 + hour * 3600, value)
            )


def sign_statement(statement, signers):
    """Return the key id and the signature of each key of the root, one after the other."""
    return b"".join(kid_of(one.public) + one.sign(statement) for one in signers)


def signed_command(num, op, signers=(ROOT_KEY,), until=2_000_000_000_000) -> m.CommandMessage:
    """Return a command with the root's statement to the device under its first key."""
    statement = command_statement(FLEET, DEVICE, DEVICE_KEY.public, op, until)
    return m.CommandMessage(num, op, {}, until, sign_statement(statement, signers))


def device_config(folder: Path, **changes) -> Config:
    return Aggregator(LoopbackBroker()).device_config(folder, **changes)


@pytest.fixture
def numpy_bundle(monkeypatch):
    """Let every client find the bundle that needs no files and no engine."""
    bundle = NumpyBundle()
    monkeypatch.setattr(client_module, "open_bundle", lambda _config, _announced: bundle)
    return bundle


@dataclass
class Fleet:
    """Broker, server and one device, turned by hand."""

    broker: LoopbackBroker
    clock: ManualClock
    server: Aggregator
    device: Device

    def run(self, turns: int = 12, *, seconds: float = 0.01) -> None:
        for _ in range(turns):
            self.server.serve()
            if self.device.client is not None:
                self.device.client.tick()
            self.clock.at += seconds


@pytest.fixture
def fleet(tmp_path, numpy_bundle):
    """A server that has announced everything, and a device that is not started yet."""
    return make_fleet(tmp_path)


@pytest.fixture
def make(tmp_path, numpy_bundle):
    """Make a fleet with other settings."""
    return lambda name="fleet", **options: make_fleet(tmp_path / name, **options)


def make_fleet(folder: Path, *, broker=None, inline: int = 32768, **changes) -> Fleet:
    clock = ManualClock()
    broker = broker or LoopbackBroker(clock=clock.monotonic)
    server = Aggregator(broker, inline=inline)
    server.serve()
    server.announce_keys()
    server.announce_bundle()
    return Fleet(broker, clock, server, Device(broker, folder, clock, **changes))


__all__ = ["AGG_KEY", "ManualClock", "Refused"]
