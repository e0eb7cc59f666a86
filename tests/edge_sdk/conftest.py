"""A bundle in numpy, an aggregator that follows a script, and a device on a loopback link."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from edge_sdk import client as client_module
from edge_sdk.app.settings import from_table
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.forecasting.series import Reading
from edge_sdk.wire import keys
from edge_sdk.wire.contract.manifest import (
    SIGNATURES,
    Feature,
    Golden,
    GraphFile,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.wire.contract.manifest import Loss as LossOf
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.link.loopback import LoopbackBroker
from edge_sdk.wire.link.transport import LinkUp, Message
from edge_sdk.wire.protocol import codec, topics
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.envelope import AGGREGATOR, ALL, ROOT, digest, seal, unseal

FLEET, DEVICE = "north", "meter-1"
ROOT_KEY = keys.from_seed(b"r" * 32)
AGG_KEY = keys.from_seed(b"a" * 32)
DEVICE_KEY = keys.from_seed(b"d" * 32)
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


class ManualClock:
    """A clock that stands until it is told to move."""

    def __init__(self) -> None:
        self.at = 1000.0

    def wall(self) -> int:
        return 1_800_000_000_000 + int(self.at * 1000)

    def monotonic(self) -> float:
        return self.at


class Aggregator:
    """A server that follows the protocol for one device and does what the test tells it."""

    def __init__(self, broker: LoopbackBroker, *, inline: int = 32768, chunk: int = 8192) -> None:
        self.link = broker.link(AGGREGATOR)
        self.link.open()
        self.inline, self.chunk, self.caps = inline, chunk, ()
        self.highest, self.hello = 0, None
        self.rows: dict[tuple[int, int], bytes] = {}
        self.updates: list[m.UpdateMessage] = []
        self.heard: Counter[str] = Counter()
        self.chunks: dict[bytes, dict[int, bytes]] = {}
        self.offers: dict[bytes, m.OfferMessage] = {}
        self.statuses: list[m.StatusMessage] = []
        self.receipts: list[m.ReceiptMessage] = []
        self.refusals: list[m.RefusalMessage] = []
        self.is_mute = False  # hears, commits, and its answers get lost
        self.serial = 0
        self.spec = MANIFEST.spec()
        self.contents: dict[bytes, bytes] = {}

    # What is published to all.

    def announce(self, kind: str, message, signer=ROOT_KEY, sender=ROOT) -> None:
        self.say(topics.common(FLEET, kind), message, signer, sender, ALL, retain=True)

    def publish_keys(self, *, serial: int = 1) -> None:
        self.announce(
            "keys",
            m.KeysMessage(serial, (AGG_KEY.public,), (), (0,), (2**47,), 1),
        )

    def publish_bundle(
        self, *, serial: int = 1, run: int = 1, shared=("body.",), **changes
    ) -> None:
        spec = MANIFEST.spec(shared)
        bundle = m.BundleMessage(
            serial=serial,
            name="linear",
            version=1,
            digest=NumpyBundle().digest,
            size=100,
            spec=spec.digest,
            sdk="0.1.0",
            method="fedavg",
            run=run,
            shared=tuple(shared),
        )
        self.announce("bundle", replace(bundle, **changes))

    def open_round(self, number: int, version: int, w, *, retained: bool = True, **changes) -> None:
        self.serial += 1
        content = codec.encode(
            m.ContentBody(
                run=changes.get("run", 1),
                version=version,
                part="shared",
                spec=self.spec.digest,
                enc="f4",
                blob=codec.pack_tensor(np.asarray(w, np.float32), "f4"),
            )
        )
        manifest = m.ModelMessage(
            serial=self.serial,
            run=1,
            round=number,
            version=version,
            phase="train",
            part="shared",
            spec=self.spec.digest,
            enc="f4",
            digest=digest(content),
            size=len(content),
            chunk=8192,
            until=2**47,
            spread=0,
            inline=self.inline,
            share=1.0,
            vals={"steps": 3.0, "rate": 0.1},
        )
        manifest = replace(manifest, **changes)
        self.contents[digest(content)[:16]] = content
        if retained:
            part = m.PartMessage(digest(content)[:16], 0, content)
            self.say(topics.part(FLEET, 0), part, AGG_KEY, AGGREGATOR, ALL, retain=True)
        self.announce("model", manifest, AGG_KEY, AGGREGATOR)

    # What is said to the device.

    def tell(self, message) -> None:
        topic = topics.down(FLEET, DEVICE, message.kind)
        self.say(topic, message, AGG_KEY, AGGREGATOR, DEVICE)

    def say(self, topic, message, signer, sender, recipient, *, retain=False) -> None:
        payload = seal(
            codec.encode(message),
            kind=message.kind,
            sender=sender,
            recipient=recipient,
            fleet=FLEET,
            signer=signer,
        )
        if not (self.is_mute and recipient == DEVICE):
            assert self.link.publish(topic, payload, retain=retain)

    def serve(self) -> None:
        for happening in self.link.poll(0.0):
            if isinstance(happening, LinkUp):
                self.link.subscribe(*topics.aggregator_filters(FLEET), "gf/1/north/+/up/chunk/+")
            elif isinstance(happening, Message):
                self.link.acknowledge(happening)
                self.hear(happening)

    def hear(self, publish: Message) -> None:
        address = topics.parse(publish.topic)
        proved = unseal(
            publish.payload,
            kind=address.kind,
            sender=DEVICE,
            recipient=AGGREGATOR,
            fleet=FLEET,
            key_of=lambda _sender, _kid: DEVICE_KEY.public,
        )
        message = codec.decode(proved.kind, proved.body)
        self.heard[message.kind] += 1
        match message:
            case m.HelloMessage():
                self.welcome(message, proved.ref)
            case m.UpdateMessage():
                self.settle(message, proved.digest)
            case m.OfferMessage():
                self.grant(message)
            case m.ChunkMessage():
                self.collect(message)
            case m.HaveMessage():
                body = self.contents[message.id]
                self.tell(m.ChunkMessage(message.id, 0, blob=body))
            case m.StatusMessage():
                self.statuses.append(message)
            case m.ReceiptMessage():
                self.receipts.append(message)
            case m.RefusalMessage():
                self.refusals.append(message)

    def welcome(self, hello: m.HelloMessage, ref: bytes) -> None:
        if ref != self.hello and hello.life <= self.highest:
            self.tell(m.FloorMessage(ref, self.highest))
            return
        self.hello, self.highest = ref, max(self.highest, hello.life)
        self.tell(
            m.WelcomeMessage(
                hello=ref,
                life=hello.life,
                spent=hello.spent,
                time=1_800_000_000_000,
                wire=1,
                caps=self.caps,
                run=1,
                inline=self.inline,
                window=4,
                quota=2**30,
                hold=2,
                cmd=0,
            )
        )

    def settle(self, update: m.UpdateMessage, whole: bytes) -> None:
        key = (update.life, update.seq)
        assert self.rows.setdefault(key, whole) == whole, "two bodies under one number"
        if update not in self.updates:
            self.updates.append(update)
        self.tell(m.ReceiptMessage(*key, whole[:16], 0, update.run, update.round))

    def grant(self, offer: m.OfferMessage) -> None:
        key = (offer.life, offer.seq)
        if key in self.rows:
            self.tell(m.ReceiptMessage(*key, offer.digest[:16], 0, offer.run, offer.round))
            return
        self.offers[offer.digest[:16]] = offer
        self.report(offer.digest[:16])

    def report(self, which: bytes, win: int = 2) -> None:
        have = self.chunks.setdefault(which, {})
        offer = self.offers[which]
        count = -(-offer.size // offer.chunk)
        bitmap = sum(1 << i for i in have).to_bytes(-(-count // 8), "little") if have else b""
        self.tell(m.GrantMessage(which, bitmap, win, 60_000))

    def collect(self, chunk: m.ChunkMessage) -> None:
        offer = self.offers.get(chunk.id)
        if offer is None:
            return
        have = self.chunks[chunk.id]
        have[chunk.i] = chunk.blob
        count = -(-offer.size // offer.chunk)
        if len(have) == count:
            body = b"".join(have[i] for i in range(count))
            assert digest(body) == offer.digest
            self.settle(codec.decode(m.UpdateMessage, body), offer.digest)
        else:
            self.report(chunk.id)


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


def device_config(folder: Path, **changes) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    keys.save_signing_key(folder / "meter.key", DEVICE_KEY)
    keys.save_public(folder / "root.pub", ROOT_KEY.public)
    table = {
        "id": DEVICE,
        "fleet": FLEET,
        "state": str(folder / "state"),
        "bundle": "linear",
        "broker": {"url": "mqtt://127.0.0.1"},
        "keys": {"device": str(folder / "meter.key"), "root": str(folder / "root.pub")},
        "privacy": {"mechanism": {"name": "none"}},
        "timeouts": {"reply": "1s"},
        **changes,
    }
    return from_table(Config, table, "meter.toml")


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
    server.publish_keys()
    server.publish_bundle()
    return Fleet(broker, clock, server, Device(broker, folder, clock, **changes))


__all__ = ["Refused"]
