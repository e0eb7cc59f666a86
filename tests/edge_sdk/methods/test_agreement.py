"""A hundred local steps of the load model end where torch's own modules and optimiser end."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import edge_sdk
from edge_sdk.methods.local_sgd import LocalSgd, fedavg
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.runtime import load_graph
from edge_sdk.shared_math.optim import adam

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

FOLDER = Path(edge_sdk.__file__).parent / "bundles" / "load-lstm"
STEPS, SIZE, LOOKBACK, CHANNELS = 100, 64, 12, 8


class LoadNet(torch.nn.Module):
    """The load model as the paper draws it: two LSTM layers, all their rows, three linear maps."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(CHANNELS, 20, num_layers=2, batch_first=True)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(20 * LOOKBACK, 120),
            torch.nn.PReLU(120),
            torch.nn.Linear(120, 60),
            torch.nn.PReLU(60),
            torch.nn.Linear(60, 1),
        )

    def forward(self, x):
        return self.head(self.lstm(x)[0].flatten(1))


class Synthetic:
    """Windows whose target depends on the inputs, so that there is something to learn."""

    def __init__(self):
        rng = np.random.default_rng(8)
        self.x = rng.uniform(0, 1, (500, LOOKBACK, CHANNELS)).astype(np.float32)
        self.y = np.sin(self.x[:, -1, :2].sum(1, keepdims=True)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def draw(self, rng, size):
        rows = rng.choice(len(self), size, replace=False)
        return Batch(self.x[rows], self.y[rows])


def vector_of(net):
    flat = [param.detach().reshape(-1) for param in net.parameters()]
    return torch.cat(flat).numpy().copy()


def autograd(net):
    """Torch's own gradient as a graph over the flat vector."""

    def gradient(p, x, y):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(p.copy()), net.parameters())
        loss = torch.nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y))
        g = torch.autograd.grad(loss, list(net.parameters()))
        return loss.detach().numpy(), torch.cat([part.reshape(-1) for part in g]).numpy()

    return gradient


def by_torch(net, fresh):
    """Train with torch alone, on the batches that the device would draw."""
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
    lent = lend(net, None)
    for batch in lent.batches(STEPS, 1, fresh=fresh):
        opt.zero_grad()
        x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
        torch.nn.functional.mse_loss(net(x), y).backward()
        opt.step()
    return vector_of(net)


def lend(net, graph):
    spec = ParamSpec.of((name, tuple(param.shape)) for name, param in net.named_parameters())
    windows = Synthetic()
    return TrainingContext(
        "m", spec, {"gradient": graph}, lambda: windows, SIZE, partial(keyed, 1, "m")
    )


@pytest.fixture
def net():
    torch.manual_seed(3)
    return LoadNet()


def check(net, graph, minibatch):
    start = vector_of(net)
    half = fedavg(lend(net, graph), LocalSgd(optimiser=adam, rate=1e-3, minibatch=minibatch))
    task = Task("_all", 1, "train", values={"steps": STEPS}, arrays={"w": start})
    state, (update,) = half.apply(half.init(start), task)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), net.parameters())
    peer = by_torch(net, minibatch == "fresh")
    moved = np.linalg.norm(peer - start)
    assert moved > 0.1
    assert np.linalg.norm(state.p - peer) / np.linalg.norm(peer) < 1e-4
    assert np.linalg.norm(update.vector - (start - peer)) / moved < 1e-4


def test_the_load_model_has_the_parameters_of_the_paper(net):
    assert len(vector_of(net)) == 42_181


@pytest.mark.parametrize("minibatch", ["fixed", "fresh"])
def test_steps_over_torchs_own_gradients(net, minibatch):
    check(net, autograd(net), minibatch)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the load bundle is not in this checkout")
def test_steps_over_the_shipped_gradient_graph(net):
    manifest = Manifest.parse((FOLDER / "manifest.json").read_bytes())
    shapes = [tuple(param.shape) for param in net.parameters()]
    assert [dims for _, dims in manifest.layers] == shapes
    graph = load_graph((FOLDER / manifest.graphs["gradient"].file).read_bytes())
    check(net, graph, "fresh")
