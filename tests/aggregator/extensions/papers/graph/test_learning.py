"""What one station reads, another can forecast with: the graph model learns it, and not by luck."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from torch.func import functional_call

from aggregator.extensions.authoring.split_models import ConvDecoder, ConvEncoder, Halves
from aggregator.extensions.papers.graph.factory import GraphSection, bind

pytestmark = [pytest.mark.torch, pytest.mark.slow]

N, F, L, STEPS, BATCH = 2, 8, 8, 1000, 32
LEVELS = torch.tensor([0.1, 0.5, 0.9])


def pairs(seed):
    """Leaders are chance, their followers say the same a step later, ``(N, T)``."""
    chance = np.random.default_rng(seed).random((N // 2, 3000)).astype(np.float32)
    return np.stack([row for one in chance for row in (one, np.roll(one, 1))])


def batch(data, ends):
    x = np.stack([data[:, end - L : end] for end in ends], 1)[..., None]
    return torch.tensor(x), torch.tensor(np.stack([data[:, end] for end in ends], 1))


@pytest.mark.parametrize("kind", ["pfgl", "conv2d"])
def test_a_follower_learns_from_its_leader(kind):
    residual = {"residual_ln": True} if kind == "pfgl" else {}
    model = bind(GraphSection(kind, capacity=N, engine="torch", **residual), (F, L)).model
    torch.manual_seed(0)
    nets = [Halves(ConvEncoder(1, F), ConvDecoder(F, L, 16, 1, 3)) for _ in range(N)]
    p = torch.tensor(model.init(0), requires_grad=True)
    around = model._around(np.ones(N, np.bool_))
    adam = torch.optim.Adam([p, *(w for net in nets for w in net.parameters())], lr=4e-3)
    data, draw = pairs(0), np.random.default_rng(1)

    def losses(ends, *, alone=False):
        x, y = batch(data, ends)
        h = torch.stack([net.encoder(x[i]) for i, net in enumerate(nets)], 1)
        z = functional_call(model._net, model._weights(p), (h, around))
        z = torch.zeros_like(h) if alone else z
        told = torch.stack([net.decoder(h[:, i], z[:, i])[:, 0] for i, net in enumerate(nets)])
        error = y[..., None] - told
        return torch.maximum(LEVELS * error, (LEVELS - 1) * error).sum(-1).mean(1)

    for _ in range(STEPS):
        adam.zero_grad()
        losses(draw.integers(L, 2400, BATCH)).sum().backward()
        adam.step()
    with torch.no_grad():
        found = losses(np.arange(2500, 2900)).numpy()
        without = losses(np.arange(2500, 2900), alone=True).numpy()
    assert found[1] < 0.15  # a constant has 0.215
    assert found[0] > 0.19  # nobody foresees chance
    assert without[1] > 0.19
