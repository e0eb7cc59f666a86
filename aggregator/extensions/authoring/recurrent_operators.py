"""Recurrent layers as single operators, for graphs without gradients, and the rules that emit them.

The exported LSTM and GRU take their weights from slices of the flat vector, so freshly trained
parameters need no new graph. Importing this module registers operators and rules.
"""

# ruff: noqa: PLR0917
# (the signatures are torch's own)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aggregator.extensions.authoring.emit import Call, Fill, Result, rule


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


G: Any = torch.ops.gridfed


@rule(G.lstm_layer.default)
def _lstm(call: Call) -> Result:
    return _native(call, "LSTM", (0, 3, 1, 2), 2)


@rule(G.gru_layer.default)
def _gru(call: Call) -> Result:
    return _native(call, "GRU", (1, 0, 2), 1, linear_before_reset=1)


def _native(call: Call, kind: str, gates: tuple[int, ...], states: int, **flags: int) -> Result:
    """Write one layer as its operator, with gates in ONNX's order; zero states are its default."""
    e, hidden = call.emitter, int(call.shape(1)[1])
    w, r, b_in, b_rec = (_reordered(call, 1 + states + i, gates, hidden) for i in range(4))
    bias = e.op("Unsqueeze", e.op("Concat", b_in, b_rec, axis=0), e.ints(0))
    w, r = (e.op("Unsqueeze", m, e.ints(0)) for m in (w, r))
    given = [call.value(1 + i) for i in range(states)]
    starts: list[str] = []
    if any(not (isinstance(v, Fill) and v.value == 0) for v in given):
        starts = ["", *(e.op("Unsqueeze", e.written(v), e.ints(0)) for v in given)]
    results = 1 + states
    out = e.ops(kind, [call.tensor(0), w, r, bias, *starts], results, hidden_size=hidden, **flags)
    return [e.op("Squeeze", out[0], e.ints(1)), *(e.op("Squeeze", s, e.ints(0)) for s in out[1:])]


def _reordered(call: Call, index: int, gates: tuple[int, ...], hidden: int) -> str:
    e, shape = call.emitter, [int(d) for d in call.shape(index)]
    blocks = e.op("Reshape", call.tensor(index), e.ints(len(gates), hidden, *shape[1:]))
    return e.op("Reshape", e.op("Gather", blocks, e.ints(*gates), axis=0), e.ints(*shape))
