"""What learning costs on a device, beside torch (and Flower's client) doing the same, in one run.

    python tools/bench_device.py                                  # needs the [train] extra
    python tools/bench_device.py --peers PEERS --flower PYTHON     # also Flower's gRPC client

Compare ratios; times of a shared machine move by two. PEERS is a folder of peer harnesses whose
``flower_grpc/run.py`` prints JSON; PYTHON an interpreter that has flwr and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

DEVICE_PACKAGES = (
    "gridfed",
    "numpy",
    "onnxruntime",
    "paho-mqtt",
    "msgpack",
    "cryptography",
    "cffi",
)
ONNXRUNTIME_NEEDS = (
    "flatbuffers",
    "protobuf",
    "packaging",
    "coloredlogs",
    "humanfriendly",
    "sympy",
    "mpmath",
)
TORCH_PACKAGES = (
    "torch",
    "numpy",
    "sympy",
    "networkx",
    "jinja2",
    "typing-extensions",
    "filelock",
    "fsspec",
    "mpmath",
)

# One process, alone: from exec to its first finished step, then many steps; memory from the kernel.
OURS = """
import time, sys
import numpy as np
from edge_sdk.bundle import Bundle, Trust
from edge_sdk.methods.optim import adam
bundle = Bundle.open("load-lstm", trust=Trust())
rng = np.random.default_rng(0)
x = rng.random((64, 12, 8), np.float32); y = rng.random((64, 1), np.float32)
optimiser = adam(1e-3); p = bundle.initial; moments = optimiser.init(p)
def step():
    global p, moments
    loss, g = bundle.gradient(p=p, x=x, y=y)
    p, moments = optimiser.update(p, g, moments)
"""
TORCH = """
import time, sys
import torch
from aggregator.models.plfl import {factory}
torch.set_num_threads(1)
net = {factory}()
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.rand(64, 12, 8); y = torch.rand(64, 1)
def step():
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    optimiser.step()
"""
TAIL = """
step(); first = time.monotonic() - float(sys.argv[1])
for _ in range(500): step()
peak = next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]
print(first, int(peak) / 1024)
"""


def interleaved(ours: Callable[[], object], theirs: Callable[[], object], runs: int) -> list[float]:
    """Time two functions in turn and return the ratio theirs / ours of each pair."""
    ratios, clock = [], time.perf_counter
    for _ in range(runs):
        begin = clock()
        theirs()
        middle = clock()
        ours()
        ratios.append((middle - begin) / (clock() - middle))
    return ratios


def steps(batch: int, factory: str, runs: int) -> dict[str, float]:
    """Compare milliseconds of one training step, both in this process, one thread each."""
    import torch  # noqa: PLC0415 - only this part of the bench needs it

    import aggregator.models.plfl as plfl  # noqa: PLC0415, PLR0402
    from edge_sdk.bundle import Bundle, Trust  # noqa: PLC0415
    from edge_sdk.methods.optim import adam  # noqa: PLC0415

    torch.set_num_threads(1)
    bundle, rng = Bundle.open("load-lstm", trust=Trust()), np.random.default_rng(0)
    x, y = rng.random((batch, 12, 8), np.float32), rng.random((batch, 1), np.float32)
    ours = adam(1e-3)
    kept = {"p": bundle.initial, "m": ours.init(bundle.initial)}
    net = getattr(plfl, factory)()
    theirs = torch.optim.Adam(net.parameters(), lr=1e-3)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def device() -> None:
        _, g = bundle.gradient(p=kept["p"], x=x, y=y)
        kept["p"], kept["m"] = ours.update(kept["p"], g, kept["m"])

    def framework() -> None:
        theirs.zero_grad()
        torch.nn.functional.mse_loss(net(tx), ty).backward()
        theirs.step()

    interleaved(device, framework, 30)
    ratios = interleaved(device, framework, runs)
    return {
        "ours_ms": _milliseconds(device),
        "torch_ms": _milliseconds(framework),
        "ratio": statistics.median(ratios),
    }


def _milliseconds(call: Callable[[], object], runs: int = 200) -> float:
    spent = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(spent)


def process(code: str, runs: int = 5) -> dict[str, float]:
    """Run a program several times; median seconds to its first step, median peak MiB."""
    seen = []
    for _ in range(runs):
        command = [sys.executable, "-c", code + TAIL, str(time.monotonic())]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        )
        seen.append([float(x) for x in done.stdout.split()])
    first, peak = zip(*seen, strict=True)
    return {"first_step_s": statistics.median(first), "peak_mib": statistics.median(peak)}


def installed(names: tuple[str, ...]) -> float:
    """MiB on disk of these distributions, as their own records list them."""
    total = 0
    for name in names:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        total += sum(p.stat().st_size for f in files if (p := Path(str(f.locate()))).is_file())
    return total / 2**20


def fleet(devices: int, rounds: int, shared: str) -> dict[str, Any]:
    """Run a real fleet, one process a device, and return the simulator's account."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("gridfed-sim")),
            "fleet",
            "--processes",
            "--json",
        ]
        command += [
            "--devices",
            str(devices),
            "--rounds",
            str(rounds),
            "--shared",
            shared,
            "--out",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(f"bench_device: the fleet did not finish: {done.stderr.strip()[-400:]}")
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def flower(peers: Path, python: Path, devices: int, rounds: int) -> dict[str, Any]:
    """Run Flower's gRPC client on the same job and return its harness's account."""
    command = [str(python), str(peers / "flower_grpc" / "run.py"), "--clients", str(devices)]
    done = subprocess.run(
        [*command, "--rounds", str(rounds)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise SystemExit(f"bench_device: the peer did not finish: {done.stderr.strip()[-400:]}")
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def show(rows: Mapping[str, tuple[object, object]], heads: tuple[str, str]) -> None:
    """Print a table of two columns."""
    print(f"\n{'':44}{heads[0]:>16}{heads[1]:>16}")
    for name, (ours, theirs) in rows.items():
        cells = (f"{x:.3g}" if isinstance(x, float) else str(x) for x in (ours, theirs))
        print(f"{name:44}" + "".join(f"{x:>16}" for x in cells))


def main() -> int:
    """Measure, print, and keep the numbers if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--factory",
        default="plfl",
        help="function in aggregator.models.plfl that makes the network",
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peers", type=Path, help="folder of peer harnesses")
    parser.add_argument("--flower", type=Path, help="interpreter with flwr and torch")
    parser.add_argument(
        "--no-fleet", action="store_true", help="leave out the processes over a broker"
    )
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    found: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    found["b64"], found["b8"] = (steps(b, options.factory, options.runs) for b in (64, 8))
    found["ours"], found["torch"] = process(OURS), process(TORCH.format(factory=options.factory))
    found["installed_mib"] = {
        "device": installed(DEVICE_PACKAGES + ONNXRUNTIME_NEEDS),
        "torch": installed(TORCH_PACKAGES),
    }
    show(
        {
            "step at batch 64 [ms]": (found["b64"]["ours_ms"], found["b64"]["torch_ms"]),
            "step at batch 8 [ms]": (found["b8"]["ours_ms"], found["b8"]["torch_ms"]),
            "torch / ours, batch 64 and 8": (found["b64"]["ratio"], found["b8"]["ratio"]),
            "exec to first step done [s]": (
                found["ours"]["first_step_s"],
                found["torch"]["first_step_s"],
            ),
            "peak resident after 500 steps [MiB]": (
                found["ours"]["peak_mib"],
                found["torch"]["peak_mib"],
            ),
            "installed [MiB]": (found["installed_mib"]["device"], found["installed_mib"]["torch"]),
        },
        ("gridfed", "torch"),
    )
    if not options.no_fleet:
        found["fleet"] = fleet(options.devices, options.rounds, "all")
        if options.peers and options.flower:
            found["flower"] = flower(options.peers, options.flower, options.devices, options.rounds)
        print(json.dumps({k: found[k] for k in ("fleet", "flower") if k in found}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
