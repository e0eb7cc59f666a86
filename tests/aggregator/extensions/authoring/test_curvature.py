"""The exported product of curvature and vector: by hand, by differences, against torch's own."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring.check import check_hvp
from aggregator.extensions.authoring.export import asked_by
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.second_derivatives import hvp_graph
from aggregator.extensions.authoring.trace import Traced
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.papers.conjugate_gradient import conjugate_gradients
from edge_sdk.protocol.contract.manifest import HVP, SIGNATURES, Loss
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

MSE, HUBER = Loss("mse"), Loss("huber", 0.1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(2, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def exported(module, loss, sample=(3, 2), horizon=2):
    traced = Traced(module, sample, horizon)
    return traced, load_graph(hvp_graph(traced, loss).SerializeToString())


@pytest.mark.parametrize("loss", [MSE, HUBER], ids=["mse", "huber"])
@pytest.mark.parametrize("make", [dense, lambda: Recurrent(nn.GRU), lambda: Recurrent(nn.LSTM)])
def test_agrees_with_torch_at_every_batch_size(make, loss):
    torch.manual_seed(0)
    traced, graph = exported(make(), loss)
    assert (graph.inputs, graph.outputs) == SIGNATURES[HVP]
    check_hvp(traced, loss, graph)


def test_a_line_through_nothing_curves_as_its_inputs_say():
    """The loss (w x - y)² has the second derivative 2 x²: 18 at x = 3, whatever y and w are."""
    _, graph = exported(nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False)), MSE, (1, 1), 1)
    feeds = {"x": np.full((1, 1, 1), 3.0), "y": np.full((1, 1), 7.0), "p": np.array([0.2])}
    (curved,) = graph(v=np.array([0.5]), **feeds)
    assert curved.tolist() == [9.0]


def test_agrees_with_differences_of_the_shipped_gradient():
    bundle = Bundle.open("load-mlp", trust=TrustedKeys())
    rng, window = np.random.default_rng(0), bundle.manifest.window
    x = rng.random((16, window.lookback, len(bundle.manifest.features))).astype(np.float32)
    y = rng.random((16, window.horizon)).astype(np.float32)
    p, v = bundle.initial, rng.normal(size=bundle.initial.shape).astype(np.float32)
    (curved,) = bundle.graphs[HVP](p=p, x=x, y=y, v=v)
    ahead, behind = (
        bundle.graphs["gradient"](p=p + step * v, x=x, y=y)[1].astype(np.float64)
        for step in (1e-5, -1e-5)  # short, or some error crosses the bend of Huber's loss
    )
    along = (ahead - behind) / 2e-5
    assert np.linalg.norm(curved - along) < 0.01 * np.linalg.norm(along)


def test_conjugate_gradients_solve_with_it():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    traced, graph = exported(module, MSE)
    x, y = traced.example(64, seed=1)
    p = traced.initial.detach().numpy()

    def product(v):
        (curved,) = graph(p=p, x=x.numpy(), y=y.numpy(), v=v)
        return curved.astype(np.float64) + 0.1 * v

    right = np.ones(len(p))
    found = conjugate_gradients(product, right, iterations=60, tolerance=1e-5)
    np.testing.assert_allclose(product(found.q), right, atol=1e-3)


def test_another_graph_in_its_place_is_refused():
    torch.manual_seed(0)
    traced, graph = exported(dense(), MSE)

    def doubled(**feeds):
        return (2.0 * graph(**feeds)[0],)

    with pytest.raises(ExportError, match="hvp"):
        check_hvp(traced, MSE, doubled)


def test_the_method_asks_for_it():
    assert HVP in asked_by(["bigfl"])
