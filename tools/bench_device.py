"""Cost of training on a device, beside torch (and Flower's client) on the same task, in one run.

    python tools/bench_device.py                                  # needs the extras train and sim
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

ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ.update(ONE_THREAD)
sys.path.insert(0, str(ROOT))

import numpy as np

IN_A_ROW = 8
DEVICE = ("gridfed", "numpy", "onnxruntime", "paho-mqtt", "msgpack", "cryptography")
TORCH = ("torch", "numpy")
_TELL = """
def tell(**said):
    status = open("/proc/self/status").read().split()
    mib = lambda name: int(status[status.index(name) + 1]) / 1024
    print(json.dumps(said | {"peak": mib("VmHWM:"), "private": mib("RssAnon:")}), flush=True)
"""

# The real agent: its own log says when the link stood and when a round, here of one step, was done.
AGENT = f"""
import json, logging, os, signal, sys, time
{_TELL}
class Watch(logging.Handler):
    said, rounds = {{}}, 0
    def emit(self, record):
        now, line = time.monotonic() - float(sys.argv[1]), record.getMessage()
        if line.startswith("link up"):
            self.said.setdefault("connected", now)
        if line.startswith("round trained"):
            self.said.setdefault("first", now)
            self.said.setdefault("cpu", time.process_time())
            self.rounds += 1
            if self.rounds == int(sys.argv[2]):
                tell(**self.said)
                os.kill(os.getpid(), signal.SIGTERM)
watch = Watch()
for name in ("edge_sdk.session.connection", "edge_sdk.training.training_transaction"):
    logging.getLogger(name).addHandler(watch)
from edge_sdk.commands.main import main
main(["run", sys.argv[3]])
"""
FRAMEWORK = f"""
import json, sys, time
import torch
from aggregator.extensions.authoring.catalogue import MODELS
{_TELL}
torch.set_num_threads(1)
make, recipe = MODELS[sys.argv[3]]
net = make()
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
loss = torch.nn.HuberLoss(delta=0.1) if recipe.loss.name == "huber" else torch.nn.MSELoss()
x = torch.rand(64, recipe.window.lookback, len(recipe.features)); y = torch.rand(64, 1)
def step():
    optimiser.zero_grad()
    loss(net(x), y).backward()
    optimiser.step()
step(); first, cpu = time.monotonic() - float(sys.argv[1]), time.process_time()
for _ in range(int(sys.argv[2])): step()
tell(first=first, cpu=cpu)
"""

# No line of ours: what the engine costs by itself, and what the other libraries add to it.
FLOOR = f"""
import json, sys
import numpy as np, onnxruntime as ort
{_TELL}
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.enable_mem_pattern, options.log_severity_level = False, 3
folder = sys.argv[2]
graph = ort.InferenceSession(folder + "/gradient.onnx", options, ["CPUExecutionProvider"])
p, size = np.fromfile(folder + "/initial.f32", "<f4"), graph.get_inputs()[1].shape
feeds = dict(p=p, x=np.zeros((64, *size[1:]), "f"), y=np.zeros((64, 1), "f"))
for _ in range(8): graph.run(None, feeds)
if sys.argv[3] == "all":
    import numpy.random, sqlite3, msgpack, paho.mqtt.client
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    key = Ed25519PrivateKey.generate()
    key.public_key().verify(key.sign(b"said"), b"said")
    sqlite3.connect(":memory:")
tell()
"""


def interleaved(ours: Callable[[], object], theirs: Callable[[], object], runs: int) -> list[float]:
    """Time two functions alternately, eight calls each, as in the steps of a round.

    Returns:
        Median seconds of a call of the first, of the second, and the median ratio of a pair.
    """
    spent, clock = [], time.perf_counter
    for _ in range(runs):
        begin = clock()
        for _ in range(IN_A_ROW):
            theirs()
        middle = clock()
        for _ in range(IN_A_ROW):
            ours()
        spent.append(((clock() - middle) / IN_A_ROW, (middle - begin) / IN_A_ROW))
    ratios = [other / own for own, other in spent]
    columns = (*zip(*spent, strict=True), ratios)
    return [statistics.median(column) for column in columns]


def steps(batch: int, name: str, runs: int) -> dict[str, float]:
    """Compare one training step, both in this process, one thread each."""
    import torch  # noqa: PLC0415 - only this part of the bench needs it

    from aggregator.extensions.authoring.catalogue import MODELS  # noqa: PLC0415 - as above
    from edge_sdk.bundle import Bundle, TrustedKeys  # noqa: PLC0415 - as above
    from edge_sdk.shared_math.optim import adam, optimiser_step  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    make, recipe = MODELS[name]
    bundle, rng = Bundle.open(name, trust=TrustedKeys()), np.random.default_rng(0)
    x = rng.random((batch, recipe.window.lookback, len(recipe.features)), np.float32)
    y = rng.random((batch, recipe.window.horizon), np.float32)
    ours = adam(1e-3)
    p, moments = bundle.initial, ours.init(bundle.initial)
    net, tx, ty = make(), torch.from_numpy(x), torch.from_numpy(y)
    theirs = torch.optim.Adam(net.parameters(), lr=1e-3)
    delta = recipe.loss.delta
    loss = torch.nn.MSELoss() if delta is None else torch.nn.HuberLoss(delta=delta)

    def device() -> None:
        nonlocal p, moments
        _, g = bundle.gradient(p=p, x=x, y=y)
        p, moments = optimiser_step(ours, p, g, moments)

    def framework() -> None:
        theirs.zero_grad()
        loss(net(tx), ty).backward()
        theirs.step()

    interleaved(device, framework, 5)
    own, other, ratio = interleaved(device, framework, runs)
    return {"ours_ms": 1e3 * own, "torch_ms": 1e3 * other, "ratio": ratio}


def process(python: str, code: str, *arguments: str) -> dict[str, float]:
    """Run one program that times itself from its exec, and return its result."""
    command = [python, "-c", code, str(time.monotonic()), *arguments]
    environ = os.environ | ({"PYTHONPATH": str(ROOT)} if python == sys.executable else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)  # noqa: PLW1510 - judged below
    if done.returncode or not done.stdout:
        raise SystemExit(f"bench_device: a program failed: {done.stderr.strip()[-600:]}")
    document: dict[str, float] = json.loads(done.stdout.splitlines()[0])
    return document


def agents(python: str, name: str, runs: int, rounds: int) -> list[dict[str, float]]:
    """Start real agents one after the other, each fresh, against a real broker and aggregator.

    A round is one step, so the first round's end is the first step, saved, signed and sent.
    """
    from firmware_sim.fleet.federation import Federation, free_port, start_broker  # noqa: PLC0415
    from firmware_sim.fleet.processes import ProcessGroup  # noqa: PLC0415
    from firmware_sim.fleet.run_files import prepare  # noqa: PLC0415
    from firmware_sim.samples import sample_set  # noqa: PLC0415
    from firmware_sim.scenario import RunSettings, Scenario  # noqa: PLC0415

    learning = RunSettings(rounds=100_000, shared=("",), settings={"steps": 1}, quorum=1)
    chosen = Scenario("one agent", devices=runs, bundle=name, run=learning)
    with tempfile.TemporaryDirectory() as scratch, ProcessGroup(Path(scratch) / "logs") as family:
        out = Path(scratch)
        url, page = start_broker(family, out / "broker"), f"127.0.0.1:{free_port()}"
        prepared = prepare(
            out / "fleet", "bench", chosen, sample_set("homes"), broker=url, page=page
        )
        Federation(prepared, learning.rounds, family).start_aggregator()
        return [
            process(python, AGENT, str(rounds), str(device.config)) for device in prepared.devices
        ]


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def installed(names: tuple[str, ...]) -> float:
    """Return the MiB on disk of these distributions and their dependencies, by their own records."""
    total, waiting, seen = 0, list(names), set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # needed on another platform only
        total += sum(p.stat().st_size for f in found.files or [] if (p := _located(f)).is_file())
        needs = [need for need in found.requires or [] if "extra ==" not in need]
        waiting += [_name(need) for need in needs]
    return total / 2**20


def _located(file: metadata.PackagePath) -> Path:
    return Path(str(file.locate()))


def _name(need: str) -> str:
    """Return the name at the start of a requirement.

    >>> _name("numpy>=1.24; python_version < '3.14'"), _name("ruamel.yaml")
    ('numpy', 'ruamel.yaml')
    """
    end = next((i for i, c in enumerate(need) if not (c.isalnum() or c in "-_.")), len(need))
    return need[:end]


def told_in_json(command: list[str], what: str) -> dict[str, Any]:
    """Run a program that prints JSON, and return it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(f"bench_device: {what} did not finish: {done.stderr.strip()[-400:]}")
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def fleet(name: str, devices: int, rounds: int) -> dict[str, float]:
    """Run a real fleet, one process a device, all layers shared, four steps a round."""
    program = [sys.executable, "-m", "firmware_sim", "fleet", "--processes", "--json"]
    options = ["--bundle", name, "--devices", str(devices), "--rounds", str(rounds)]
    result = told_in_json([*program, *options, "--shared", "all", "--steps", "4"], "the fleet")
    each, weighed = result["per_device_and_round"], result["device_process"]
    return {
        "peak": weighed["peak_mib"],
        "cpu_ms": 1e3 * weighed["cpu_s"] / rounds,
        "up": each["bytes_up"],
        "down": each["bytes_down"],
        "wall_ms": 1e3 * result["seconds"] / rounds,
    }


def flower(peers: Path, python: Path, devices: int, rounds: int) -> dict[str, float]:
    """Run Flower's gRPC client on the same job: 42,003 parameters, batch 64, four steps."""
    script = str(peers / "flower_grpc" / "run.py")
    options = ["--clients", str(devices), "--rounds", str(rounds), "--steps", "4"]
    result = told_in_json([str(python), script, *options], "the peer")
    return {
        "peak": result["client"]["median_max_rss_mib"],
        "cpu_ms": 1e3 * result["client"]["median_cpu_s"] / rounds,
        "up": result["bytes_per_client_round"]["up"],
        "down": result["bytes_per_client_round"]["down"],
        "wall_ms": result["round_wall_ms"]["median"],
    }


def show(heads: tuple[str, str], rows: Mapping[str, tuple[float | None, float | None]]) -> None:
    """Print a table of two columns and their ratio."""
    print(f"\n{'':46}{heads[0]:>12}{heads[1]:>12}{'ratio':>8}")
    for name, (ours, theirs) in rows.items():
        cells = "".join(f"{'-' if x is None else format(x, ',.4g'):>12}" for x in (ours, theirs))
        ratio = f"{theirs / ours:>8.2f}" if ours and theirs else ""
        print(f"{name:46}{cells}{ratio}")


def show_alone(found: Mapping[str, Any]) -> None:
    """Print the device beside torch."""
    agent, torch = found["agent"], found["torch"]
    rows = {
        f"step at batch {b} [ms]": (found[f"b{b}"]["ours_ms"], found[f"b{b}"]["torch_ms"])
        for b in (64, 8)
    }
    floor, libraries = found["floor"]["peak"], found["libraries"]["peak"]
    rows["exec to connected [s]"] = (agent["connected"], None)
    rows["exec to first step done [s]"] = (agent["first"], torch["first"])
    rows["processor to first step done [s]"] = (agent["cpu"], torch["cpu"])
    rows["peak resident, training [MiB]"] = (agent["peak"], torch["peak"])
    rows["of it private, at the end [MiB]"] = (agent["private"], torch["private"])
    rows["peak of numpy and onnxruntime alone [MiB]"] = (floor, None)
    rows["and with the other libraries imported [MiB]"] = (libraries, None)
    rows["installed, with all it needs [MiB]"] = found["installed"]
    show(("gridfed", "torch"), rows)
    pairs = ", ".join(f"batch {b}: {found[f'b{b}']['ratio']:.2f}" for b in (64, 8))
    print(f"median of the pairs' ratios of a step: {pairs}")


def show_fleets(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """Print a fleet beside Flower's."""
    rows = {
        "peak resident of a client [MiB]": "peak",
        "processor of a client, a round, with start [ms]": "cpu_ms",
        "up, a client and round [bytes]": "up",
        "down, a client and round [bytes]": "down",
        "wall of a round [ms]": "wall_ms",
    }
    show(("gridfed", "Flower"), {row: (ours[k], theirs.get(k)) for row, k in rows.items()})


def options() -> argparse.Namespace:
    """Read the command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("--bundle", default="load-lstm-week", help="a shipped bundle (load-lstm-week)")
    add("--device", default=sys.executable, help="interpreter of the agent (this one)")
    add("--runs", type=int, default=100, help="pairs of eight steps each (100)")
    add("--starts", type=int, default=5, help="processes started, each (5)")
    add("--devices", type=int, default=10, help="of the fleets (10)")
    add("--rounds", type=int, default=20, help="of the fleets (20)")
    add("--repeats", type=int, default=2, help="of the fleets, in turn (2)")
    add("--peers", type=Path, help="folder of peer harnesses")
    add("--flower", type=Path, help="interpreter with flwr and torch")
    add("--no-fleet", action="store_true", help="leave out the fleets")
    add("--json", type=Path, help="write the numbers there")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and keep the numbers if asked to."""
    args = options()
    found: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    found["agent"] = medians(agents(args.device, args.bundle, args.starts, 20))
    found["torch"] = medians(
        [process(sys.executable, FRAMEWORK, "20", args.bundle) for _ in range(args.starts)]
    )
    folder = str(ROOT / "edge_sdk" / "bundles" / args.bundle)
    for what, which in (("floor", "engine"), ("libraries", "all")):
        found[what] = process(args.device, FLOOR, folder, which)
    found["installed"] = (installed(DEVICE), installed(TORCH))
    found |= {f"b{batch}": steps(batch, args.bundle, args.runs) for batch in (64, 8)}
    show_alone(found)
    if not args.no_fleet:
        found["fleet"], found["flower"] = [], []
        for _ in range(args.repeats):
            found["fleet"].append(fleet(args.bundle, args.devices, args.rounds))
            if args.peers and args.flower:
                peer = flower(args.peers, args.flower, args.devices, args.rounds)
                found["flower"].append(peer)
            show_fleets(found["fleet"][-1], found["flower"][-1] if found["flower"] else {})
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
