"""Cost of one split-learning iteration on the server: time and memory, by number of stations.

    python -m tools.bench_graph [--kinds pfgl,graphnet] [--stations 8,64,512] [--batch 32]
                                [--activation 64x32] [--memory 1024] [--threads 1]

One iteration is one ``forward`` and one ``pullback`` over a batch, at the paper's widths. ``local``
is pfgl with local attention. Times are processor times, which other load hardly changes. Every size
runs in a separate process. Memory is the process's peak over its size with torch loaded:
*arguments* are the inputs and outputs of any graph model (four arrays of activations), *beside* is
the rest: parameters, their gradient, the polynomials and the arrays that autograd keeps of one
block of examples, which ``[run.graph] memory_mb`` bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NEIGHBOURS = 8
"""Number of nearest stations that are neighbours, on a square of random sites."""


def measure(
    kind: str, stations: int, batch: int, shape: tuple[int, int], memory: int
) -> dict[str, Any]:
    """Run one iteration and return its seconds, MB, and block."""
    import numpy as np  # noqa: PLC0415 - after the thread counts are set
    import torch  # noqa: PLC0415 - as above

    from aggregator.extensions.papers.graph.factory import GraphSection, bind  # noqa: PLC0415 - as above
    from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel  # noqa: PLC0415 - as above

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    draw = np.random.Generator(np.random.Philox(stations))
    folder = _sites(draw.random((stations, 2)))
    local = kind == "local"
    section = GraphSection(
        "pfgl" if local else kind,  # type: ignore[arg-type]
        attention="local" if local else "full",
        capacity=stations,
        sites=folder,
        nearest=None if kind == "conv2d" else NEIGHBOURS,
        memory_mb=memory,
    )
    before = _peak()
    model = bind(section, shape).model
    assert isinstance(model, TorchGraphModel)
    folder.unlink()
    present = np.ones(stations, np.bool_)
    p = model.init(0)
    h, gz = (draw.standard_normal((batch, stations, *shape), np.float32) for _ in range(2))
    small = h[:1, :, :, :]
    model.forward(p, small, present)  # the polynomials, once for a graph
    clock = time.process_time()
    z = model.forward(p, h, present)
    forward = time.process_time() - clock
    gh, _ = model.pullback(p, h, present, gz)
    whole = time.process_time() - clock
    given = 4 * h.nbytes / 1e6
    return {
        "kind": kind,
        "stations": stations,
        "batch": batch,
        "parameters": model.spec.size,
        "block": min(model.block, batch),
        "forward": forward,
        "iteration": whole,
        "arguments": given,
        "beside": max(0.0, _peak() - before - given),
        "finite": bool(np.isfinite(z).all() and np.isfinite(gh).all()),
    }


def _sites(at: Any) -> Path:  # noqa: ANN401 - numpy's, loaded later
    """Write random sites within some 100 km."""
    path = Path(f"/tmp/sites-{os.getpid()}.toml")  # noqa: S108 - removed at once
    rows = (f"s{i} = {{ latitude = {a}, longitude = {b} }}" for i, (a, b) in enumerate(at))
    path.write_text("[sites]\n" + "\n".join(rows) + "\n")
    return path


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = "| stations | parameters | iteration | of it forward | an example | arguments | beside |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        each = row["iteration"] / row["batch"]
        lines.append(
            f"| {row['kind']}, {row['stations']:,} | {row['parameters']:,} "
            f"| {row['iteration']:.3g} s | {row['forward']:.3g} s | {1e3 * each:.3g} ms "
            f"| {row['arguments']:.0f} MB | {row['beside']:.0f} MB |"
        )
    return "\n".join(lines)


def _child(kind: str, stations: str, said: argparse.Namespace) -> dict[str, Any]:
    environ = os.environ | dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(said.threads)
    )
    words = ["--kinds", kind, "--stations", stations, "--batch", str(said.batch), "--child"]
    words += ["--activation", said.activation, "--memory", str(said.memory)]
    command = [sys.executable, "-m", "tools.bench_graph", *words]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", default="pfgl")
    parser.add_argument("--stations", default="8,64,512")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--activation", default="64x32", help="F x L")
    parser.add_argument("--memory", type=int, default=1024, help="MB, as [run.graph] has it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        features, steps = (int(part) for part in options.activation.split("x"))
        shape = (features, steps)
        found = measure(options.kinds, int(options.stations), options.batch, shape, options.memory)
        print(json.dumps(found))
        return
    rows = [
        _child(kind, stations, options)
        for kind in options.kinds.split(",")
        for stations in options.stations.split(",")
    ]
    print(table(rows))


if __name__ == "__main__":
    main()
