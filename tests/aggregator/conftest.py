"""A bundle of three scalars that no graph engine has to read, and a configuration around it."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.operations.run_setup import set_up
from aggregator.operations.signing_keys import RootSigners
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.link.transport import LinkUp, Message
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.contract.archive import seal
from edge_sdk.protocol.contract.manifest import (
    SIGNATURES,
    Feature,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.messages import HelloMessage, ModelMessage, UpdateMessage
from tests.aggregator.rig import Desk, Device

ROOT = keys.from_seed(bytes(range(32)))


LAYERS = (("body.w", (2,)), ("head.b", (1,)))


def toy_manifest(files, graphs=("gradient", "forecast"), layers=LAYERS):
    return Manifest(
        name="toy",
        version=1,
        min_sdk="0.1.0",
        layers=layers,
        shared=("body.",),
        window=Window(2, 1, 3600),
        features=(Feature("load", "target", "kWh"),),
        target=Target("elec.import.energy", "kWh", "level", "device"),
        loss=Loss("mse"),
        training=Training(),
        graphs={name: GraphFile(f"{name}.onnx", *SIGNATURES[name]) for name in graphs},
        golden=Golden(((0.0,), (0.5,)), (0.25,)),
        files=files,
    )


def write_bundle(folder: Path, root=ROOT, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "gradient.onnx": b"g",
        "forecast.onnx": b"f",
        "initial.f32": np.array([1.0, -2.0, 0.5], "<f4").tobytes(),
        **changes.pop("contents", {}),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    raw = toy_manifest(digests, **changes).canonical()
    (folder / "manifest.json").write_bytes(raw)
    (folder / "manifest.sig").write_bytes(seal(root, raw))
    return folder


CONFIG = """
fleet = "north"
state = "state"
broker = {{ url = "mqtt://127.0.0.1:1883" }}
http = {{ listen = "off" }}
pacing = {{ jitter = "0s" }}

[run]
bundle = "toy"
method = "fedavg"
quorum = 2
deadline = "60s"
schedule = {{ rounds_per_day = "continuous" }}
{more}
"""


@pytest.fixture
def workplace(tmp_path):
    """Write ``aggregator.toml`` with more lines under ``[run]``, beside a bundle and keys."""

    def write(more="", replacing=()):
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        if not (state / "root.pub").exists():
            keys.save_public(state / "root.pub", ROOT.public)
            keys.save_signing_key(state / "root.key", ROOT)
        if not (tmp_path / "toy").exists():
            write_bundle(tmp_path / "toy")
        text = CONFIG.format(more=more)
        for old, new in replacing:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "aggregator.toml"
        path.write_text(text, "utf-8")
        return path

    return write


# --- a device that does as it is told, over any link ----------------------------------------------


class Puppet:
    """A device of twenty lines: it says hello, and answers rounds with a delta it is given."""

    def __init__(self, broker, fleet="north", name="meter-1", seed=1):
        self.fleet, self.name = fleet, name
        self.key = keys.from_seed(bytes([seed]) * 32)
        self.link = broker.link(name)
        self.heard = []
        self.life = self.seq = 0
        self.link.open()
        self.poll()

    def poll(self):
        for happening in self.link.poll(0):
            if isinstance(happening, LinkUp):
                self.link.subscribe(*topics.device_filters(self.fleet, self.name))
                self.link.subscribe(topics.parts_filter(self.fleet))
            if isinstance(happening, Message) and happening.payload:
                self.link.acknowledge(happening)
                self.heard.append(self._read(happening))
        return self.heard

    def _read(self, message):
        address = topics.parse(message.topic)
        sender = "_root" if address.kind in ("keys", "bundle") else "_agg"
        recipient = "_all" if address.direction == "all" else self.name
        sealed = envelope.unseal(
            message.payload,
            kind=address.kind,
            sender=sender,
            recipient=recipient,
            fleet=self.fleet,
            key_of=lambda _sender, kid: TRUSTED.get(kid),
        )
        return codec.decode(address.kind, sealed.body)

    def say(self, message):
        payload = envelope.seal(
            codec.encode(message),
            kind=message.kind,
            sender=self.name,
            recipient="_agg",
            fleet=self.fleet,
            signer=self.key,
        )
        kind = message.kind
        topic = (
            topics.status(self.fleet, self.name)
            if kind == "status"
            else topics.up(self.fleet, self.name, kind)
        )
        return self.link.publish(topic, payload, retain=kind == "status")

    def hello(self, life):
        self.life, self.seq = life, 0
        nonce = bytes([life]) * 16
        self.say(HelloMessage(life, nonce, 0, False, (), (1, 1), (), "0", 1))

    def last(self, cls):
        found = [message for message in self.poll() if isinstance(message, cls)]
        return found[-1] if found else None

    def answer(self, delta, **changes):
        """Answer the newest manifest; returns what was said, to be said again."""
        asked = self.last(ModelMessage)
        self.seq += 1
        update = UpdateMessage(
            run=asked.run,
            round=asked.round,
            base=asked.version,
            life=self.life,
            seq=self.seq,
            spent=self.seq,
            spec=asked.spec,
            part="delta",
            enc="f4",
            n=10,
            vals={"loss": 0.5},
            blob=np.asarray(delta, "<f4").tobytes(),
        )
        update = replace(update, **changes)
        self.say(update)
        return update


ONLINE = keys.from_seed(bytes(range(32, 64)))
TRUSTED = {key.kid: key.public for key in (ROOT, ONLINE)}


class StillClock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def wall(self):
        return 1_800_000_000_000 + int(self.now * 1000)


@pytest.fixture
def founded(workplace):
    """A fleet with three enrolled puppets' keys; returns its configuration."""

    def make(more="", replacing=(), devices=3):
        path = workplace(more, replacing)
        config = AggregatorConfig.load(path, {})
        if not config.signing_key.exists():
            keys.save_signing_key(config.signing_key, ONLINE)
        with open_store(config.database) as store:
            run = bind(config)
            set_up(
                run, store, root=RootSigners.of(ROOT), online=ONLINE.public, now=1_800_000_000_000
            )
            for i in range(1, devices + 1):
                public = keys.from_seed(bytes([i]) * 32).public
                store.devices.save(EnrolledDevice(f"meter-{i}", (public,)))
        return config

    return make


@pytest.fixture
def puppets():
    """Makes puppets on a broker."""

    def make(broker, count=2):
        return [Puppet(broker, name=f"meter-{i}", seed=i) for i in range(1, count + 1)]

    return make


@pytest.fixture
def still_clock():
    return StillClock()


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.close()


@pytest.fixture
def device(desk):
    device = Device(desk)
    device.greet()
    return device
