"""The block of PFGL: every number computed by hand for it, and what must hold for all inputs."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from torch import nn

from aggregator.extensions.papers.graph.nets.spatiotemporal import (
    SpatialAttention,
    SpatioTemporal,
    SpatioTemporalBlock,
    Surroundings,
    TemporalAttention,
)
from aggregator.extensions.papers.graph.nets.torch_adapter import TorchGraphModel
from aggregator.extensions.papers.graph.stations import chebyshev, path

pytestmark = pytest.mark.torch

THETA = (0.5, 0.25, -1.0)
THETAS = {f"theta.{k}": theta for k, theta in enumerate(THETA)}
X = (1.0, 2.0, 3.0)
LOOKS = ((0.5, 0.25, 0.25), (0.2, 0.6, 0.2), (0.1, 0.3, 0.6))
H = (((1.0, 2.0),), ((3.0, 4.0),))  # two stations, one feature, two steps


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def filled(module, **values):
    """Give a module's parameters these numbers; all others are zero."""
    for name, parameter in module.double().named_parameters():
        value = f64(values.get(name, 0.0))
        parameter.data = value.expand(parameter.shape).clone()
    return module


def spread(looks, x=X):
    """The graph convolution alone: one feature, one step, a path of three."""
    block = filled(SpatioTemporalBlock(3, 1, 1, order=3), **THETAS)
    terms = f64(chebyshev(path(3), 3))
    return block.spread(f64(x).view(1, 3, 1, 1), f64(looks)[None], terms).detach().flatten()


def close(got, wanted, atol=1e-8):
    np.testing.assert_allclose(got.detach().numpy(), np.asarray(wanted), rtol=0, atol=atol)


def test_the_chebyshev_convolution_on_a_path_of_three():
    close(spread(np.ones((3, 3))), [-2.85355339, -1.70710678, 0.14644661])


def test_attention_weights_every_polynomial_and_not_its_transpose():
    close(spread(LOOKS), [-0.58838835, -0.74142136, 0.69393398])
    transposed = [-0.12071068, -0.8032932, 0.57928932]
    assert np.abs(spread(LOOKS).numpy() - transposed).max() > 0.1


def test_a_second_implementation_of_the_convolution_agrees():
    conv = pytest.importorskip("torch_geometric.nn").ChebConv
    layer = conv(1, 1, 3, normalization="sym", bias=False).double()
    for lin, theta in zip(layer.lins, THETA, strict=True):
        lin.weight.data = f64([[theta]])
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    out = layer(f64(X)[:, None], edges, lambda_max=f64(2.0)).flatten()
    close(out, spread(np.ones((3, 3))).numpy(), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_on_random_graphs_with_many_features(seed):
    conv = pytest.importorskip("torch_geometric.nn").ChebConv
    draw = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(9, 9, generator=draw, dtype=torch.float64) < 0.35, 1)
    adjacent = (upper | upper.T).double()
    adjacent[0, 1] = adjacent[1, 0] = 1.0
    block = SpatioTemporalBlock(9, 4, 1, order=4).double()
    for theta in block.theta:
        theta.data = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    h = torch.randn(1, 9, 4, 1, generator=draw, dtype=torch.float64)
    ours = block.spread(h, torch.ones(1, 9, 9).double(), f64(chebyshev(adjacent.numpy(), 4)))
    layer = conv(4, 4, 4, normalization="sym", bias=False).double()
    for lin, theta in zip(layer.lins, block.theta, strict=True):
        lin.weight.data = theta.T.clone()
    degree = adjacent.sum(0)
    scale = torch.where(degree > 0, degree, 1.0).rsqrt() * (degree > 0)
    full = torch.eye(9).double() - scale[:, None] * adjacent * scale
    largest = torch.linalg.eigvalsh(full)[-1]
    wanted = layer(h[0, :, :, 0], adjacent.nonzero().T, lambda_max=largest)
    linked = degree > 0  # an isolated node: there L is 1 here, and missing from a list of edges
    close(ours[0, :, :, 0][linked], wanted[linked].detach().numpy(), atol=1e-10)


def attentions():
    spatial = {"w1": (0.1, -0.2), "w2": ((0.3, 0.4),), "w3": 0.5}
    temporal = {"u1": (0.1, -0.2), "u2": ((0.3, 0.4),), "u3": 0.5}
    table = {"v": ((1.0, 2.0), (0.0, 1.0)), "b": ((0.0, 0.1), (0.2, 0.0))}
    return (
        filled(SpatialAttention(2, 1, 2), **spatial, **table),
        filled(TemporalAttention(2, 1, 2), **temporal, **table),
    )


def test_the_attentions_of_two_stations():
    spatial, temporal = attentions()
    h, both = f64(H)[None], torch.tensor([True, True])
    product = (h @ spatial.w1 @ spatial.w2) @ (spatial.w3 @ h).transpose(1, 2)
    close(product[0], [[-0.165, -0.375], [-0.275, -0.625]], atol=1e-12)
    close(
        spatial.v @ torch.sigmoid(product[0] + spatial.b),
        [[1.421361, 1.128970], [0.481259, 0.348645]],
        atol=1e-6,
    )
    close(spatial(h, both)[0], [[0.572581, 0.427419], [0.533105, 0.466895]], atol=1e-6)
    close(temporal(h)[0], [[0.699550, 0.674827], [0.300450, 0.325173]], atol=1e-6)


def test_weighted_steps_and_the_convolution_of_two_stations():
    spatial, temporal = attentions()
    h, both = f64(H)[None], torch.tensor([True, True])
    weighted = h @ temporal(h)[:, None]
    close(weighted[0, :, 0], [[1.300450, 1.325173], [3.300450, 3.325173]], atol=1e-6)
    block = filled(SpatioTemporalBlock(2, 1, 2, order=3), **THETAS)
    out = block.spread(weighted, spatial(h, both), f64(chebyshev(path(2), 3)))
    close(out[0, :, 0], [[-0.724975, -0.734695], [-0.943801, -0.952867]], atol=1e-6)


def test_the_papers_sizes():
    net = SpatioTemporal(8, 64, 32)
    assert sum(p.numel() for p in net.parameters()) == 59_088


def hosted(adjacent, **options):
    n = len(adjacent)
    return TorchGraphModel(
        lambda: SpatioTemporal(n, 3, 4, blocks=2, order=3, **options), adjacent, dtype="float64"
    )


DRAW = np.random.Generator(np.random.Philox(6))
ALL = np.ones(4, np.bool_)


def test_with_the_graph_off_stations_do_not_see_each_other():
    """Without edges, looking evenly, Theta_0 undoing that, and a convolution that passes on."""
    n = 4
    model = TorchGraphModel(
        lambda: SpatioTemporal(n, 3, 4, blocks=1, order=3), np.zeros((n, n)), dtype="float64"
    )
    p = np.zeros(model.spec.size)
    at = {layer.name: slice(layer.offset, layer.offset + layer.size) for layer in model.spec.layers}
    kernel = np.zeros((3, 3, 3))
    kernel[:, :, 1] = np.eye(3)
    p[at["blocks.0.theta.0"]] = (n * np.eye(3)).ravel()
    p[at["blocks.0.conv.weight"]] = kernel.ravel()
    h = DRAW.normal(size=(2, n, 3, 4))
    z = model.forward(p, h, ALL)
    mean = np.maximum(h.mean(3, keepdims=True), 0)  # even temporal attention
    np.testing.assert_allclose(z, np.broadcast_to(mean, h.shape), rtol=0, atol=1e-12)
    moved = h.copy()
    moved[:, 2] += 5.0
    others = [0, 1, 3]
    np.testing.assert_array_equal(model.forward(p, moved, ALL)[:, others], z[:, others])


@pytest.mark.parametrize("options", [{}, {"residual_ln": True}, {"swapped": True}])
def test_pulls_back_what_finite_differences_find(options):
    model = hosted(path(4), **options)
    h, gz = DRAW.normal(size=(2, 3, 4, 3, 4))
    p = model.init(3)
    gh, gp = model.pullback(p, h, ALL, gz)
    for name, at, way in (
        ("h", gh, DRAW.normal(size=h.shape)),
        ("p", gp, DRAW.normal(size=p.shape)),
    ):
        ahead, behind = (
            model.forward(p + e * way, h, ALL)
            if name == "p"
            else model.forward(p, h + e * way, ALL)
            for e in (1e-6, -1e-6)
        )
        assert (at * way).sum() == pytest.approx(((ahead - behind) * gz).sum() / 2e-6, rel=1e-5)


def test_a_tables_first_numbers_are_as_wide_as_its_own_two_sides_ask():
    """Xavier's bound of a 3 by 3 table is 1; of all three tables as one it would be 0.58."""
    model = hosted(path(4))
    p, theta = model.init(0), next(x for x in model.spec.layers if x.name == "blocks.0.theta.1")
    drawn = np.stack([model.init(seed)[theta.offset :][: theta.size] for seed in range(40)])
    assert 0.9 < np.abs(drawn).max() <= 1.0
    assert p.shape == (model.spec.size,)


def test_swapped_passes_on_steps_and_not_their_mean_alone():
    """With even attention to steps the printed form cannot tell two orders of them apart."""
    h, even = DRAW.normal(size=(1, 4, 3, 4)), {"temporal.v": 0.0}
    outs = []
    for swapped in (False, True):
        block = SpatioTemporalBlock(4, 3, 4, order=3, swapped=swapped).double()
        torch.manual_seed(0)
        for name, parameter in block.named_parameters():
            nn.init.normal_(parameter)
            parameter.data *= even.get(name, 1.0)
        around = Surroundings(torch.ones(4, dtype=torch.bool), f64(chebyshev(path(4), 3)))
        block.spatial.v.data *= 0.0
        one, other = (block(f64(x), around) for x in (h, h[..., ::-1].copy()))
        outs.append(torch.allclose(one, other))
    assert outs == [True, False]


def test_blocks_of_examples_give_the_same():
    whole, apart = (
        hosted(path(4)),
        TorchGraphModel(hosted(path(4)).make, path(4), dtype="float64", block=2),
    )
    h, gz = DRAW.normal(size=(2, 5, 4, 3, 4))
    p = whole.init(1)
    one = whole.forward(p, h, ALL), *whole.pullback(p, h, ALL, gz)
    other = apart.forward(p, h, ALL), *apart.pullback(p, h, ALL, gz)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_an_absent_slot_is_never_read_and_moves_nothing():
    model, present = hosted(path(4)), np.array([True, True, False, True])
    h, gz = DRAW.normal(size=(2, 2, 4, 3, 4))
    p = model.init(1)
    before = model.forward(p, h, present), *model.pullback(p, h, present, gz)
    h[:, 2] = gz[:, 2] = np.nan
    after = model.forward(p, h, present), *model.pullback(p, h, present, gz)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not before[0][:, 2].any()
    assert not before[1][:, 2].any()


def test_room_to_spare_changes_nothing():
    """Three stations in a room for four, with the fourth's numbers taken away: the same."""
    room, small = hosted(path(4)), hosted(path(3))
    p, h = room.init(2), DRAW.normal(size=(2, 4, 3, 4))
    gz, three = DRAW.normal(size=h.shape), np.array([True, True, True, False])
    weights = {x.name: p[x.offset : x.offset + x.size].reshape(x.shape) for x in room.spec.layers}
    cut = [
        weights[x.name][tuple(slice(size) for size in x.shape)].ravel() for x in small.spec.layers
    ]
    q, there = np.concatenate(cut), np.ones(3, np.bool_)
    z = small.forward(q, h[:, :3], there)
    np.testing.assert_allclose(room.forward(p, h, three)[:, :3], z, rtol=0, atol=1e-12)
    wanted, _ = small.pullback(q, h[:, :3], there, gz[:, :3])
    got, _ = room.pullback(p, h, three, gz)
    np.testing.assert_allclose(got[:, :3], wanted, rtol=0, atol=1e-12)


def test_nobody_there_gives_nothing():
    model, nobody = hosted(path(4)), np.zeros(4, np.bool_)
    h, gz = DRAW.normal(size=(2, 2, 4, 3, 4))
    gh, gp = model.pullback(model.init(0), h, nobody, gz)
    assert not model.forward(model.init(0), h, nobody).any()
    assert not gh.any()
    assert not gp.any()


def test_a_seed_draws_the_same_in_either_type():
    one, other = hosted(path(4)), TorchGraphModel(hosted(path(4)).make, path(4))
    assert np.array_equal(one.init(5), one.init(5))
    np.testing.assert_allclose(one.init(5), other.init(5), rtol=0, atol=1e-6)
    assert not np.array_equal(one.init(5), one.init(6))
    assert other.init(5).dtype == np.float32


def test_rows_of_looks_and_columns_of_steps_sum_to_one():
    spatial, temporal = SpatialAttention(4, 3, 5), TemporalAttention(4, 3, 5)
    for parameter in (*spatial.parameters(), *temporal.parameters()):
        nn.init.normal_(parameter)
    h, there = torch.randn(2, 4, 3, 5), torch.tensor([True, False, True, True])
    looks = spatial(h * there[:, None, None], there)
    assert torch.allclose(looks.sum(2), torch.ones(2, 4))
    assert not looks[:, :, 1].any()
    assert torch.allclose(temporal(h).sum(1), torch.ones(2, 5))


def test_surroundings_name_who_is_there():
    around = hosted(path(4))._around(np.array([True, False, True, True]))
    assert isinstance(around, Surroundings)
    assert not around.terms[:, 1].any()
