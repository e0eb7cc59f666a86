"""A graph loads, runs, repeats to the bit, and says what is wrong with its feeds."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import edge_sdk.runtime
from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.runtime import GraphError, load_graph

FOLDER = shipped_folder()


def feeds(name="load-lstm", batch=5, seed=0):
    p = np.fromfile(FOLDER / name / "initial.f32", "<f4")
    draw = np.random.default_rng(seed)
    x = draw.random((batch, 12, 8)).astype(np.float32)
    return {"p": p, "x": x, "y": draw.random((batch, 1)).astype(np.float32)}


@pytest.mark.parametrize("name", shipped_names())
def test_two_sessions_give_the_same_bits(name):
    """Pitfall 10: results repeat at a fixed number of threads, so a retrained round is the same."""
    path = FOLDER / name / "gradient.onnx"
    first, second = load_graph(path), load_graph(path.read_bytes())
    for batch in (1, 8, 64):
        given = feeds(name, batch)
        for one, other in zip(first(**given), second(**given), strict=True):
            assert one.tobytes() == other.tobytes()


def test_a_session_repeats_itself_after_other_batches():
    graph = load_graph(FOLDER / "load-gru" / "gradient.onnx")
    wanted = graph(**feeds("load-gru", 7))[1].tobytes()
    graph(**feeds("load-gru", 64))
    assert graph(**feeds("load-gru", 7))[1].tobytes() == wanted


def test_results_do_not_change_under_a_later_run():
    graph = load_graph(FOLDER / "load-mlp" / "gradient.onnx")
    _, kept = graph(**feeds("load-mlp", seed=1))
    before = kept.copy()
    graph(**feeds("load-mlp", seed=2))
    assert np.array_equal(kept, before)


def test_names_and_shapes_are_the_manifests():
    graph = load_graph(FOLDER / "load-lstm" / "gradient.onnx")
    assert (graph.inputs, graph.outputs) == (("p", "x", "y"), ("loss", "g"))
    loss, g = graph(**feeds())
    assert loss.shape == ()
    assert g.shape == (42_181,)
    assert loss.dtype == g.dtype == np.float32


def test_float64_feeds_are_taken_as_float32():
    graph = load_graph(FOLDER / "load-mlp" / "gradient.onnx")
    given = feeds("load-mlp")
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    assert np.array_equal(graph(**given)[1], graph(**wide)[1])


def test_wrong_feeds_are_named():
    graph = load_graph(FOLDER / "load-mlp" / "forecast.onnx")
    given = feeds("load-mlp")
    with pytest.raises(GraphError, match="takes p, x; got x"):
        graph(x=given["x"])
    with pytest.raises(GraphError, match="got p, x, y"):
        graph(**given)
    with pytest.raises(GraphError, match="could not run"):
        graph(p=given["p"][:-1], x=given["x"])


def test_bytes_that_are_no_graph_are_refused():
    with pytest.raises(GraphError, match="cannot load"):
        load_graph(b"not a graph")


def test_a_device_without_an_engine_is_told(monkeypatch):
    monkeypatch.setattr(edge_sdk.runtime, "find_spec", lambda _name: None)
    with pytest.raises(GraphError, match="onnxruntime is not installed"):
        load_graph(b"")


def test_importing_the_runtime_loads_no_engine():
    code = "import edge_sdk.runtime, edge_sdk.bundle, sys; print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
