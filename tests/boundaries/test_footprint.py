"""What a training device weighs: a bound that a stray import of torch or pandas breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_sdk.protocol.keys import generate, save_public, save_signing_key

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 120
"""About 90 with numpy 2.4 and onnxruntime 1.31 on x86-64; torch alone would need 200 more."""

TRAIN = """
import json, sys
from edge_sdk.agent import open_sources
from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.sources import read_all
config = Config.load(sys.argv[1])
with Client(config) as client:
    read_all(open_sources(config), client.observe_all)
    while client.status()["counts"].get("rounds alone", 0) < 3:
        client.tick(0.02)
    source = client.forecast().source
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"mib": int(peak.split()[1]) / 1024, "source": source, "modules": [*sys.modules]}))
"""


@pytest.fixture(scope="module", params=[[], ["-OO"]], ids=["", "without docstrings"])
def told(request, tmp_path_factory):
    """Let a device train alone, in a process of its own, while its broker does not answer."""
    if not Path("/proc/self/status").is_file():
        pytest.skip("peak memory is read from /proc")
    folder = tmp_path_factory.mktemp("meter")
    save_signing_key(folder / "meter.key", generate())
    save_public(folder / "root.pub", generate().public)
    rows = (f"{1_500_001_200 + 3600 * hour},{hour % 24},{hour % 7},5" for hour in range(500))
    (folder / "readings.csv").write_text("time,load,warm,wind\n" + "\n".join(rows) + "\n")
    (folder / "meter.toml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, *request.param, "-c", TRAIN, str(folder / "meter.toml")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CONFIG = """
id = "meter"
fleet = "test"
state = "state"
bundle = "load-lstm-week"
broker = { url = "mqtt://127.0.0.1:9" }
keys = { device = "meter.key", root = "root.pub" }
local_rounds = { after = "0s", interval = "0s", steps = 2 }
privacy = { mechanism = { name = "none" } }

[[source]]
type = "csv"
path = "readings.csv"
time_format = "epoch"
columns = { load = "elec.import.energy", warm = "weather.temperature", wind = "weather.wind_speed" }
"""


def test_a_training_device_stays_small(told):
    assert 20 < told["mib"] < MOST_MIB


def test_it_has_loaded_its_engine_and_its_link_but_no_framework(told):
    assert {"onnxruntime", "paho", "cryptography", "msgpack"} <= set(told["modules"])
    assert not {"torch", "onnx", "pandas", "scipy", "aggregator"} & set(told["modules"])


@pytest.mark.parametrize(
    "module",
    [
        "edge_sdk.extensions.inspection.release_count",
        "edge_sdk.extensions.lifecycle.operator_commands",
        "edge_sdk.extensions.papers.consensus",
        "edge_sdk.extensions.outputs.file",
        "edge_sdk.extensions.outputs.mqtt",
        "edge_sdk.extensions.noise_points.gradient_noise",
        "edge_sdk.extensions.sources.interface",
        "edge_sdk.extensions.sources.p1",
    ],
)
def test_it_has_not_loaded_what_is_not_configured(told, module):
    assert module not in told["modules"]
