"""Checks of a device's abilities, run on the board as ``-m tools.emulated.probe``.

One line of JSON for each check that has passed, as soon as it has: where a processor stops at an
instruction that it has not, the first line that is missing says at what. Then the versions that
did it, and processor seconds, to be compared with those of the machine that emulates.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import numpy as np

from edge_sdk import Bundle, Client, Config, Reading
from edge_sdk.bundle import TrustedKeys, shipped_names
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import ENGINE, engine_name
from edge_sdk.shared_math.optim import adam, optimiser_step
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from tools.emulated.sealing import Wrong, encryption, sealed, signing, update

CLOSE = 1e-5
"""How near numpy alone must come to the engine, as a part of the largest number."""

LOCKED = ("numpy", "onnxruntime", "paho-mqtt", "msgpack", "cryptography")
_MODEL = "load-lstm-week"
_CONFIG = f"""
id = "meter-0042"
fleet = "north"
state = "state"
bundle = "{_MODEL}"
broker = {{ url = "mqtt://127.0.0.1:1" }}
keys = {{ device = "meter.key", root = "root.pub" }}
privacy = {{ mechanism = {{ name = "none" }} }}
"""


def engine(_: Path) -> str:
    """Check that the engine loads and is the one that the SDK selects."""
    import onnxruntime  # noqa: PLC0415 - may end the process: that is the check

    if engine_name() != "onnxruntime":
        raise Wrong(f"the SDK takes {engine_name()} here")
    return f"onnxruntime {onnxruntime.__version__} on {platform.machine()}"


def bundles(_: Path) -> str:
    """Check the signature, digests and golden forecast of every shipped bundle."""
    names = shipped_names()
    for name in names:
        _opened(name)
    return f"{len(names)} opened: signature, digests, golden forecast"


def forecast(folder: Path) -> str:
    """Check that a device without a link stores readings and forecasts from them."""
    keys.save_signing_key(folder / "meter.key", keys.generate())
    keys.save_public(folder / "root.pub", keys.generate().public)
    (folder / "meter.toml").write_text(_CONFIG, "utf-8")
    now = int(time.time()) // 3600 * 3600
    with Client(Config.load(folder / "meter.toml")) as client:
        for hour in range(now - 15 * 86_400, now, 3600):
            client.observe(Reading("elec.import.energy", hour, 0.3 + hour // 3600 % 24 / 50))
            client.observe(Reading("weather.temperature", hour, 12.0))
            client.observe(Reading("weather.wind_speed", hour, 3.0))
        result = client.forecast()
    if result.source != "model":
        raise Wrong(f"it forecast by {result.source}")
    return f"{result.median[0]:.3f} {result.unit} in the next hour, by the model"


def training(_: Path) -> str:
    """Check that a training step of the bundle reduces its loss on the same windows."""
    bundle = _opened(_MODEL)
    feeds, rule = _windows(bundle), adam(bundle.manifest.training.rate)
    before, g = bundle.gradient(p=bundle.initial, **feeds)
    p, _moments = optimiser_step(rule, bundle.initial, g, rule.init(bundle.initial))
    after, _g = bundle.gradient(p=p, **feeds)
    if not after < before:
        raise Wrong(f"the loss went from {before:.6f} to {after:.6f}")
    return f"loss {before:.6f} before a step, {after:.6f} after it"


def numpy_alone(_: Path) -> str:
    """Check that the numpy engine's forecasts and gradients equal the engine's on every shipped bundle."""
    apart = max(_apart(name) for name in shipped_names())
    if not apart <= CLOSE:
        raise Wrong(f"{apart:.1e} apart, and {CLOSE:.0e} is allowed")
    return f"at most {apart:.1e} apart, forecasts and gradients of every bundle"


def _apart(name: str) -> float:
    one, other = _opened(name), _opened(name, "numpy")
    draw, p, feeds = np.random.default_rng(3), one.initial, _windows(one, 8)
    p = p + 0.2 * draw.standard_normal(p.size).astype(np.float32)  # far from the first vector
    wanted = (*one.gradient(p=p, **feeds), *one.forecast(p=p, x=feeds["x"]))
    got = (*other.gradient(p=p, **feeds), *other.forecast(p=p, x=feeds["x"]))
    pairs = zip(wanted, got, strict=True)
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(a).max())) for a, b in pairs)


def store(folder: Path) -> str:
    """Check that model and readings are there after the device's file is opened again."""
    p, place = _opened(_MODEL).initial, folder / "kept"
    rows = [SeriesRow("elec.import.energy", slot, slot / 7, 0) for slot in range(500)]
    with DeviceStore.open(place) as kept:
        kept.save(learned=LearnedState(1, 2, 3, bytes(16), {"half": {"p": p}}))
        kept.add_readings(rows)
    with DeviceStore.open(place) as kept:
        again, found = kept.learned(), list(kept.readings)
    half = again.leaves["half"] if again else None
    if found != rows or not isinstance(half, Mapping) or not np.array_equal(half["p"], p):
        raise Wrong("something else was read than was written")
    return f"{len(rows)} readings and {p.size} scalars, {(place / FILE).stat().st_size} bytes"


CHECKS: dict[str, Callable[[Path], str]] = {
    "engine": engine,
    "bundles": bundles,
    "forecast": forecast,
    "training": training,
    "numpy alone": numpy_alone,
    "signing": signing,
    "encryption": encryption,
    "store": store,
}


def pace() -> dict[str, float]:
    """Return the processor seconds of a device's most frequent operations, each the median of nine."""
    one, other, said = _opened(_MODEL), _opened(_MODEL, "numpy"), update()
    feeds, newest = _windows(one), {"x": _windows(one, 1)["x"]}
    return {
        "a forecast": _seconds(lambda: one.forecast(p=one.initial, **newest)),
        "a training step": _seconds(lambda: one.gradient(p=one.initial, **feeds)),
        "a training step, numpy alone": _seconds(lambda: other.gradient(p=one.initial, **feeds)),
        "an update encoded and signed": _seconds(lambda: sealed(said)),
    }


def _seconds(do: Callable[[], object]) -> float:
    took = []
    for _ in range(9):
        began = time.process_time()
        do()
        took.append(time.process_time() - began)
    return statistics.median(took)


def _opened(name: str, wanted: str = "onnxruntime") -> Bundle:
    os.environ[ENGINE] = wanted
    bundle = Bundle.open(name, trust=TrustedKeys())
    made = {type(graph).__name__ for graph in (bundle.gradient, bundle.forecast)}  # loaded now
    graph = "NumpyGraph" if wanted == "numpy" else "OrtGraph"
    if made not in ({graph}, {"NumpyFunction"}):  # a model in closed form has no graphs
        raise Wrong(f"{name}: asked for {wanted}, got {made}")
    return bundle


def _windows(bundle: Bundle, batch: int = 64) -> dict[str, Array]:
    draw, window = np.random.default_rng(5), bundle.manifest.window
    x = draw.random((batch, window.lookback, len(bundle.manifest.features)), np.float32)
    return {"x": x, "y": draw.random((batch, window.horizon), np.float32)}


def main() -> int:
    """Run every check once, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="gridfed-probe-") as folder:
        for name, check in CHECKS.items():
            try:
                finding = check(Path(folder))
            except Exception as error:  # noqa: BLE001 - whatever it is, the check has failed
                print(json.dumps({"check": name, "wrong": f"{type(error).__name__}: {error}"}))
                return 1
            print(json.dumps({"check": name, "said": finding}), flush=True)
    versions = {name: metadata.version(name) for name in LOCKED}
    print(json.dumps({"versions": versions, "pace": pace()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
