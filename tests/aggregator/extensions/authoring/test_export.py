"""What the exporter writes, and everything it refuses to write."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.commands.main import main
from aggregator.extensions.authoring.catalogue import MODELS
from aggregator.extensions.authoring.check import check_gradient, reference_engine
from aggregator.extensions.authoring.export import asked_by, export, export_command, make
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.models import LoadMlp
from aggregator.extensions.authoring.trace import Traced
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.protocol.contract.manifest import LipschitzStage
from edge_sdk.protocol.keys import from_seed, save_signing_key
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

KEY = from_seed(bytes(32))
RECIPE = MODELS["load-mlp"][1]


def exported(module, out, recipe=RECIPE, **options):
    options = {"engine": load_graph, "version": 3, "name": "mine", **options}
    return export(module, recipe, signer=KEY, out=out, **options)


def test_a_written_bundle_opens_and_carries_the_modules_parameters(tmp_path):
    module = LoadMlp()
    bundle = Bundle.open(exported(module, tmp_path / "mine"), trust=TrustedKeys((KEY.public,)))
    assert (bundle.manifest.name, bundle.manifest.version) == ("mine", 3)
    vector = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    assert np.array_equal(bundle.initial, vector)
    assert [layer.name for layer in bundle.spec.layers] == [n for n, _ in module.named_parameters()]


def test_an_export_repeats_to_the_byte_and_leaves_the_module_alone(tmp_path):
    module = LoadMlp().train()
    first, second = exported(module, tmp_path / "a"), exported(module, tmp_path / "b")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
    assert module.training
    assert not module._forward_hooks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["load-lstm", "load-gru"])
def test_the_reference_engine_agrees_as_well(name, tmp_path):
    """What the installed command checks with: no engine but ONNX's own arithmetic."""
    key = tmp_path / "root.key"
    save_signing_key(key, KEY)
    folder = export_command(name, tmp_path / name, key=key)
    assert Bundle.open(folder, trust=TrustedKeys((KEY.public,))).manifest.name == name


class BatchNormed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.BatchNorm1d(96), nn.Linear(96, 1))


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.GroupNorm(2, 96), nn.Linear(96, 1))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(96, 1)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return out if out.sum() > 0 else -out


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(96, 1)

    def forward(self, x):
        rows = len(x.tolist()) if not isinstance(x.shape[0], int) else x.shape[0]
        return self.layer(x.reshape(rows, 96))


class Plain(nn.Module):
    def __init__(self, convert=lambda layer: layer, then=lambda out: out):
        super().__init__()
        self.layer, self.then = convert(nn.Linear(96, 1)), then

    def forward(self, x):
        return self.then(self.layer(x.flatten(1).to(self.layer.weight.dtype)))


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, proj_size=1, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


def frozen(name):
    module = Plain()
    module.get_parameter(name).requires_grad_(requires_grad=False)
    return module


class OtherSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(95, 1)

    def forward(self, x):
        return self.layer(x.flatten(1))


class NotARecipe(Plain):
    recipe = "load-mlp"


@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:Lazy modules")
@pytest.mark.parametrize(
    ("module", "says"),
    [
        (BatchNormed, "running_mean.*LayerNorm"),
        (Branching, "must not branch on values"),
        (Fixed, "could not be traced"),
        (lambda: Plain(lambda layer: layer.double()), "only float32"),
        (lambda: Plain(then=lambda out: out.squeeze(1)), r"it returned \[3\]"),
        (lambda: Plain(then=lambda out: torch.sort(out, 0).values), r"aten\.sort"),
        (Projected, "proj_size"),
        (
            lambda: Plain(then=nn.functional.dropout),
            r"nn\.Dropout, or pass training=self\.training",
        ),
        (
            lambda: Plain(then=lambda out: out + torch.rand_like(out)),
            "two forecasts of one input differ",
        ),
        (lambda: frozen("layer.bias"), r"layer\.bias have requires_grad=False.*persistent=False"),
        (OtherSize, r"fails for an input \(3, 12, 8\).*RuntimeError.*--like"),
        (lambda: Plain(then=lambda out: (out, None)), "one tensor, not tuple"),
        (lambda: Plain(lambda _: nn.LazyLinear(1)), "no shape yet"),
        (nn.Flatten, "returned|no parameters"),
    ],
)
def test_what_cannot_be_exported_says_why(module, says, tmp_path):
    with pytest.raises(ExportError, match=says):
        exported(module(), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("result", ["loss", "g", "yhat"])
@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_a_graph_that_differs_from_torch_is_refused(tmp_path, result, error):
    def wrong(data):
        graph = load_graph(data)

        def run(**feeds):
            results = dict(zip(graph.outputs, graph(**feeds), strict=True))
            if result in results and len(feeds["x"]) == 200:
                results[result] = results[result] + np.float32(error)
            return tuple(results.values())

        return run

    graph = {"g": "gradient", "yhat": "forecast", "loss": "loss"}[result]
    with pytest.raises(ExportError, match=f"'{graph}' differs from torch by .* batch size 200"):
        exported(LoadMlp(), tmp_path / "mine", engine=wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "My Bundle"}, "name"),
        ({"version": 0}, "version"),
        ({"recipe": replace(RECIPE, shared=("haed.",))}, "matches no layer"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(options, says, tmp_path):
    with pytest.raises(ExportError, match=says):
        exported(LoadMlp(), tmp_path / "mine", **options)


@pytest.mark.parametrize("wanted", [(), ("clipped_gradient",), ("robust_gradient", "gradient")])
def test_a_bundle_has_the_graphs_that_were_asked_for_and_no_other(tmp_path, wanted):
    key = tmp_path / "root.key"
    save_signing_key(key, KEY)
    out = export_command("load-mlp", tmp_path / "a", key=key, graphs=wanted, engine=load_graph)
    bundle = Bundle.open(out, trust=TrustedKeys((KEY.public,)))
    assert set(bundle.graphs) == {"gradient", "forecast", *wanted}
    assert {path.stem for path in out.glob("*.onnx")} == set(bundle.graphs)
    assert not bundle.graphs._loaded.keys() - {"forecast"}  # a device starts with what it needs


@pytest.mark.parametrize(
    ("name", "says"),
    [("OtherSize", "forward fails for an input (3, 12, 8)"), ("NotARecipe", "not a Recipe")],
)
def test_the_command_refuses_a_module_that_does_not_fit_as_wrong_usage(
    tmp_path, capsys, name, says
):
    key = tmp_path / "root.key"
    save_signing_key(key, KEY)
    words = ["export", f"{__file__}:{name}", str(tmp_path / "mine"), "--key", str(key)]
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_methods_contract_names_its_graphs():
    assert set(asked_by(["fedavg"])) == {"gradient"}
    assert set(asked_by(["fedavg", "bafdp"])) == {"gradient", "robust_gradient"}
    with pytest.raises(ExportError, match=r"unknown method 'fedag'.*fedavg"):
        asked_by(["fedag"])


def test_the_command_writes_what_a_method_asks_for(tmp_path, capsys):
    key, out = tmp_path / "root.key", tmp_path / "mine"
    save_signing_key(key, KEY)
    words = [
        "export",
        "aggregator.extensions.authoring.models:CellsMlp",
        str(out),
        "--key",
        str(key),
    ]
    assert main([*words, "--like", "cells-mlp-1", "--graphs", "--for", "bafdp"]) == 0
    assert "written, checked against torch, and signed" in capsys.readouterr().out
    assert not (out / "clipped_gradient.onnx").exists()
    assert (out / "robust_gradient.onnx").exists()
    assert main([*words, "--like", "cells-mlp-1", "--for", "bafpd"]) == 2
    assert "unknown method 'bafpd'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "graph", "says"),
    [
        (LoadMlp, "gradiend", "unknown graph 'gradiend'; known: gradient, forecast"),
        (Normed, "clipped_gradient", "graph 'clipped_gradient': operator .*group_norm.*'1.weight'"),
    ],
)
def test_a_graph_that_cannot_be_written_is_refused_by_name(tmp_path, module, graph, says):
    with pytest.raises(ExportError, match=says):
        exported(module(), tmp_path / "mine", replace(RECIPE, graphs=(graph,), shared=("",)))
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (LipschitzStage("linear", "haed"), "no layer 'haed.weight'"),
        (
            LipschitzStage("read", times=1e-3),
            "paths: the loss changes by .* a path .* is missing or wrong",
        ),
    ],
)
def test_paths_that_bound_nothing_are_refused(tmp_path, stage, says):
    with pytest.raises(ExportError, match=says):
        exported(LoadMlp(), tmp_path / "mine", replace(RECIPE, paths=((stage,),)))


def test_models_by_name_module_and_file(tmp_path):
    module, _ = make("load-mlp")
    again, _ = make("aggregator.extensions.authoring.models:LoadMlp")
    assert torch.equal(module.head.weight, again.head.weight)  # the same seed
    file = tmp_path / "own.py"
    file.write_text(
        "from aggregator.extensions.authoring.models import LoadGru\nclass Own(LoadGru):\n    pass\n"
    )
    own, borrowed = make(f"{file}:Own", like="load-gru")
    assert type(own).__name__ == "Own"
    assert borrowed == MODELS["load-gru"][1]
    for unknown in ("load-lsmt", "no.such:thing", f"{file}:Other", "math:pi", "math:sqrt"):
        with pytest.raises((ExportError, TypeError)):
            make(unknown)


def test_making_a_model_leaves_the_random_state_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    make("load-mlp")
    assert torch.equal(torch.rand(3), wanted)


def test_the_paper_models_size():
    traced = Traced(MODELS["load-lstm"][0](), MODELS["load-lstm"][1].sample, 1)
    assert traced.initial.numel() == 42_181


def test_the_reference_engine_runs_a_small_graph():
    traced = Traced(LoadMlp(), (12, 8), 1)
    graph = traced.forecast_graph().SerializeToString()
    x, _ = traced.example(4)
    feeds = {"p": traced.initial.numpy(), "x": x.numpy()}
    assert np.allclose(
        reference_engine(graph)(**feeds)[0], load_graph(graph)(**feeds)[0], atol=1e-6
    )


class Attention(nn.Module):
    """Self-attention by torch's own module, whose fused kernel has no second derivative."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        h = self.first(x)
        mixed, _ = self.attention(h, h, h, need_weights=False)
        return self.last((h + mixed)[:, -1])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.RNN(8, 6, batch_first=True)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.body(x)[0][:, -1])


@pytest.mark.slow
@pytest.mark.parametrize("module", [Attention, Recurrent])
def test_attention_and_plain_recurrence_export_with_a_second_derivative(module, tmp_path):
    torch.manual_seed(0)
    out = exported(module(), tmp_path / "mine", replace(RECIPE, graphs=("hvp",), shared=()))
    assert (out / "hvp.onnx").is_file()
    assert Bundle.open(out, trust=TrustedKeys((KEY.public,))).manifest.name == "mine"


def test_a_bad_name_is_refused_before_any_graph_is_written(tmp_path):
    started = []
    with pytest.raises(ExportError, match=r"name 'My Net': .* for example --name my-net"):
        export(
            LoadMlp(),
            RECIPE,
            name="My Net",
            version=1,
            signer=KEY,
            out=tmp_path / "mine",
            progress=lambda *given: started.append(given),
        )
    assert started == []


def test_progress_names_each_graph_in_turn(tmp_path):
    seen = []
    exported(
        LoadMlp(),
        tmp_path / "mine",
        replace(RECIPE, graphs=()),
        progress=lambda *given: seen.append(given),
    )
    assert seen == [("gradient", 1, 2), ("forecast", 2, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, width): pass\n",
            "cannot be created: TypeError: .*'width'; it is called without arguments",
        ),
        (
            "class Net:\n    def __init__(self): raise KeyError('x')\n",
            "cannot be created: KeyError",
        ),
        ("def Net(:\n", "cannot be imported: SyntaxError"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_users_mistake_is_named_and_not_called_a_defect(tmp_path, text, says):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ExportError, match=says):
        make(f"{tmp_path}/own.py:Net")


class Kinked(nn.Module):
    """A dense net whose third unit may lie on the kink of its ReLU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x[:, -1])))


def traced_with_kink(*, is_kinked):
    """Return the model; with a kink, one unit's input at batch size 17 is zero but for rounding."""
    torch.manual_seed(0)
    module = Kinked()
    x, _ = Traced(module, (12, 8), 1).example(17, seed=17)
    if is_kinked:
        with torch.no_grad():
            module.first.bias[2] -= module.first(x[:, -1])[5, 2]
    return Traced(module, (12, 8), 1)


def gradient_of(traced, *, shift=0.0, factor=1.0):
    """Return a graph that computes by torch, at a bias moved by rounding, or scaled by a factor."""
    index = [name for name, _ in traced.sizes].index("first.bias")
    at = sum(size for _, size in traced.sizes[:index]) + 2

    def run(p, x, y):
        moved = torch.tensor(p)
        moved[at] += shift
        moved.requires_grad_()
        value = traced.loss(RECIPE.loss, moved, torch.tensor(x), torch.tensor(y))
        (gradient,) = torch.autograd.grad(value, moved)
        return value.detach().numpy(), factor * gradient.numpy()

    return run


def test_a_unit_on_its_kink_may_take_either_side(monkeypatch):
    traced = traced_with_kink(is_kinked=True)
    moves = [2.0**-22, -(2.0**-22)]
    for shift in moves:
        check_gradient(traced, RECIPE.loss, gradient_of(traced, shift=shift))
    monkeypatch.setattr("aggregator.extensions.authoring.check.KINK_LIMIT", 0.0)
    refused = 0
    for shift in moves:
        try:
            check_gradient(traced, RECIPE.loss, gradient_of(traced, shift=shift))
        except ExportError:
            refused += 1
    assert refused >= 1, "one of the moves is on the other side than torch itself"


@pytest.mark.parametrize("is_kinked", [True, False])
def test_a_gradient_of_another_size_is_refused_with_and_without_a_kink(is_kinked):
    traced = traced_with_kink(is_kinked=is_kinked)
    with pytest.raises(ExportError, match="'gradient' differs from torch by"):
        check_gradient(traced, RECIPE.loss, gradient_of(traced, factor=1 + 3e-5))
