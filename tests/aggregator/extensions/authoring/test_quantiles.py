"""A module of several quantiles as a bundle: its loss, its gradient, its file."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring.catalogue import MODELS
from aggregator.extensions.authoring.check import check_clipped, check_robust
from aggregator.extensions.authoring.clipped import clipped_graph
from aggregator.extensions.authoring.export import export
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.lipschitz_bound import certificate
from aggregator.extensions.authoring.second_derivatives import robust_graph
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of, losses_of
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys
from edge_sdk.extensions.evaluation import forecast_metrics
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import LipschitzStage, Loss, Manifest, Window
from edge_sdk.protocol.keys import from_seed
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

KEY = from_seed(bytes(32))
LEVELS = (0.1, 0.5, 0.9)
PINBALL = Loss("pinball", levels=LEVELS)
BASE = MODELS["load-mlp"][1]
RECIPE = replace(
    BASE,
    window=Window(12, 2, 3600),
    target=replace(BASE.target, output="quantiles"),
    loss=PINBALL,
    shared=("",),
)


class Fan(nn.Sequential):
    """Two steps, three levels."""

    def __init__(self, levels=3):
        body = nn.Flatten(), nn.Linear(96, 8), nn.ReLU(), nn.Linear(8, 2 * levels)
        super().__init__(*body, nn.Unflatten(1, (2, levels)))


def traced(module=None):
    return Traced(module or Fan(), (12, 8), 2, 3)


def exported(out, recipe=RECIPE, module=None):
    made = module or Fan()
    return export(made, recipe, name="fan", version=1, signer=KEY, out=out, engine=load_graph)


def test_the_training_loss_is_the_sum_of_scores_over_the_horizon():
    rng = np.random.default_rng(5)
    y, told = rng.normal(size=(7, 2)), rng.normal(size=(7, 2, 3))
    found = loss_of(PINBALL, error_of(torch.tensor(told), torch.tensor(y)))
    by_level = {q: told[:, :, i] for i, q in enumerate(LEVELS)}
    assert found.item() == pytest.approx(
        2 * forecast_metrics.quantile_score(y, by_level), rel=1e-12
    )


def test_a_forecast_that_is_exactly_right_has_no_slope():
    told = torch.tensor([[[1.0, 1.0, 1.0]]], requires_grad=True)
    losses_of(PINBALL, error_of(told, torch.tensor([[1.0]]))).sum().backward()
    assert told.grad.tolist() == [[[0.0, 0.0, 0.0]]]


def test_too_low_pulls_up_by_the_level_and_too_high_down_by_the_rest():
    told = torch.tensor([[[0.0, 0.0, 3.0]]], requires_grad=True)
    losses_of(PINBALL, error_of(told, torch.tensor([[1.0]]))).sum().backward()
    assert told.grad.flatten().tolist() == pytest.approx([-0.1, -0.5, 0.1])


def test_a_bundle_of_quantiles_opens_and_forecasts_every_level(tmp_path):
    torch.manual_seed(3)
    module = Fan()
    bundle = Bundle.open(
        exported(tmp_path / "fan", module=module), trust=TrustedKeys((KEY.public,))
    )
    assert bundle.manifest.loss == PINBALL
    assert bundle.manifest.forecast_shape == (2, 3)
    x = np.random.default_rng(1).random((5, 12, 8), np.float32)
    (yhat,) = bundle.forecast(p=bundle.initial, x=x)
    assert yhat.shape == (5, 2, 3)
    with torch.no_grad():
        assert np.allclose(yhat, module(torch.tensor(x)).numpy(), atol=1e-6)


@pytest.mark.parametrize("level", range(6))
def test_its_canary_is_held_against_every_level(level, tmp_path):
    folder = exported(tmp_path / "fan")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    told = list(manifest.golden.yhat)
    told[level] += 0.001
    raw = replace(manifest, golden=replace(manifest.golden, yhat=tuple(told))).canonical()
    (folder / MANIFEST).write_bytes(raw)
    (folder / SIGNATURE).write_bytes(seal(KEY, raw))
    with pytest.raises(BundleError, match="golden forecast"):
        Bundle.open(folder, trust=TrustedKeys((KEY.public,)))


def test_training_on_the_exported_graph_reaches_the_quantiles(tmp_path):
    """Nothing to read from x: the levels must become those of the targets themselves.

    The steps are large enough to get there from any initial state, be every hidden unit dead.
    """
    bundle = Bundle.open(exported(tmp_path / "fan"), trust=TrustedKeys((KEY.public,)))
    rng = np.random.default_rng(2)
    y = rng.exponential(size=(400, 2)).astype(np.float32)
    x = np.zeros((400, 12, 8), np.float32)
    p = bundle.initial.copy()
    for step in range(800):
        _, g = bundle.gradient(p=p, x=x, y=y)
        p = p - np.float32(0.5 / (1 + step / 100)) * g
    (yhat,) = bundle.forecast(p=p, x=x[:1])
    assert np.allclose(yhat[0], np.quantile(y, LEVELS, axis=0).T, rtol=0, atol=0.02)


@pytest.mark.parametrize("levels", [2, 4])
def test_a_module_with_other_levels_than_its_loss_is_refused(levels, tmp_path):
    with pytest.raises(ExportError, match=r"\[batch, horizon, levels\] = \[3, 2, 3\]"):
        exported(tmp_path / "fan", module=Fan(levels))


def test_the_other_graphs_know_the_loss_as_well():
    one = traced()
    for write, check in ((robust_graph, check_robust), (clipped_graph, check_clipped)):
        check(one, PINBALL, load_graph(write(one, PINBALL).SerializeToString()))


def test_the_certificate_holds_for_the_worst_case_of_a_linear_model(tmp_path):
    """All levels equal and all too low: one target moves every level's error at once."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(96, 6, bias=False), nn.Unflatten(1, (2, 3)))
    with torch.no_grad():
        linear[1].weight.fill_(0.01)
    paths = ((LipschitzStage("linear", "1"),),)
    folder = exported(tmp_path / "fan", replace(RECIPE, paths=paths), linear)
    bundle = Bundle.open(folder, trust=TrustedKeys((KEY.public,)))
    bound = certificate(bundle.manifest, bundle.initial.astype(float)).data
    x = torch.zeros(1, 12, 8, requires_grad=True)
    y = torch.ones(1, 2, requires_grad=True)
    slopes = torch.autograd.grad(losses_of(PINBALL, error_of(linear(x), y)).sum(), (x, y))
    steepest = torch.cat([part.flatten() for part in slopes]).norm().item()
    assert 0.4 * bound < steepest <= bound
