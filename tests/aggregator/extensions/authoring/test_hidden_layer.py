"""A network's last hidden layer as features of a model in closed form."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from aggregator.bundles import open_bundle as read_bundle
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys, shipped_folder
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.protocol.contract.archive import INITIAL, MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError
from edge_sdk.protocol.keys import generate, save_signing_key
from edge_sdk.runtime import ENGINE, load_graph

pytest.importorskip("onnx", reason="graphs are cut with onnx (extra: train)")

from aggregator.commands.main import program
from aggregator.extensions.authoring.hidden_layer import TrainedNet, hidden_graph


def trained(name, seed=0):
    """Return a shipped network with a vector that is not its first."""
    manifest = Manifest.parse((shipped_folder() / name / MANIFEST).read_bytes())
    graph = (shipped_folder() / name / manifest.graphs["forecast"].file).read_bytes()
    initial = np.fromfile(shipped_folder() / name / INITIAL, "<f4")
    noise = np.random.default_rng(seed).normal(0.0, 0.05, initial.shape)
    return TrainedNet(manifest, graph, (initial + noise).astype(np.float32))


@pytest.mark.parametrize("name", ["load-mlp", "load-lstm-week"])
def test_the_last_layer_on_the_hidden_one_is_the_networks_own_forecast(name):
    net = trained(name)
    golden, places = np.asarray(net.manifest.golden.x), range(len(net.manifest.features))
    cut = hidden_graph(net, len(golden), places, golden)
    x = np.random.default_rng(1).uniform(0.0, 1.0, (5, *golden.shape)).astype(np.float32)
    (hidden,) = load_graph(cut.data)(x=x)
    spec, last = net.manifest.spec(), {}
    for layer in spec.layers[-2:]:
        last[layer.name.rpartition(".")[2]] = net.vector[layer.offset : layer.offset + layer.size]
    (yhat,) = load_graph(net.forecast)(p=net.vector, x=x)
    assert hidden.shape == (5, cut.width)
    np.testing.assert_allclose(
        hidden @ last["weight"].reshape(-1, cut.width).T + last["bias"], yhat, atol=1e-5
    )


def test_a_linear_path_past_the_hidden_layer_is_none_of_it():
    net = trained("load-week-1")
    golden, places = np.asarray(net.manifest.golden.x), range(len(net.manifest.features))
    assert hidden_graph(net, len(golden), places, golden).width == 64


def test_a_graph_without_a_hidden_layer_is_refused():
    import onnx  # noqa: PLC0415 - an optional library

    net = trained("load-mlp")
    model = onnx.load_from_string(net.forecast)
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["yhat"]))
    flat = replace(net, forecast=model.SerializeToString())
    golden = np.asarray(net.manifest.golden.x)
    with pytest.raises(ManifestError, match="0 last hidden layers, exactly 1 is needed"):
        hidden_graph(flat, len(golden), range(len(net.manifest.features)), golden)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Export the way an operator does, and return the folder and the root's key."""
    folder, root = tmp_path_factory.mktemp("hidden"), generate()
    save_signing_key(folder / "root.key", root)
    net = trained("load-week-1")
    net.vector.astype("<f4").tofile(folder / "trained.f32")
    key, vector = str(folder / "root.key"), str(folder / "trained.f32")
    words = ["export", "load-analytic", str(folder / "load-hidden"), "--key", key]
    assert program().main([*words, "--hidden", "load-week-1", "--vector", vector]) == 0
    return folder / "load-hidden", root


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
def test_a_device_opens_the_bundle_with_either_engine(exported, engine, monkeypatch):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    monkeypatch.setenv(ENGINE, engine)
    folder, root = exported
    bundle = Bundle.open(folder, trust=TrustedKeys((root.public,)))
    section = bundle.manifest.analytic
    assert [n for n in section.features if n.startswith("hidden:")][-1] == "hidden:63"
    x = np.random.default_rng(2).uniform(0.0, 1.0, (130, bundle.manifest.window.lookback, 16))
    x[:, :, 1:3] = 0.25
    (design,) = bundle.graphs["design"](p=bundle.initial, x=x.astype(np.float32))
    (hidden,) = bundle.graphs["hidden"](x=x.astype(np.float32))
    first = section.features.index("hidden:0")
    np.testing.assert_allclose(design[:, 0, first : first + 64], np.clip(hidden, -6, 6), atol=1e-5)
    assert np.ptp(hidden, axis=0).max() > 0.01
    assert (
        read_bundle(str(folder), folder=folder, trusted=(root.public,)).manifest.min_sdk == "0.1.1"
    )


def test_features_of_a_network_need_its_graph_and_the_graph_needs_features(exported):
    manifest = Manifest.parse((exported[0] / MANIFEST).read_bytes())
    with pytest.raises(ManifestError, match="need the graph 'hidden'"):
        AnalyticModel(manifest)
    with pytest.raises(ValueError, match="required for features hidden:…, and only there"):
        replace(manifest, graphs={})
    plain = Manifest.parse((shipped_folder() / "load-analytic" / MANIFEST).read_bytes())
    with pytest.raises(ValueError, match="and only there"):
        replace(plain, graphs=manifest.graphs)


def test_a_feature_beyond_the_hidden_layer_is_refused_when_the_bundle_is_opened(exported, tmp_path):
    folder, root = exported
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    features = (*manifest.analytic.features[:-1], "hidden:64")
    raw = replace(manifest, analytic=replace(manifest.analytic, features=features)).canonical()
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / MANIFEST).write_bytes(raw)
    (tmp_path / SIGNATURE).write_bytes(seal(root, raw))
    with pytest.raises(BundleError, match="feature 'hidden:64': its arguments do not fit"):
        Bundle.open(tmp_path, trust=TrustedKeys((root.public,)))


def test_a_vector_of_another_network_is_refused(tmp_path, capsys):
    save_signing_key(tmp_path / "root.key", generate())
    np.zeros(7, "<f4").tofile(tmp_path / "short.f32")
    words = ["export", "load-analytic", str(tmp_path / "out"), "--key", str(tmp_path / "root.key")]
    code = program().main(
        [*words, "--hidden", "load-week-1", "--vector", str(tmp_path / "short.f32")]
    )
    assert code != 0
    assert "7 numbers, expected 9514 finite ones of load-week-1" in capsys.readouterr().err


def test_a_device_without_the_configured_engine_refuses_the_bundle_and_names_the_engine(
    exported, monkeypatch
):
    """Numpy computes the layer where onnxruntime is absent, unless the device demands onnxruntime."""
    folder, root = exported
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setenv(ENGINE, "auto")
    assert Bundle.open(folder, trust=TrustedKeys((root.public,))).graphs["hidden"]
    monkeypatch.setenv(ENGINE, "onnxruntime")
    with pytest.raises(BundleError, match=r"graph 'hidden' does not load: .*onnxruntime"):
        Bundle.open(folder, trust=TrustedKeys((root.public,)))
