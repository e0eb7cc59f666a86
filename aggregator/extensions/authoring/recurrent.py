"""Rules for recurrent layers as single operators. Importing this module registers them."""

from __future__ import annotations

from typing import Any

import torch

from aggregator.extensions.authoring import fused_rnn  # noqa: F401 - registers the operators with torch
from aggregator.extensions.authoring.emit import Call, Fill, Result, rule

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
