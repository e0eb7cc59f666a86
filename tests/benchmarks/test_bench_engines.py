"""What the engine in numpy costs beside onnxruntime, on the graphs that ship, one thread."""

import numpy as np
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys, shipped_folder
from edge_sdk.extensions.numpy_engine.numpy_engine import NumpyGraph
from edge_sdk.runtime.ort_engine import OrtGraph

pytestmark = pytest.mark.bench

NAMES = ("load-mlp", "load-lstm-week", "load-gru", "cells-lstm-24", "cells-branches-24")


def test_a_gradient_and_a_forecast(best, tell):
    rows = []
    for name in NAMES:
        bundle, draw = Bundle.open(name, trust=TrustedKeys()), np.random.default_rng(7)
        window, p = bundle.manifest.window, bundle.initial
        row = [name]
        for graph, batches in (("gradient", (64, 8)), ("forecast", (1,))):
            data = (shipped_folder() / name / f"{graph}.onnx").read_bytes()
            for batch in batches:
                feeds = {"p": p, "x": draw.random((batch, window.lookback, _channels(bundle)))}
                if graph == "gradient":
                    feeds["y"] = draw.random((batch, window.horizon))
                pair = OrtGraph(data), NumpyGraph(data)
                times = [best(lambda run=run, feeds=feeds: run(**feeds)) for run in pair]
                row += [f"{1e3 * times[1]:.2f}", f"{times[1] / times[0]:.1f}"]
        rows.append(row)
    head = ("bundle", "ms, B 64", "of engine", "ms, B 8", "of engine", "forecast", "of engine")
    tell("numpy alone: milliseconds, and how many times onnxruntime's", head, rows)


def _channels(bundle):
    return len(bundle.manifest.features)
