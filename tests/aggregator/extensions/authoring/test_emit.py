"""The emitter's graphs: which pitfalls of exporting they avoid, and how it says no."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import IR_VERSION, OPSET, emit
from aggregator.extensions.authoring.export_spec import ExportError, UnsupportedOperator
from aggregator.extensions.authoring.models import LoadLstm
from aggregator.extensions.authoring.trace import Traced, trace
from edge_sdk.protocol.contract.manifest import Loss
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

MSE = Loss("mse")


def run(function, *examples, batched=(0,), names=None):
    """Trace, emit and load a function of tensors; return a callable on arrays."""
    graph = trace(lambda *a: (function(*a),), examples, Lowering("unrolled"), batched)
    names = names or [f"in{i}" for i in range(len(examples))]
    loaded = load_graph(emit(graph, names, ["out"]).SerializeToString())
    return lambda *arrays: loaded(**dict(zip(names, arrays, strict=True)))[0]


def test_examples_that_share_memory_are_refused():
    """Pitfall 3: an anchor that is the parameters themselves made a proximal term vanish."""
    p = torch.rand(5)
    with pytest.raises(ExportError, match="share memory"):
        trace(lambda a, b: (a - b,), (p, p), Lowering("unrolled"), ())


def test_the_batch_stays_free_in_every_graph():
    """Pitfall 4: a linear layer on three dimensions used to fix it."""
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Flatten(), nn.Linear(56, 1))
    traced = Traced(module, (8, 5), 1)
    for model in (traced.gradient_graph(MSE), traced.forecast_graph()):
        shapes = {
            value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in (*model.graph.input, *model.graph.output)
        }
        assert shapes["x"] == ["batch", 8, 5]
        assert shapes["p"] == [traced.initial.numel()]
        assert shapes.get("yhat", ["batch", 1]) == ["batch", 1]
        assert shapes.get("g", [traced.initial.numel()]) == [traced.initial.numel()]


@pytest.mark.parametrize("width", [37, 41, 64])
def test_a_layer_as_wide_as_the_traced_batch_does_not_merge_with_it(width):
    """Pitfall 5: equal sizes are taken for one symbol."""
    traced = Traced(
        nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.Linear(width, 1)), (3, 2), 1
    )
    graph = load_graph(traced.gradient_graph(MSE).SerializeToString())
    for batch in (1, width, 64):
        x, y = traced.example(batch)
        p = traced.initial.requires_grad_()
        (wanted,) = torch.autograd.grad(traced.loss(MSE, p, x, y), p)
        got = graph(p=p.detach().numpy(), x=x.numpy(), y=y.numpy())[1]
        assert np.abs(got - wanted.numpy()).max() <= 1e-6


def test_an_input_may_be_called_like_an_operator():
    """Pitfall 7: a feed called t met the node of aten.t."""
    f = run(
        lambda a, b: torch.addmm(b[0], a, b.t()), torch.rand(37, 3), torch.rand(3, 3), names="tv"
    )
    a, b = np.eye(3, dtype=np.float32), np.arange(9, dtype=np.float32).reshape(3, 3)
    assert np.array_equal(f(a, b), b.T + b[0])


def test_a_name_of_the_emitters_own_is_refused():
    with pytest.raises(ExportError, match="emitter's own"):
        run(torch.tanh, torch.rand(37, 3), names=["Tanh_0"])


def test_convolutions_are_written_as_products():
    """Pitfall 8: an exported convolution has no exported backward."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 5, 3, padding=1)

        def forward(self, x):
            return self.conv(x.transpose(1, 2)).mean((1, 2))[:, None]

    kinds = {n.op_type for n in Traced(Net(), (6, 4), 1).gradient_graph(MSE).graph.node}
    assert not any("Conv" in kind for kind in kinds)
    assert kinds & {"Gemm", "MatMul"}


def test_no_long_list_of_sizes_is_a_constant():
    """Pitfall 9: one engine version cannot load a 16-way Split whose sizes are a constant."""
    model = Traced(LoadLstm(), (12, 8), 1).gradient_graph(MSE)
    splits = [node for node in model.graph.node if node.op_type == "Split"]
    assert splits
    assert all(len(node.input) == 1 for node in splits)
    assert model.opset_import[0].version == OPSET == 17  # what onnxruntime 1.16 knows
    assert model.ir_version == IR_VERSION == 8


def test_the_gradient_is_small_enough_for_small_devices():
    """About 1 microsecond a node; plain autograd of the same net has over 1100."""
    graph = Traced(LoadLstm(), (12, 8), 1).gradient_graph(MSE).graph
    assert len(graph.node) <= 560
    forecast = Traced(LoadLstm(), (12, 8), 1).forecast_graph().graph
    assert [node.op_type for node in forecast.node].count("LSTM") == 2


def test_equal_nodes_are_written_once_and_unused_ones_not_at_all():
    def function(x):
        torch.exp(x)
        return torch.tanh(x) * 2 + torch.tanh(x) * 2

    graph = trace(lambda x: (function(x),), (torch.rand(37, 2),), Lowering("unrolled"), (0,))
    kinds = [node.op_type for node in emit(graph, ["x"], ["out"]).graph.node]
    assert sorted(kinds) == ["Add", "Identity", "Mul", "Tanh"]


def test_filled_tensors_are_folded_but_keep_their_shape():
    f = run(lambda x: torch.ones_like(x) * 3 + torch.zeros_like(x), torch.rand(37, 2))
    assert np.array_equal(f(np.zeros((4, 2), np.float32)), np.full((4, 2), 3, np.float32))
    f = run(lambda x: x.new_full((x.shape[0], 3), 2.0) + x, torch.rand(37, 1))
    assert np.array_equal(f(np.ones((2, 1), np.float32)), np.full((2, 3), 3, np.float32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 1:4],
        lambda x: x[:, ::2],
        lambda x: x[:, -2:],
        lambda x: x.flip(1),
        lambda x: x.var(1),
        lambda x: x.amax(1),
        lambda x: torch.where(x > 0.5, x, -x),
        lambda x: x.clamp(0.2, 0.7),
        lambda x: x.clamp(min=0.3),
        lambda x: torch.maximum(x, 1 - x),
        lambda x: 1 / (1 + x) ** 3,
        lambda x: torch.stack(x.unbind(1)[::2], 1),
        lambda x: torch.nn.functional.pad(x, (2, -1), value=9.0),
        lambda x: x.square().mean(),
        lambda x: (x.sum(0, keepdim=True) / x.shape[0]).expand(x.shape),
        lambda x: (x != 0.5).float() + (x == 0.5).float() * 2,
        lambda x: x.log1p() + x.expm1() + x.rsqrt(),
        lambda x: torch.arange(5).float() * x,
        lambda x: x.masked_fill(x > 0.5, -1.0),
        lambda x: x.reshape(-1).view(x.shape[0], 5).t(),
        lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2)], 1),
    ],
)
def test_single_operators_agree_with_torch(function):
    f = run(function, torch.rand(37, 5))
    for batch in (1, 6):
        x = torch.rand(batch, 5, generator=torch.Generator().manual_seed(batch))
        assert np.allclose(f(x.numpy()), function(x).numpy(), atol=1e-6)


def test_an_unknown_operator_names_itself_and_its_module():
    class Sorter(nn.Module):
        def forward(self, x):
            return torch.sort(x, 1).values

    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), Sorter())
    with pytest.raises(UnsupportedOperator) as refused:
        Traced(module, (3, 2), 2).gradient_graph(MSE)
    assert refused.value.operator == "aten.sort.default"
    assert refused.value.where == "2 (Sorter)"
    assert "docs/models.md" in str(refused.value)


def test_an_in_place_activation_is_the_ordinary_one():
    f = run(lambda x: torch.relu_(x * 2 - 1) + 1, torch.rand(37, 5))
    x = np.linspace(0, 1, 10, dtype=np.float32).reshape(2, 5)
    assert np.allclose(f(x), np.maximum(2 * x - 1, 0) + 1)


def test_memory_read_again_through_a_view_is_refused():
    def function(x):
        y = x * 2
        part = y[:, :2]
        y.add_(1)
        return part

    with pytest.raises(ExportError, match="read again through a view"):
        run(function, torch.rand(37, 5))
