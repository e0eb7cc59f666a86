"""Numpy alone gives what onnxruntime gives, on every graph that ships and after a hundred steps."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.bundle import Bundle, TrustedKeys, shipped_folder, shipped_names
from edge_sdk.extensions.numpy_engine import numpy_engine
from edge_sdk.extensions.numpy_engine.numpy_engine import NumpyGraph
from edge_sdk.extensions.numpy_engine.operators import OPERATORS, build
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.runtime import ENGINE, GraphError, onnx_reader
from edge_sdk.runtime.shape_inference import infer_cost
from edge_sdk.shared_math.optim import adam, optimiser_step, sgd

pytest.importorskip("onnxruntime", reason="what numpy is compared with")
from edge_sdk.runtime.ort_engine import OrtGraph

FOLDER = shipped_folder()
ROOT = Path(__file__).resolve().parents[4]
CLOSE = 1e-5
STEPS = 100
AT_KINKS = 5
MORE = {"gradient": {}, "robust_gradient": {"rho": 0.5}, "clipped_gradient": {"bound": 0.01}}
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.onnx"))
TRAINED = [
    (name, graph)
    for name in shipped_names()
    for graph in MORE
    if (FOLDER / name / f"{graph}.onnx").exists()
]


def facts(name):
    manifest = Manifest.parse((FOLDER / name / "manifest.json").read_bytes())
    p = np.fromfile(FOLDER / name / "initial.f32", "<f4")
    window = (manifest.window.lookback, len(manifest.features))
    return manifest, p, window


def both(path):
    data = path.read_bytes()
    return OrtGraph(data), NumpyGraph(data)


@pytest.mark.parametrize(
    "name", [name for name in shipped_names() if (FOLDER / name / "forecast.onnx").exists()]
)
def test_numpy_forecasts_equal_those_of_onnxruntime(name):
    manifest, p, window = facts(name)
    engine, numpy = both(FOLDER / name / "forecast.onnx")
    assert (numpy.inputs, numpy.outputs) == (engine.inputs, engine.outputs)
    draw = np.random.default_rng(3)
    p = p + 0.2 * draw.standard_normal(len(p)).astype(np.float32)  # far from the first vector
    for batch in (1, 2, 37):
        x = draw.standard_normal((batch, *window)).astype(np.float32)
        wanted, got = engine(p=p, x=x), numpy(p=p, x=x)
        for one, other in zip(wanted, got, strict=True):
            assert one.shape == other.shape
            assert np.abs(one - other).max() <= CLOSE * max(1.0, np.abs(one).max())
    assert manifest.window.horizon in wanted[0].shape


@pytest.mark.parametrize(("name", "graph"), TRAINED)
def test_a_hundred_training_steps_equal_those_of_onnxruntime(name, graph):
    """Each trains on its own, so that a rounding which grows would show.

    A loss with kinks is compared step by step from the engine's own state: an error that two
    roundings put on two sides of a kink has two slopes, and from there two paths, neither wrong. In
    a few steps a window lies that close to a kink; which, depends on the processor's kernels.
    """
    manifest, p, window = facts(name)
    pair, draw = both(FOLDER / name / f"{graph}.onnx"), np.random.default_rng(5)
    training, has_kinks = manifest.training, manifest.loss.name == "pinball"
    opt = adam(training.rate) if training.optimiser == "adam" else sgd(training.rate)
    at, moments, losses, apart = [p, p], [opt.init(p)] * 2, np.zeros((STEPS, 2)), list[float]()
    for step in range(STEPS):
        x = draw.random((16, *window), np.float32)
        y = draw.random((16, manifest.window.horizon), np.float32)
        for i, run in enumerate(pair):
            losses[step, i], g, *_ = run(p=at[i], x=x, y=y, **MORE[graph])
            at[i], moments[i] = optimiser_step(opt, at[i], g, moments[i])
        apart.append(float(np.abs(at[0] - at[1]).max()))
        if has_kinks:
            at, moments = [at[0], at[0]], [moments[0], moments[0]]
    assert np.abs(at[0] - p).max() > 0.01, "nothing was learned"
    assert sorted(apart)[-1 - (AT_KINKS if has_kinks else 0)] <= CLOSE
    assert np.abs(losses[:, 0] - losses[:, 1]).max() <= CLOSE


@pytest.mark.parametrize("name", ["load-lstm-week", "cells-gru-24"])
def test_a_bundle_opens_and_forecasts_its_golden_sample_without_an_engine(name, monkeypatch):
    monkeypatch.setenv(ENGINE, "numpy")
    bundle = Bundle.open(name, trust=TrustedKeys())
    assert isinstance(bundle.forecast, NumpyGraph)
    assert isinstance(bundle.gradient, NumpyGraph)


def test_a_device_without_an_engine_imports_none():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from edge_sdk.extensions.numpy_engine.numpy_engine import NumpyGraph\n"
        f"NumpyGraph(open({str(FOLDER / 'load-gru' / 'gradient.onnx')!r}, 'rb').read())\n"
        "print(sorted({'onnx', 'google', 'torch', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_operator_is_supported():
    """Read from its source, so that a new rule there is missed here at once."""
    sources = "".join(
        p.read_text() for p in sorted((ROOT / "aggregator/extensions/authoring").glob("*.py"))
    )
    written = set(re.findall(r"""\.ops?\(\s*"([A-Z][A-Za-z]+)\"""", sources))
    written |= set(re.findall(r'default: \(?"([A-Z][A-Za-z]+)"', sources))
    written |= set(re.findall(r'"\w{2}": "([A-Z][A-Za-z]+)"', sources))
    written |= set(re.findall(r'_native\(call, "([A-Z]+)"', sources))
    assert {"Gemm", "Sigmoid", "Reciprocal", "Greater", "LSTM", "ReduceMax", "Erf"} <= written
    assert written - OPERATORS.keys() == set()


def test_runs_repeat_to_the_bit_and_results_share_no_memory():
    _, p, window = facts("load-gru")
    graph = NumpyGraph((FOLDER / "load-gru" / "gradient.onnx").read_bytes())
    draw = np.random.default_rng(1)
    feeds = {"p": p, "x": draw.random((9, *window)), "y": draw.random((9, 1))}
    first = graph(**feeds)
    kept = [part.copy() for part in first]
    graph(**{**feeds, "x": draw.random((64, *window)), "y": draw.random((64, 1))})
    again = graph(**feeds)
    for one, before, two in zip(first, kept, again, strict=True):
        assert one.tobytes() == before.tobytes() == two.tobytes()
        np.add(one, 1, out=one)  # writable, and nobody else's
    assert graph(**feeds)[1].tobytes() == kept[1].tobytes()


def test_arrays_are_freed_after_their_last_use():
    """All intermediates of this graph at batch 64 are 24 MB; those alive at one time are fewer."""
    _, p, window = facts("load-lstm")
    graph = NumpyGraph((FOLDER / "load-lstm" / "gradient.onnx").read_bytes())
    feeds = {"p": p, "x": np.zeros((64, *window)), "y": np.zeros((64, 1))}
    graph(**feeds)
    tracemalloc.start()
    graph(**feeds)
    alive = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    kept = NumpyGraph.__new__(NumpyGraph)
    kept.__dict__.update(graph.__dict__)
    kept._steps = tuple(
        numpy_engine._Step(s.run, s.reads, s.writes, (), s.kind) for s in graph._steps
    )
    kept(**feeds)
    everything = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert alive < everything / 2


def test_wrong_feeds_are_named():
    _, p, window = facts("load-mlp")
    graph = NumpyGraph((FOLDER / "load-mlp" / "forecast.onnx").read_bytes())
    x = np.zeros((2, *window), np.float32)
    with pytest.raises(GraphError, match="takes p, x; got x"):
        graph(x=x)
    with pytest.raises(GraphError, match=r"could not run: p is \[\d+\]"):
        graph(p=p[:-1], x=x)
    with pytest.raises(GraphError, match="could not run: x is"):
        graph(p=p, x=x[0])


@pytest.mark.parametrize("file", ["load-mlp/forecast.onnx", "cells-gru-1/forecast.onnx"])
@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_graph_is_refused_or_runs(file, data):
    raw = bytearray((FOLDER / file).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    _, p, window = facts(file.partition("/")[0])
    try:
        graph = NumpyGraph(bytes(raw[:cut] if cut % 2 else raw))
        feeds = {"p": p, "x": np.zeros((2, *window), np.float32)}
        graph(**{name: feeds[name] for name in graph.inputs if name in feeds})
    except GraphError:
        pass


LONG = np.zeros((20_000, 1), np.float32)
HUGE = np.array([20_000, 20_000], np.int64)


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"),
    [
        ("Gemm", {"transB": 1}, (LONG, LONG)),
        ("MatMul", {}, (LONG, LONG.T)),
        ("Add", {}, (LONG, LONG.T)),
        ("Where", {}, (LONG > 0, LONG, LONG.T)),
        ("Expand", {}, (LONG, HUGE)),
        ("Pad", {}, (LONG, np.array([0, 0, 0, 20_000], np.int64))),
        ("GRU", {"hidden_size": 5_000}, (LONG[None], LONG[None], LONG[None])),
    ],
)
def test_an_excessive_array_is_refused_before_allocation(kind, attributes, inputs):
    """A damaged shape once asked for 21 GB, and the kernel killed whoever ran it."""
    names = tuple("abcd"[: len(inputs)])
    run = build(onnx_reader.OnnxNode(kind, names, ("out",), attributes), (None,) * len(inputs))
    with pytest.raises(GraphError, match=r"an array of \d+ numbers, at most 134217728 are made"):
        run(*inputs)


def test_an_invalid_axis_is_refused_when_the_graph_is_built():
    """A damaged axis of a slice once cost 14 GB before the first run."""
    ends = tuple(np.array([number], np.int64) for number in (0, 1, 1_795_162_112, 1))
    node = onnx_reader.OnnxNode("Slice", ("x", "starts", "ends", "axes", "steps"), ("out",), {})
    with pytest.raises(GraphError, match="axis 1795162112, arrays have at most 64 axes"):
        build(node, (None, *ends))


def test_a_slice_whose_inputs_have_different_lengths_is_refused_when_the_graph_is_loaded():
    raw = bytearray((FOLDER / "cells-gru-1" / "forecast.onnx").read_bytes())
    raw[309] = 56  # one start, two steps
    with pytest.raises(GraphError, match="numpy cannot load the graph: zip"):
        NumpyGraph(bytes(raw))


@pytest.mark.parametrize("data", [b"", b"not a graph", b"\x08", bytes(50), b"\xff" * 50])
def test_invalid_graph_bytes_are_refused(data):
    with pytest.raises(GraphError, match="numpy cannot load the graph"):
        NumpyGraph(data)


def test_shipped_graphs_use_a_supported_operator_set():
    assert FILES
    for file in FILES:
        model = onnx_reader.read_onnx((FOLDER / file).read_bytes())
        assert {node.kind for node in model.nodes} <= OPERATORS.keys(), file


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("load-*/*.onnx")), ids=str)
def test_inferred_shapes_equal_those_of_numpy(path):
    """Counted while the plan runs: inference must not promise less than a run makes."""
    data, made = path.read_bytes(), []
    model_, plain = onnx_reader.read_onnx(data), NumpyGraph(data)
    plain._steps = tuple(
        type(step)(counted(step.run, made), step.reads, step.writes, step.frees, step.kind)
        for step in plain._steps
    )
    batch = 7
    feeds = {
        feed_.name: np.zeros([batch if n is None else n for n in feed_.sizes], np.float32)
        for feed_ in model_.inputs
    }
    plain(**feeds)
    assert sum(made) == infer_cost(model_, batch).total


def counted(run, made):
    def counting(*inputs):
        results = run(*inputs)
        several = results if isinstance(results, tuple) else (results,)
        made.extend(np.size(one) for one in several)
        return results

    return counting
