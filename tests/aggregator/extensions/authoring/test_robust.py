"""The exported second derivative: by hand, by differences, against torch, at its kinks."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring.check import BATCHES, check_robust
from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.second_derivatives import robust_gradient, robust_graph
from aggregator.extensions.authoring.trace import Traced, losses_of
from edge_sdk.protocol.contract.manifest import ROBUST_GRADIENT, SIGNATURES, Loss
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(2, 5, batch_first=True, **options)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def mlp(activation=nn.ReLU):
    layers = nn.Flatten(), nn.Linear(6, 6), activation(), nn.Linear(6, 5), activation()
    return nn.Sequential(*layers, nn.Linear(5, 2))


MODELS = {
    "mlp": mlp,
    "mlp-tanh": lambda: mlp(nn.Tanh),
    "mlp-prelu": lambda: mlp(nn.PReLU),
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm-2-layers": lambda: Recurrent(nn.LSTM, num_layers=2),
}


SAMPLE, HORIZON = (3, 2), 2
MSE, HUBER = Loss("mse"), Loss("huber", 0.1)


def exported(module, loss, sample=SAMPLE, horizon=HORIZON):
    traced = Traced(module, sample, horizon)
    return traced, load_graph(robust_graph(traced, loss).SerializeToString())


@cache
def named(name, loss):
    """Export a model once for all tests of it."""
    torch.manual_seed(3)
    return exported(MODELS[name](), loss)


def feeds(traced, batch, seed=0, rho=0.7):
    x, y = traced.example(batch, seed=seed)
    p = traced.initial.numpy()
    return {"p": p, "x": x.numpy(), "y": y.numpy(), "rho": np.float32(rho)}


@pytest.mark.parametrize("loss", [Loss("mse"), Loss("huber", 0.2)], ids=lambda loss: loss.name)
def test_a_linear_model_by_hand(loss):
    """``l = f(w.x + b - y)``: G is ``|f'| sqrt(|w|^2 + 1)``, and its slope follows by hand."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
    with torch.no_grad():
        linear[1].weight.copy_(torch.tensor([[0.6, -0.8]]))
        linear[1].bias.fill_(0.1)
    _, graph = exported(linear, loss, (1, 2), 1)
    x, y = np.array([[[1.0, 0.5]]], np.float32), np.array([[0.25]], np.float32)
    value, g, slope = graph(p=np.array([0.6, -0.8, 0.1]), x=x, y=y, rho=np.float32(0.5))
    error, width = 0.6 - 0.4 + 0.1 - 0.25, np.sqrt(2.0)  # 0.05, inside of Huber's 0.2
    scale = 2.0 if loss.name == "mse" else 1.0
    assert value == pytest.approx(scale / 2 * error**2, rel=1e-5)
    assert slope == pytest.approx(scale * error * width, rel=1e-5)
    of_mean = scale * error * np.array([1.0, 0.5, 1.0])
    of_slope = scale * (
        width * np.array([1.0, 0.5, 1.0]) + error / width * np.array([0.6, -0.8, 0.0])
    )
    assert np.allclose(g, of_mean + 0.5 * of_slope, rtol=1e-5)


DENSE = [("mlp", MSE), ("mlp", HUBER), ("mlp-tanh", HUBER), ("mlp-prelu", HUBER)]
RECURRENT = [("gru", MSE), ("lstm", MSE), ("lstm-2-layers", HUBER)]


@pytest.mark.parametrize(("name", "loss"), [*DENSE, *RECURRENT])
def test_agrees_with_torch_in_double_precision_at_every_batch_size(name, loss):
    traced, graph = named(name, loss)
    precise = Traced(traced.module, SAMPLE, HORIZON)
    precise.module.double()
    for batch in BATCHES:
        given = feeds(traced, batch, seed=batch)
        p, x, y = (torch.tensor(given[k]).double().requires_grad_() for k in ("p", "x", "y"))
        losses = losses_of(loss, precise.predict(p, x) - y)
        of_x, of_y = torch.autograd.grad(losses.sum(), (x, y), create_graph=True)
        slope = torch.cat([of_x.flatten(1), of_y], 1).norm(dim=1).mean()
        (wanted,) = torch.autograd.grad(losses.mean() + 0.7 * slope, p)
        got_loss, got, got_slope = graph(**given)
        assert got_loss == pytest.approx(losses.mean().item(), rel=1e-5)
        assert got_slope == pytest.approx(slope.item(), rel=1e-5)
        assert np.abs(got - wanted.numpy()).max() <= 1e-5 * wanted.abs().max().item(), batch


@pytest.mark.parametrize("name", ["mlp-tanh", "gru", "lstm"])
def test_is_the_slope_of_what_it_says(name):
    """Central differences of ``loss + rho * slope``, both as the graph itself gives them."""
    traced, graph = named(name, MSE)
    given = feeds(traced, 5)
    _, g, _ = graph(**given)
    for k in np.random.default_rng(0).choice(g.size, 12, replace=False):
        ends = []
        for sign in (1, -1):
            p = given["p"].copy()
            p[k] += sign * 0.01
            value, _, slope = graph(**(given | {"p": p}))
            ends.append(float(value) + 0.7 * float(slope))
        assert (ends[0] - ends[1]) / 0.02 == pytest.approx(g[k], abs=4e-4)


def test_radius_zero_is_the_plain_gradient_to_the_bit():
    traced, graph = exported(mlp(), Loss("huber", 0.1))
    plain = load_graph(traced.gradient_graph(Loss("huber", 0.1)).SerializeToString())
    given = feeds(traced, 17, rho=0.0)
    value, g, _ = graph(**given)
    wanted_value, wanted = plain(**{k: v for k, v in given.items() if k != "rho"})
    assert value == pytest.approx(float(wanted_value), rel=1e-6)
    assert np.abs(g - wanted).max() <= 1e-7


@pytest.mark.parametrize("loss", [Loss("mse"), Loss("huber", 0.1)], ids=lambda loss: loss.name)
def test_a_perfect_forecast_has_no_slope_and_no_nan(loss):
    """The norm has a kink at zero: dividing by it there would give 0/0."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
    _, graph = exported(module, loss, (1, 2), 1)
    p, x = np.zeros(3, np.float32), np.ones((4, 1, 2), np.float32)
    value, g, slope = graph(p=p, x=x, y=np.zeros((4, 1), np.float32), rho=np.float32(9.0))
    assert (value, slope) == (0.0, 0.0)
    assert np.array_equal(g, np.zeros(3))


def test_each_example_has_its_own_norm():
    """A mean of norms, not the norm of a mean: opposite slopes must not cancel."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    _, graph = exported(module, Loss("huber", 0.5), (1, 1), 1)
    x, y = np.ones((2, 1, 1), np.float32), np.array([[5.0], [-5.0]], np.float32)
    _, _, slope = graph(p=np.zeros(1), x=x, y=y, rho=np.float32(1.0))
    assert slope == pytest.approx(0.5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_an_explicit_backward_pass_is_not_differentiated_again(kind):
    """Its saved gates depend on nothing that autograd sees: torch.func would go on without them."""
    traced = Traced(Recurrent(kind), SAMPLE, HORIZON)
    given = traced.initial, *traced.example(3), torch.tensor(1.0)
    found = {}
    for layers in ("unrolled", "twice"):
        with Lowering(layers):
            found[layers] = robust_gradient(traced, MSE)(*given)
    assert torch.allclose(found["unrolled"][2], found["twice"][2])  # the norm itself is right
    assert not torch.allclose(found["unrolled"][1], found["twice"][1], atol=1e-3)


def test_its_signature_is_the_manifests():
    _, graph = exported(mlp(), Loss("mse"))
    assert (graph.inputs, graph.outputs) == SIGNATURES[ROBUST_GRADIENT]


@pytest.mark.parametrize("result", range(3))
def test_a_graph_that_differs_from_torch_is_refused(result):
    traced, graph = exported(mlp(), Loss("mse"))

    def wrong(**given):
        results = list(graph(**given))
        results[result] = results[result] + np.float32(1e-3) * (given["rho"] > 0)
        return tuple(results)

    check_robust(traced, Loss("mse"), graph)
    with pytest.raises(ExportError, match=r"differs from torch by .* batch size 1 "):
        check_robust(traced, Loss("mse"), wrong)
