"""Write down where a hundred steps of training end with onnxruntime, on every shipped graph.

Ten where the loss has kinks: see ``test_plain``.

    python tests/edge_sdk/extensions/numpy_engine/record.py  # after bundles were exported again

So that a machine without onnxruntime can tell whether its numpy comes to the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.shared_math.optim import adam, optimiser_step, sgd

FILE = Path(__file__).with_name("recorded.json")
GRAPHS = {"gradient": {}, "robust_gradient": {"rho": 0.5}, "clipped_gradient": {"bound": 0.01}}
STEPS, BATCH, SHOWN = 100, 16, 32


def cases():
    """Every shipped bundle's training graphs."""
    folder = shipped_folder()
    return [(n, g) for n in shipped_names() for g in GRAPHS if (folder / n / f"{g}.onnx").exists()]


def trained(name, graph, engine):
    """Train with an engine; return some of the last parameters, and the last loss."""
    folder = shipped_folder() / name
    manifest = Manifest.parse((folder / "manifest.json").read_bytes())
    p, training = np.fromfile(folder / "initial.f32", "<f4"), manifest.training
    opt = adam(training.rate) if training.optimiser == "adam" else sgd(training.rate)
    run, draw = engine((folder / f"{graph}.onnx").read_bytes()), np.random.default_rng(5)
    window = (BATCH, manifest.window.lookback, len(manifest.features))
    moments, loss = opt.init(p), 0.0
    for _ in range(10 if manifest.loss.name == "pinball" else STEPS):
        x = draw.random(window, np.float32)
        y = draw.random((BATCH, manifest.window.horizon), np.float32)
        loss, g, *_ = run(p=p, x=x, y=y, **GRAPHS[graph])
        p, moments = optimiser_step(opt, p, g, moments)
    at = np.linspace(0, len(p) - 1, SHOWN).astype(int)
    return {"loss": float(loss), "p": [float(value) for value in p[at]]}


if __name__ == "__main__":
    from edge_sdk.runtime.ort_engine import OrtGraph

    found = {f"{n}/{g}": trained(n, g, OrtGraph) for n, g in cases()}
    FILE.write_text(json.dumps(found, indent=0) + "\n")
