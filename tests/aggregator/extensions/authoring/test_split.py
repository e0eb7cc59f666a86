"""A model in two halves as a bundle: its four graphs, alone and as parts of one step."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch import nn

from aggregator.extensions.authoring.catalogue import MODELS, SHIPPED
from aggregator.extensions.authoring.export import export, make
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.split_models import (
    ConvDecoder,
    ConvEncoder,
    GruDecoder,
    GruEncoder,
    Halves,
    LstmEncoder,
)
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.protocol.contract.manifest import SPLIT, Window
from edge_sdk.protocol.keys import from_seed
from edge_sdk.runtime import load_graph

pytestmark = pytest.mark.torch

KEY = from_seed(bytes(32))
BASE = MODELS["chargers-6"][1]
WINDOW = replace(BASE.window, lookback=5, horizon=2)
RECIPE = replace(BASE, window=WINDOW)
KINDS = {
    "conv": lambda: Halves(ConvEncoder(6, 4), ConvDecoder(4, 5, 8, 2, 3)),
    "lstm-conv": lambda: Halves(LstmEncoder(6, 4), ConvDecoder(4, 5, 8, 2, 3)),
    "gru": lambda: Halves(GruEncoder(6, 4), GruDecoder(4, 2, 3)),
}


def exported(out, module, recipe=RECIPE):
    folder = export(module, recipe, name="mine", version=1, signer=KEY, out=out, engine=load_graph)
    return Bundle.open(folder, trust=TrustedKeys((KEY.public,)))


def drawn(bundle, batch=7, seed=0):
    draw = np.random.Generator(np.random.Philox(seed))
    shape = (batch, *bundle.manifest.activation)
    x, y = draw.random((batch, 5, 6)), draw.random((batch, 2))
    return [np.asarray(a, np.float32) for a in (x, y, draw.normal(size=shape))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_step_add_up_to_the_whole_gradient(kind, tmp_path):
    """Without the server z is zero, and decode plus encode_vjp must be ``gradient``."""
    bundle = exported(tmp_path / "mine", KINDS[kind]())
    x, y, _ = drawn(bundle)
    p, graphs = bundle.initial, bundle.graphs
    (h,) = graphs["encode"](p=p, x=x)
    assert h.shape == (7, *bundle.manifest.activation)
    loss, g, gh, gz = graphs["decode"](p=p, h=h, z=np.zeros_like(h), y=y)
    (rest,) = graphs["encode_vjp"](p=p, x=x, gh=gh)
    wanted_loss, wanted = graphs["gradient"](p=p, x=x, y=y)
    np.testing.assert_allclose(g + rest, wanted, rtol=0, atol=1e-6)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert np.abs(gz).max() > 0
    assert not (g * rest).any()  # each half is moved by one of them


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_between_the_halves_gets_the_gradient_of_the_whole(kind, tmp_path):
    """With z = tanh(h), by hand on both sides of the seam, against torch all through."""
    module = KINDS[kind]()
    bundle = exported(tmp_path / "mine", module)
    x, y, _ = drawn(bundle)
    p, graphs = bundle.initial, bundle.graphs
    (h,) = graphs["encode"](p=p, x=x)
    z = np.tanh(h)
    loss, g, gh, gz = graphs["decode"](p=p, h=h, z=z, y=y)
    (rest,) = graphs["encode_vjp"](p=p, x=x, gh=gh + gz * (1 - z * z))
    encoded = module.encoder(torch.tensor(x))
    error = torch.tensor(y)[:, :, None] - module.decoder(encoded, encoded.tanh())
    levels = torch.tensor(BASE.loss.levels)
    value = torch.maximum(levels * error, (levels - 1) * error).sum((1, 2)).mean()
    value.backward()
    wanted = torch.cat([q.grad.reshape(-1) for q in module.parameters()]).numpy()
    np.testing.assert_allclose(g + rest, wanted, rtol=0, atol=1e-6)
    assert loss == pytest.approx(value.item(), rel=1e-6)
    (aided,) = graphs["aided_forecast"](p=p, x=x, z=z)
    np.testing.assert_allclose(
        aided, module.decoder(encoded, encoded.tanh()).detach().numpy(), rtol=0, atol=1e-6
    )


def test_the_forecast_is_the_aided_one_without_aid(tmp_path):
    bundle = exported(tmp_path / "mine", KINDS["conv"]())
    x, _, z = drawn(bundle)
    (alone,) = bundle.forecast(p=bundle.initial, x=x)
    (aided,) = bundle.graphs["aided_forecast"](p=bundle.initial, x=x, z=np.zeros_like(z))
    np.testing.assert_array_equal(alone, aided)


def test_the_papers_sizes():
    sizes = {
        name: sum(q.numel() for q in make(name)[0].parameters())
        for name in ("chargers-paper-1", "chargers-paper-6")
    }
    assert sizes == {"chargers-paper-1": 157_379, "chargers-paper-6": 158_354}


def test_what_is_shipped_is_small():
    assert "chargers-6" in SHIPPED
    assert not any(name.startswith("chargers-paper") for name in SHIPPED)


def test_a_module_in_one_piece_is_refused(tmp_path):
    whole = nn.Sequential(nn.Flatten(), nn.Linear(30, 6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(ExportError, match="no 'encoder'"):
        exported(tmp_path / "mine", whole)


def test_an_encoder_of_another_form_is_refused(tmp_path):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(30, 4))
            self.decoder = nn.Linear(4, 6)

        def forward(self, x):
            return self.decoder(self.encoder(x)).view(-1, 2, 3)

    with pytest.raises(ExportError, match=r"must return \[batch, F, L\]"):
        exported(tmp_path / "mine", Flat())


def test_a_bundle_without_halves_says_no_activation(tmp_path):
    plain = replace(RECIPE, graphs=(), window=Window(5, 2, 3600))
    bundle = exported(tmp_path / "mine", KINDS["conv"](), plain)
    assert bundle.manifest.activation is None
    assert not set(SPLIT) & set(bundle.graphs)
