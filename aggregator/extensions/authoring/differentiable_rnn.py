"""LSTM and GRU layers as plain operators, which autograd can differentiate repeatedly.

The explicit backward passes of ``bptt`` are not differentiable themselves: their saved arrays of
the forward pass depend on nothing in autograd. A graph with the gradient of a gradient is traced
from these layers instead, at two to three times the nodes.
"""

# ruff: noqa: PLR0917
# (the signatures are torch's own)

from __future__ import annotations

import torch
from torch import Tensor


def lstm_layer(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one time-major LSTM layer; arguments and results as ``bptt.lstm_layer``."""
    hidden = w_hh.shape[1]
    h, c, outs = h0, c0, []
    for inputs in _entering(x, w_ih, b_ih + b_hh):
        i, f, g, o = torch.split(torch.addmm(inputs, h, w_hh.t()), hidden, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outs.append(h)
    return torch.stack(outs), h, c


def gru_layer(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one time-major GRU layer; arguments and results as ``bptt.gru_layer``."""
    hidden = w_hh.shape[1]
    h, outs = h0, []
    for inputs in _entering(x, w_ih, b_ih):
        in_r, in_z, in_n = torch.split(inputs, hidden, 1)
        from_r, from_z, from_n = torch.split(torch.addmm(b_hh, h, w_hh.t()), hidden, 1)
        n = torch.tanh(in_n + torch.sigmoid(in_r + from_r) * from_n)
        h = n + torch.sigmoid(in_z + from_z) * (h - n)
        outs.append(h)
    return torch.stack(outs), h


def _entering(x: Tensor, w_ih: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Multiply the inputs of all steps at once: one ``[B, gates * H]`` a step."""
    steps, batch, width = x.shape
    rows = torch.addmm(bias, x.reshape(steps * batch, width), w_ih.t())
    split: tuple[Tensor, ...] = torch.split(rows, batch)
    return split
