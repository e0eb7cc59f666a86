"""A bundle of three scalars that no graph engine has to read, and a configuration around it."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from aggregator.bundles import CONTEXT
from edge_sdk.wire import keys
from edge_sdk.wire.manifest import (
    Feature,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)

ROOT = keys.from_seed(bytes(range(32)))


def toy_manifest(files, graphs=("gradient", "forecast")):
    return Manifest(
        name="toy",
        version=1,
        min_sdk="0.1.0",
        layers=(("body.w", (2,)), ("head.b", (1,))),
        shared=("body.",),
        window=Window(2, 1, 3600),
        features=(Feature("load", "target", "kWh"),),
        target=Target("elec.import.energy", "kWh", "level", "device"),
        loss=Loss("mse"),
        training=Training(),
        graphs={name: GraphFile(f"{name}.onnx", ("p", "x"), ("y",)) for name in graphs},
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
    signed = root.sign(CONTEXT + hashlib.sha256(raw).digest())
    (folder / "manifest.sig").write_bytes(root.kid + signed)
    return folder


CONFIG = """
fleet = "north"
state = "state"
broker = {{ url = "mqtt://127.0.0.1:1883" }}
page = {{ listen = "off" }}
pace = {{ spread = "0s" }}

[run]
bundle = "toy"
method = "fedavg"
quorum = 2
deadline = "60s"
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
