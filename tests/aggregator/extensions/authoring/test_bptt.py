"""The recurrent layers against a worked example, and against torch through both states."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring import bptt, recurrent_operators
from aggregator.extensions.authoring.trace import Traced
from edge_sdk.protocol.contract.manifest import Loss
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

WORKED = [0.21531969, 0.01140896], [0.34674944, 0.02669827]


class OneUnit(nn.Module):
    """All weights one half, one bias a tenth; the two outputs are the forecast."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 1, batch_first=True)
        with torch.no_grad():
            self.lstm.weight_ih_l0.fill_(0.5)
            self.lstm.weight_hh_l0.fill_(0.5)
            self.lstm.bias_ih_l0.fill_(0.1)
            self.lstm.bias_hh_l0.fill_(0.0)

    def forward(self, x):
        return self.lstm(x)[0].flatten(1)


@pytest.mark.parametrize("layer", [bptt.lstm_layer, recurrent_operators.lstm_layer])
def test_the_worked_example(layer):
    """One unit, inputs 1 and -1: computed by hand, independent of any library."""
    x, zero = torch.tensor([[[1.0]], [[-1.0]]]), torch.zeros(1, 1)
    weights = torch.full((4, 1), 0.5)
    biases = torch.full((4,), 0.1), torch.zeros(4)
    out, h, c = layer(x, zero, zero, weights, weights, *biases)
    assert np.allclose(out.flatten().numpy(), WORKED[0], atol=1e-7)
    assert h.item() == pytest.approx(WORKED[0][1], abs=1e-7)
    assert c.item() == pytest.approx(WORKED[1][1], abs=1e-7)


def test_the_worked_example_in_the_exported_forecast():
    traced = Traced(OneUnit(), (2, 1), 2)
    graph = load_graph(traced.forecast_graph().SerializeToString())
    (yhat,) = graph(p=traced.initial.numpy(), x=np.array([[[1.0], [-1.0]]], np.float32))
    assert np.allclose(yhat, [WORKED[0]], atol=1e-7)


def test_the_exported_gradient_is_the_slope_of_the_loss():
    """Central differences need no second implementation of anything."""
    traced = Traced(OneUnit(), (2, 1), 2)
    graph = load_graph(traced.gradient_graph(Loss("mse")).SerializeToString())
    p = traced.initial.numpy()
    x, y = np.array([[[1.0], [-1.0]]], np.float32), np.array([[1.0, -1.0]], np.float32)
    _, g = graph(p=p, x=x, y=y)
    for k in range(p.size):
        step = np.zeros_like(p)
        step[k] = 1e-2
        above, below = (graph(p=p + sign * step, x=x, y=y)[0] for sign in (1, -1))
        assert (above - below) / 2e-2 == pytest.approx(g[k], abs=2e-4)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("batch", [1, 4])
def test_all_gradients_agree_with_torch(kind, batch):
    torch.manual_seed(0)
    steps, inputs, hidden = 5, 3, 4
    cell = getattr(nn, kind.upper())(inputs, hidden).double()
    x = torch.randn(steps, batch, inputs, dtype=torch.float64, requires_grad=True)
    states = [
        torch.randn(batch, hidden, dtype=torch.float64, requires_grad=True)
        for _ in range(2 if kind == "lstm" else 1)
    ]
    leaves = [x, *states, *cell.parameters()]
    start = tuple(s[None] for s in states)
    out, last = cell(x, start if kind == "lstm" else start[0])
    lasts = [s[0] for s in (last if kind == "lstm" else [last])]
    ours = getattr(bptt, f"{kind}_layer")(x, *states, *cell.parameters())
    pushes = [torch.randn_like(t) for t in ours]
    wanted = torch.autograd.grad([out, *lasts], leaves, pushes)
    got = torch.autograd.grad(list(ours), leaves, pushes)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, [out, *lasts], strict=True))
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-12)
