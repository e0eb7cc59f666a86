"""Attention within a neighbourhood is full attention that looks nowhere else."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np

from aggregator.extensions.papers.graph.factory import GraphSection, bind
from aggregator.extensions.papers.graph.nets.sparse_attention import (
    LocalBlock,
    Pattern,
    SparseAttentionNet,
)
from aggregator.extensions.papers.graph.nets.spatiotemporal import SpatioTemporalBlock, Surroundings
from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel
from aggregator.extensions.papers.graph.stations import chebyshev_of_present, path, within
from edge_sdk.app.schema import SchemaError, build

pytestmark = pytest.mark.torch

N, F, L, ORDER = 7, 3, 4, 3
DRAW = np.random.Generator(np.random.Philox(11))


def drawn(seed=0, n=N):
    """A graph with an isolated node, a hub, and rows of many lengths."""
    draw = np.random.Generator(np.random.Philox(seed))
    upper = np.triu(draw.random((n, n)) < 0.25, 1)
    upper[0], upper[:, 0] = False, False
    return (upper | upper.T).astype(np.float64)


def pair(adjacent, seed, **form):
    """A local block, and the full one that means the same."""
    n = len(adjacent)
    pattern = Pattern.of(adjacent, ORDER - 1)
    small = LocalBlock(pattern, F, L, order=ORDER, **form)
    full = SpatioTemporalBlock(n, F, L, order=ORDER, **form)
    draw = torch.Generator().manual_seed(seed)
    for parameter in small.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    full.double().load_state_dict(
        {**dict(small.named_parameters()), "spatial.v": torch.zeros(n, n).double(),
         "spatial.b": torch.zeros(n, n).double()}
    )  # fmt: skip
    at = torch.arange(n)[:, None].expand_as(pattern.near)
    for name in ("v", "b"):
        table = getattr(full.spatial, name).data
        values = getattr(small.spatial, name).data
        table[at[pattern.real], pattern.near[pattern.real]] = values[pattern.real]
    return small, full


class Blinkered(torch.nn.Module):
    """Full spatial attention that looks at nobody outside the neighbourhood."""

    def __init__(self, spatial, reach):
        super().__init__()
        self.of, self.reach = spatial, torch.tensor(reach)

    def forward(self, h, there):
        product = (h @ self.of.w1 @ self.of.w2) @ (self.of.w3 @ h).transpose(1, 2)
        scores = self.of.v @ (torch.sigmoid(product + self.of.b) * there[:, None])
        seen = (self.reach & there) | torch.eye(len(there), dtype=torch.bool)
        return torch.softmax(scores.masked_fill(~seen, -torch.inf), 2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("absent", [(), (2,), (1, 4)])
def test_it_is_the_full_block_with_blinkers(seed, absent):
    adjacent = drawn(seed)
    small, full = pair(adjacent, seed, swapped=bool(seed % 2))
    full.spatial = Blinkered(full.spatial, within(adjacent, ORDER - 1))
    present = np.array([i not in absent for i in range(N)])
    terms = torch.tensor(chebyshev_of_present(adjacent, present, ORDER))
    around = Surroundings(torch.tensor(present), terms)
    h = torch.tensor(DRAW.normal(size=(2, N, F, L))) * around.there[:, None, None]
    outs = []
    for block in (small, full):
        x = h.clone().requires_grad_()
        z = block(x, around)
        (z * torch.arange(z.numel()).view(z.shape)).sum().backward()
        outs.append((z.detach(), x.grad * around.there[:, None, None]))
    for one, other in zip(*outs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_pulls_back_what_finite_differences_find():
    adjacent = drawn(3)
    model = TorchGraphModel(
        lambda: SparseAttentionNet(adjacent, F, L), adjacent, dtype="float64", block=2
    )
    present = np.array([i != 2 for i in range(N)])
    h, gz = DRAW.normal(size=(2, 3, N, F, L))
    gz[:, 2] = 0.0
    p = model.init(1)
    gh, gp = model.pullback(p, h, present, gz)
    for of_p, of_h in ((DRAW.normal(size=p.shape), 0.0), (0.0, DRAW.normal(size=h.shape))):
        ahead, behind = (model.forward(p + e * of_p, h + e * of_h, present) for e in (1e-6, -1e-6))
        wanted = ((ahead - behind) * gz).sum() / 2e-6
        assert (gp * of_p).sum() + (gh * of_h).sum() == pytest.approx(wanted, rel=1e-5)


def test_numbers_grow_with_stations_and_not_with_their_square():
    sizes = [
        TorchGraphModel(lambda n=n: SparseAttentionNet(path(n), F, L), path(n)).spec.size
        for n in (20, 40, 60)
    ]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


def test_far_stations_are_not_looked_at():
    looks = pair(path(N), 1)[0].spatial
    h, there = torch.tensor(DRAW.normal(size=(2, N, F, L))), torch.ones(N, dtype=torch.bool)
    found = looks(h, there)
    assert torch.allclose(found.sum(2), torch.ones(2, N).double())
    assert not found[:, ~looks.pattern.real].any()


def test_it_is_bound_by_a_word():
    section = build(GraphSection, {"attention": "local", "capacity": 9})
    model = bind(section, (F, L)).model
    z = model.forward(model.init(0), DRAW.normal(size=(1, 9, F, L)), np.ones(9, np.bool_))
    assert np.isfinite(z).all()
    with pytest.raises(SchemaError, match="full attention"):
        build(GraphSection, {"attention": "local", "residual_ln": True})
