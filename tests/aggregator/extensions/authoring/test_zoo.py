"""Modules as users write them go through the exporter and agree with torch at every batch size."""

# ruff: noqa: E402 - without torch there is nothing to import

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

import numpy as np
from torch import nn
from torch.nn import functional

from aggregator.extensions.authoring.trace import Traced
from edge_sdk.protocol.contract.manifest import Loss
from edge_sdk.runtime import load_graph

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLE, HORIZON = (8, 5), 3
BATCHES = (1, 2, 3, 17, 37, 64, 200)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv1d(5, 6, 3, padding="same")
        self.block = nn.Conv1d(6, 6, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(48, HORIZON)

    def forward(self, x):
        h = functional.silu(self.enter(x.transpose(1, 2)))
        h = h + functional.gelu(self.block(h))
        return self.head(self.norm(h.transpose(1, 2)).flatten(1))


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 4, 3, stride=2, padding=1, bias=False)
        self.head = nn.Linear(4, HORIZON)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x.transpose(1, 2))).mean(2))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 6, 3, padding=1)
        self.largest = nn.MaxPool1d(2)
        self.middle = nn.AvgPool1d(3, stride=1, padding=1)
        self.one = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(6, HORIZON)

    def forward(self, x):
        h = self.middle(self.largest(torch.relu(self.conv(x.transpose(1, 2)))))
        return self.head(self.one(h).squeeze(2))


class Attention(nn.Module):
    """Bahdanau over joint time needs no more than this: queries, keys, values, a softmax."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, HORIZON)
        self.register_buffer("place", torch.linspace(0, 1, 8)[:, None], persistent=False)

    def forward(self, x):
        h = self.enter(x) + self.place
        return self.head(self.norm(h + self.attend(h, h, h)[0])[:, -1])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(5, 24)
        self.head = nn.Linear(64, HORIZON)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(out.flatten(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, HORIZON)

    def forward(self, x):
        return self.head(self.layer(self.enter(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(5, 6, **options)
        width = 6 * (2 if options.get("bidirectional") else 1)
        self.first = options.get("batch_first", False)
        self.head = nn.Linear(width, HORIZON)

    def forward(self, x):
        if self.first:
            return self.head(self.cell(x)[0][:, -1])
        return self.head(self.cell(x.transpose(0, 1))[0][-1])


class SequenceToSequence(nn.Module):
    """The decoder starts from the encoder's last state: gradients must pass through both states."""

    def __init__(self):
        super().__init__()
        self.encode = nn.LSTM(5, 6, batch_first=True)
        self.decode = nn.LSTM(1, 6, batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        _, state = self.encode(x)
        out, _ = self.decode(x[:, -HORIZON:, :1], state)
        return self.head(out).squeeze(2)


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(5, 6, 2, batch_first=True)
        self.head = nn.Linear(6, HORIZON)

    def forward(self, x):
        return self.head(self.cell(x)[1][-1])


class Tied(nn.Module):
    """One layer used twice is one slice of the vector."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(40, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, HORIZON)

    def forward(self, x):
        h = torch.tanh(self.enter(x.flatten(1)))
        return self.head(self.middle(torch.tanh(self.middle(h))))


def activated(layer):
    return lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(40, 6), layer, nn.Dropout(0.2), nn.Linear(6, HORIZON)
    )


ZOO = {
    "conv-residual-norm": Residual,
    "conv-strided": Strided,
    "pooled": Pooled,
    "multihead-attention": Attention,
    "scaled-attention": Scaled,
    "transformer-encoder": Encoder,
    "lstm-2-layers": lambda: Recurrent(nn.LSTM, num_layers=2, batch_first=True),
    "lstm-time-major": lambda: Recurrent(nn.LSTM),
    "lstm-bidirectional": lambda: Recurrent(nn.LSTM, bidirectional=True, batch_first=True),
    "gru-2-layers": lambda: Recurrent(nn.GRU, num_layers=2, batch_first=True),
    "gru-no-bias": lambda: Recurrent(nn.GRU, bias=False, batch_first=True),
    "gru-last-state": LastState,
    "lstm-seq2seq": SequenceToSequence,
    "tied": Tied,
    "relu": activated(nn.ReLU()),
    "gelu": activated(nn.GELU()),
    "gelu-tanh": activated(nn.GELU("tanh")),
    "silu": activated(nn.SiLU()),
    "tanh": activated(nn.Tanh()),
    "sigmoid": activated(nn.Sigmoid()),
    "elu": activated(nn.ELU()),
    "leaky-relu": activated(nn.LeakyReLU()),
    "prelu": activated(nn.PReLU(6)),
    "prelu-one": activated(nn.PReLU()),
    "softplus": activated(nn.Softplus()),
    "hardtanh": activated(nn.Hardtanh(-0.2, 0.2)),
    "relu6": activated(nn.ReLU6()),
    "softmax": activated(nn.Softmax(1)),
    "log-softmax": activated(nn.LogSoftmax(1)),
    "hardswish": activated(nn.Hardswish()),
    "mish": activated(nn.Mish()),
    "group-norm": activated(nn.GroupNorm(2, 6)),
}


@pytest.mark.parametrize("name", ZOO)
def test_gradient_and_forecast_agree_with_torch(name):
    torch.manual_seed(1)
    traced = Traced(ZOO[name](), SAMPLE, HORIZON)
    loss = Loss("huber", 0.4)
    gradient = load_graph(traced.gradient_graph(loss).SerializeToString())
    forecast = load_graph(traced.forecast_graph().SerializeToString())
    p = traced.initial
    for batch in BATCHES:
        x, y = traced.example(batch, seed=batch)
        x, y = 2 * x - 1, 2 * y - 1
        vector = p.clone().requires_grad_()
        predicted = traced.predict(vector, x)
        value = functional.huber_loss(predicted, y, delta=0.4)
        value.backward()
        got_loss, got = gradient(p=p.numpy(), x=x.numpy(), y=y.numpy())
        wanted = vector.grad.numpy()
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max(), batch
        assert abs(float(got_loss) - value.item()) <= 1e-6
        (yhat,) = forecast(p=p.numpy(), x=x.numpy())
        assert np.abs(yhat - predicted.detach().numpy()).max() <= 1e-5, batch
