"""Recurrent layers as single operators, for graphs without gradients.

The exported LSTM and GRU take their weights from slices of the flat vector, so freshly trained
parameters need no new graph. Gradients do not flow through them.
"""

# ruff: noqa: PLR0917
# (the signatures are torch's own)

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("gridfed::lstm_layer", mutates_args=())
def lstm_layer(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one time-major LSTM layer; results as ``bptt.lstm_layer``."""
    start, weights = (h0[None], c0[None]), (w_ih, w_hh, b_ih, b_hh)
    out, h, c = torch.lstm(x, start, weights, True, 1, 0.0, False, False, False)
    return out, h[0].clone(), c[0].clone()


@lstm_layer.register_fake
def _(x: Tensor, h0: Tensor, c0: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape[0], x.shape[1], h0.shape[1]), h0.clone(), c0.clone()


@torch.library.custom_op("gridfed::gru_layer", mutates_args=())
def gru_layer(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one time-major GRU layer; results as ``bptt.gru_layer``."""
    weights = (w_ih, w_hh, b_ih, b_hh)
    out, h = torch.gru(x, h0[None], weights, True, 1, 0.0, False, False, False)
    return out, h[0].clone()


@gru_layer.register_fake
def _(x: Tensor, h0: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], x.shape[1], h0.shape[1]), h0.clone()
