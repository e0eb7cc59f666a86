"""Five messages and a server step have the gradients of one machine that holds everything."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

import numpy as np
from torch.func import functional_call

from aggregator.extensions.authoring.split import activation, decode, encode, encode_vjp
from aggregator.extensions.authoring.split_models import (
    ConvDecoder,
    ConvEncoder,
    GruDecoder,
    GruEncoder,
    Halves,
    LstmEncoder,
)
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of
from aggregator.extensions.papers.graph.factory import GraphSection, bind
from edge_sdk.protocol.contract.manifest import Loss

pytestmark = pytest.mark.torch

PINBALL = Loss("pinball", levels=(0.1, 0.5, 0.9))
N, B, LOOKBACK, CHANNELS = 4, 5, 6, 3
DEVICES = {
    "conv": lambda: Halves(ConvEncoder(CHANNELS, 4), ConvDecoder(4, LOOKBACK, 7, 2, 3)),
    "lstm": lambda: Halves(LstmEncoder(CHANNELS, 4), ConvDecoder(4, LOOKBACK, 7, 2, 3)),
    "gru": lambda: Halves(GruEncoder(CHANNELS, 4), GruDecoder(4, 2, 3)),
}
SERVERS = ("pfgl", "conv2d", "graphnet")


def station(kind, seed):
    torch.manual_seed(seed)
    traced = Traced(DEVICES[kind](), (LOOKBACK, CHANNELS), 2, 3)
    traced.module.double()
    return traced


def numbers(seed, *shape):
    return np.random.Generator(np.random.Philox(seed)).normal(size=shape)


def split_step(stations, model, p, batch, *, order=range(N), through=1.0):
    """What crosses the wire, in the order of arrival: (h) (z) (gz) (gh); all in numpy."""
    x, y = batch
    order = list(order)
    vectors = {i: station.initial.double() for i, station in enumerate(stations)}
    h = np.zeros((B, N, *activation_of(stations)))
    for i in order:
        h[:, i] = encode(stations[i])(vectors[i], torch.tensor(x[i]))[0].detach().numpy()
    here = np.ones(N, np.bool_)
    z, gz, parts, losses = model.forward(p, h, here), np.zeros_like(h), {}, {}
    for i in reversed(order):
        found = decode(stations[i], PINBALL)(
            vectors[i], torch.tensor(h[:, i]), torch.tensor(z[:, i]), torch.tensor(y[i])
        )
        losses[i], g, direct, upstream = (part.detach().numpy() for part in found)
        parts[i], gz[:, i] = (g, direct), upstream
    gh, gp = model.pullback(p, h, here, gz)
    grads = {}
    for i in order:
        g, direct = parts[i]
        back = torch.tensor(direct + through * gh[:, i])
        (rest,) = encode_vjp(stations[i])(vectors[i], torch.tensor(x[i]), back)
        grads[i] = g + rest.detach().numpy()
    return losses, grads, gp


def activation_of(stations):
    stations[0].module.float()
    shape = activation(stations[0])
    stations[0].module.double()
    return shape


def central_step(stations, model, p, batch):
    """One machine, one autograd graph, the sum of all stations' losses."""
    x, y = batch
    flat = torch.tensor(p, requires_grad=True)
    h = torch.stack([s.module.encoder(torch.tensor(x[i])) for i, s in enumerate(stations)], 1)
    around = model._around(np.ones(N, np.bool_))
    z = functional_call(model._net, model._weights(flat), (h, around))
    losses = [
        loss_of(PINBALL, error_of(s.module.decoder(h[:, i], z[:, i]), torch.tensor(y[i])))
        for i, s in enumerate(stations)
    ]
    torch.stack(losses).sum().backward()
    grads = [
        torch.cat([q.grad.reshape(-1) for q in s.module.parameters()]).numpy() for s in stations
    ]
    return [value.item() for value in losses], grads, flat.grad.numpy()


BATCH = numbers(1, N, B, LOOKBACK, CHANNELS), numbers(2, N, B, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_split_is_central(device, server, order):
    stations = [station(device, seed) for seed in range(N)]
    section = GraphSection(server, capacity=N, dtype="float64")
    model = bind(section, activation_of(stations)).model
    p = model.init(7)
    losses, grads, gp = split_step(stations, model, p, BATCH, order=order)
    wanted_losses, wanted, wanted_p = central_step(stations, model, p, BATCH)
    np.testing.assert_allclose(gp, wanted_p, rtol=0, atol=1e-10)
    assert np.abs(wanted_p).max() > 1e-3  # the server's part is really there
    for i in range(N):
        np.testing.assert_allclose(grads[i], wanted[i], rtol=0, atol=1e-10)
        assert losses[i] == pytest.approx(wanted_losses[i], abs=1e-12)


def test_the_direct_path_alone_misses_what_goes_through_the_graph():
    stations = [station("conv", seed) for seed in range(N)]
    model = bind(GraphSection(capacity=N, dtype="float64"), activation_of(stations)).model
    p = model.init(7)
    _, skipped, _ = split_step(stations, model, p, BATCH, through=0.0)
    _, wanted, _ = central_step(stations, model, p, BATCH)
    assert all(np.abs(skipped[i] - wanted[i]).max() > 1e-6 for i in range(N))
