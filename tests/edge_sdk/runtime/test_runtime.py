"""A graph loads, runs, repeats to the bit, and says what is wrong with its feeds."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import edge_sdk.runtime
from edge_sdk.bundle import shipped_folder, shipped_names
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.runtime import ENGINE, GraphError, engine_name, load_graph

FOLDER = shipped_folder()


def feeds(name="load-lstm", batch=5, seed=0):
    p = np.fromfile(FOLDER / name / "initial.f32", "<f4")
    manifest = Manifest.parse((FOLDER / name / "manifest.json").read_bytes())
    draw, window = np.random.default_rng(seed), manifest.window
    x = draw.random((batch, window.lookback, len(manifest.features))).astype(np.float32)
    return {"p": p, "x": x, "y": draw.random((batch, window.horizon)).astype(np.float32)}


GRADIENTS = {"gradient": {}, "robust_gradient": {"rho": 0.5}, "clipped_gradient": {"bound": 0.01}}
SHIPPED = [
    (n, g) for n in shipped_names() for g in GRADIENTS if (FOLDER / n / f"{g}.onnx").exists()
]


@pytest.mark.parametrize(("name", "graph"), SHIPPED)
def test_two_sessions_give_the_same_bits(name, graph):
    """Pitfall 10: results repeat at a fixed number of threads, so a retrained round is the same."""
    path = FOLDER / name / f"{graph}.onnx"
    first, second = load_graph(path), load_graph(path.read_bytes())
    for batch in (1, 8, 64):
        given = feeds(name, batch) | GRADIENTS[graph]
        for one, other in zip(first(**given), second(**given), strict=True):
            assert one.tobytes() == other.tobytes()


def shipped(name, *graphs):
    return [load_graph(FOLDER / name / f"{graph}.onnx") for graph in graphs]


@pytest.mark.parametrize("name", [n for n, graph in SHIPPED if graph == "robust_gradient"])
def test_the_flattening_gradient_leads_to_less_loss_and_slope(name):
    plain, robust = shipped(name, "gradient", "robust_gradient")
    given = feeds(name, 32)
    loss, g, slope = robust(**given, rho=0.0)
    wanted_loss, wanted = plain(**given)
    assert loss == pytest.approx(float(wanted_loss), rel=1e-5)
    assert np.abs(g - wanted).max() <= 1e-6 * max(1.0, np.abs(wanted).max())
    _, g, _ = robust(**given, rho=1.0)
    step = given["p"] - np.float32(1e-3) * g / np.linalg.norm(g)
    less, _, flatter = robust(**(given | {"p": step}), rho=1.0)
    assert less + flatter < loss + slope


@pytest.mark.parametrize("name", [n for n, graph in SHIPPED if graph == "clipped_gradient"])
def test_the_clipped_gradient_is_a_sum_of_short_ones(name):
    plain, clipped = shipped(name, "gradient", "clipped_gradient")
    given = feeds(name, 16)
    each = [plain(p=given["p"], x=given["x"][[i]], y=given["y"][[i]])[1] for i in range(16)]
    lengths = np.linalg.norm(each, axis=1)
    bound = float(np.median(lengths))
    wanted = (np.minimum(1.0, bound / lengths)[:, None] * each).sum(0)
    loss, g = clipped(**given, bound=bound)
    assert loss == pytest.approx(float(plain(**given)[0]), rel=1e-5)
    assert np.abs(g - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_session_repeats_its_result_after_other_batches():
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


def test_names_and_shapes_agree_with_the_manifest():
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


def test_invalid_graph_bytes_are_refused():
    with pytest.raises(GraphError, match="cannot load"):
        load_graph(b"not a graph")


@pytest.mark.extension
def test_numpy_is_used_without_onnxruntime(monkeypatch):
    monkeypatch.delenv(ENGINE, raising=False)
    if find_spec("onnxruntime"):
        assert engine_name() == "onnxruntime"
    monkeypatch.setattr(
        edge_sdk.runtime, "find_spec", lambda name: name if name == "numpy" else None
    )
    assert engine_name() == "numpy"
    graph = load_graph(FOLDER / "load-mlp" / "gradient.onnx")
    assert type(graph).__name__ == "NumpyGraph"
    with pytest.raises(GraphError, match="not installed on this device"):
        engine_name({ENGINE: "onnxruntime"})


@pytest.mark.extension
def test_the_engine_can_be_configured(monkeypatch):
    monkeypatch.setenv(ENGINE, "numpy")
    assert type(load_graph(FOLDER / "load-mlp" / "forecast.onnx")).__name__ == "NumpyGraph"
    monkeypatch.setenv(ENGINE, "tensorrt")
    with pytest.raises(GraphError, match="known: auto, onnxruntime, numpy"):
        load_graph(FOLDER / "load-mlp" / "forecast.onnx")


def test_importing_the_runtime_loads_no_engine():
    code = "import edge_sdk.runtime, edge_sdk.bundle, sys; print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
