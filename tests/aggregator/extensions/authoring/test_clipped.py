"""Per-example clipping inside the graph: by hand, against vmap, and what it refuses."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn
from torch.func import functional_call, grad, vmap

from aggregator.extensions.authoring.check import BATCHES, check_clipped
from aggregator.extensions.authoring.clipped import clipped_gradient, clipped_graph
from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.trace import Traced, loss_of
from edge_sdk.protocol.contract.manifest import CLIPPED_GRADIENT, SIGNATURES, Loss
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

MSE = Loss("mse")


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(2, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Everywhere(nn.Module):
    """One layer at every step, twice, then normalised: uses add up before anything is squared."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.bend = nn.PReLU(4)
        self.head = nn.Linear(8, 2, bias=False)

    def forward(self, x):
        h = self.norm(self.each(torch.tanh(self.each(x))))
        return self.head(self.bend(h).flatten(1))


def mlp():
    layers = nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.PReLU()
    return nn.Sequential(*layers, nn.Linear(5, 2))


MODELS = {
    "mlp": mlp,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM, num_layers=2),
    "gru-no-bias": lambda: Recurrent(nn.GRU, bias=False),
    "lstm-both-ways": lambda: Recurrent(nn.LSTM, bidirectional=True, bias=False),
    "everywhere": Everywhere,
}


def exported(module, loss=MSE, sample=(4, 2), horizon=2):
    traced = Traced(module, sample, horizon)
    return traced, load_graph(clipped_graph(traced, loss).SerializeToString())


def feeds(traced, batch, bound, seed=0):
    x, y = traced.example(batch, seed=seed)
    p = traced.initial.numpy()
    return {"p": p, "x": x.numpy(), "y": y.numpy(), "bound": np.float32(bound)}


def by_vmap(traced, loss, p, x, y):
    """Every example's own gradient in double precision, as ``torch.func`` has it, ``[B, P]``."""
    precise = Traced(traced.module, traced.sample, traced.horizon)
    precise.module.double()

    def one(p, x, y):
        yhat = functional_call(precise.module, precise.weights(p), (x[None],))
        return loss_of(loss, yhat - y[None])

    arrays = (torch.tensor(a).double() for a in (p, x, y))
    with Lowering("twice"):  # torch has no vmap rule for its own recurrent layers
        return vmap(grad(one), in_dims=(None, 0, 0))(*arrays).numpy()


def test_two_examples_by_hand():
    """Lengths 4 and 0.4 at the bound 1: one becomes its quarter, the other stays."""
    _, graph = exported(nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False)), MSE, (1, 1), 1)
    x, y = np.array([[[1.0]], [[2.0]]], np.float32), np.array([[-2.0], [0.1]], np.float32)
    value, g = graph(p=np.zeros(1), x=x, y=y, bound=np.float32(1.0))
    assert value == pytest.approx((4.0 + 0.01) / 2)
    assert g[0] == pytest.approx(1.0 - 0.4)


@pytest.mark.parametrize(
    ("name", "loss"), [("mlp", MSE), *((name, Loss("huber", 0.1)) for name in MODELS)]
)
def test_agrees_with_vmap_at_every_batch_size(name, loss):
    torch.manual_seed(5)
    traced, graph = exported(MODELS[name](), loss)
    given = feeds(traced, max(BATCHES), 1.0)
    each = by_vmap(traced, loss, given["p"], given["x"], given["y"])
    lengths = np.linalg.norm(each, axis=1)
    bound = np.median(lengths)
    clipped = each * np.minimum(1.0, bound / lengths)[:, None]
    for batch in BATCHES:
        _, g = graph(p=given["p"], x=given["x"][:batch], y=given["y"][:batch], bound=bound)
        wanted = clipped[:batch].sum(0)
        assert np.abs(g - wanted).max() <= 1e-5 * np.abs(wanted).max(), batch


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_one_example_never_counts_for_more_than_the_bound(name):
    """However wild a reading is, leaving it out moves the sum by no more than the bound."""
    traced, graph = exported(MODELS[name]())
    given = feeds(traced, 8, 0.05)
    for wild in (1.0, 1e3, 1e6):
        given["x"][3], given["y"][3] = wild, -wild
        _, all_of_them = graph(**given)
        rest = {k: np.delete(given[k], 3, 0) for k in ("x", "y")}
        _, without = graph(**(given | rest))
        assert np.linalg.norm(all_of_them - without) <= 0.05 * (1 + 1e-4)


def test_a_loose_bound_gives_the_plain_gradient_times_the_batch():
    traced, graph = exported(mlp())
    plain = load_graph(traced.gradient_graph(MSE).SerializeToString())
    given = feeds(traced, 17, 1e9)
    value, g = graph(**given)
    wanted_value, wanted = plain(**{k: v for k, v in given.items() if k != "bound"})
    assert value == pytest.approx(float(wanted_value), rel=1e-6)
    assert np.abs(g - 17 * wanted).max() <= 1e-5 * np.abs(g).max()


def test_a_gradient_of_zero_is_not_divided_by():
    _, graph = exported(nn.Sequential(nn.Flatten(), nn.Linear(2, 1)), MSE, (1, 2), 1)
    p, x = np.zeros(3, np.float32), np.ones((3, 1, 2), np.float32)
    _, g = graph(p=p, x=x, y=np.zeros((3, 1), np.float32), bound=np.float32(1.0))
    assert np.array_equal(g, np.zeros(3))


def test_no_array_has_the_size_of_all_examples_gradients():
    """The largest thing between input and output is an activation, not batch times parameters."""
    traced, _ = exported(nn.Sequential(nn.Flatten(), nn.Linear(8, 200), nn.ReLU(), mlp_head()))
    model = clipped_graph(traced, MSE)
    import onnx  # noqa: PLC0415 - checked above

    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for value in inferred.graph.value_info:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        is_batched = any(dim.dim_param for dim in value.type.tensor_type.shape.dim)
        assert not is_batched or np.prod([d for d in dims if d]) <= 400, value.name


def mlp_head():
    return nn.Linear(200, 2)


def test_its_signature_is_the_manifests():
    _, graph = exported(mlp())
    assert (graph.inputs, graph.outputs) == SIGNATURES[CLIPPED_GRADIENT]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x.flatten(1)) * self.scale


class Shared(nn.Module):
    """A bias that is a weight elsewhere."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return out + nn.functional.linear(out[:, :1], self.layer.bias[:, None])


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Scaled, "mul takes the parameter 'scale'"),
        (Shared, "takes the parameter 'layer.bias'"),
        (lambda: nn.Sequential(nn.Conv1d(4, 1, 2), nn.Flatten(), nn.Linear(1, 2)), "conv1d"),
    ],
)
def test_what_no_rule_can_follow_is_refused_by_name(module, says):
    with pytest.raises(ExportError, match=says):
        clipped_graph(Traced(module(), (4, 2), 2), MSE)


def test_a_parameter_that_is_not_used_has_no_gradient():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle = nn.Linear(3, 3)
            self.layer = nn.Linear(8, 2)

        def forward(self, x):
            return self.layer(x.flatten(1))

    traced, graph = exported(Idle())
    _, g = graph(**feeds(traced, 4, 1.0))
    assert np.array_equal(g[:12], np.zeros(12))
    assert g[12:].any()


@pytest.mark.parametrize("result", range(2))
def test_a_graph_that_differs_from_torch_is_refused(result):
    traced, graph = exported(mlp())

    def wrong(**given):
        results = list(graph(**given))
        results[result] = results[result] * np.float32(1 + 1e-3)
        return tuple(results)

    check_clipped(traced, MSE, graph)
    with pytest.raises(ExportError, match=r"differs from torch by .* batch size 1 "):
        check_clipped(traced, MSE, wrong)


def test_the_function_itself_is_differentiable_torch_free_of_the_exporter():
    """It can be run as torch, too: the experiments' oracles do."""
    traced = Traced(mlp(), (4, 2), 2)
    x, y = traced.example(3)
    value, g = clipped_gradient(traced, MSE)(traced.initial, x, y, torch.tensor(1e9))
    p = traced.initial.requires_grad_()
    wanted = traced.loss(MSE, p, x, y)
    assert value.item() == pytest.approx(wanted.item())
    assert torch.allclose(g, 3 * torch.autograd.grad(wanted, p)[0], atol=1e-6)
