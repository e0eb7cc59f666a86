"""Whole recurrent layers in numpy. Importing this module registers them.

Source: the ONNX operators LSTM and GRU, operator set 14: gates in the order i, o, f, c and
z, r, h; time first; one direction; the usual activations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.runtime.graph import GraphError
from edge_sdk.runtime.operator_registry import OperatorSite, Run, operator, require_small
from edge_sdk.runtime.ops_elementwise import sigmoid
from edge_sdk.wire.contract.method import Array


def _checked(site: OperatorSite) -> int:
    """Return the width of the layer.

    Raises:
        GraphError: Another direction or layout, or sequences of different lengths.
    """
    if site.attributes["direction"] != "forward" or site.attributes["layout"] or site.has(4):
        raise GraphError("a recurrent layer runs forward, time first, over whole windows only")
    return int(site.attributes["hidden_size"])


@operator("LSTM", hidden_size=None, direction="forward", layout=0)
def _lstm(site: OperatorSite) -> Run:
    """``Y [T, 1, B, H]``, ``Y_h [1, B, H]``, ``Y_c [1, B, H]``."""
    width = _checked(site)
    if site.has(7):
        raise GraphError("LSTM: peepholes are not supported")

    def run(x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
        b, _, h, c = _padded(rest, 4)
        drive, turned = _driven(x, w, b), r[0].T
        h, c = _start(h, x, width), _start(c, x, width)
        hidden = np.empty((len(x), x.shape[1], width), x.dtype)
        for t, moment in enumerate(drive):
            total = moment + h @ turned
            i, o, f = np.split(sigmoid(total[:, : 3 * width]), 3, 1)
            c = f * c + i * np.tanh(total[:, 3 * width :])
            h = hidden[t] = o * np.tanh(c)
        return hidden[:, None], h[None], c[None]

    return run


@operator("GRU", hidden_size=None, direction="forward", layout=0, linear_before_reset=0)
def _gru(site: OperatorSite) -> Run:
    """``Y [T, 1, B, H]``, ``Y_h [1, B, H]``; the reset gate acts after the product or before it."""
    width, after = _checked(site), bool(site.attributes["linear_before_reset"])

    def run(x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
        b, _, h = _padded(rest, 3)
        bias = np.zeros((1, 6 * width), x.dtype) if b is None else b
        drive, recurrent = _plain(x, w[0], bias[0, : 3 * width]), bias[0, 3 * width :]
        h = _start(h, x, width)
        hidden = np.empty((len(x), x.shape[1], width), x.dtype)
        for t, moment in enumerate(drive):
            two = 2 * width
            gates = sigmoid(moment[:, :two] + h @ r[0, :two].T + recurrent[:two])
            z, reset = gates[:, :width], gates[:, width:]
            if after:
                pulled = reset * (h @ r[0, two:].T + recurrent[two:])
            else:
                pulled = (reset * h) @ r[0, two:].T + recurrent[two:]
            h = hidden[t] = (1 - z) * np.tanh(moment[:, two:] + pulled) + z * h
        return hidden[:, None], h[None]

    return run


def _padded(given: Sequence[Array | None], count: int) -> list[Array | None]:
    """Return ``count`` optional inputs: bias, lengths, first states."""
    return [*given, *[None] * count][:count]


def _driven(x: Array, w: Array, b: Array | None) -> Array:
    """Return the window's contribution to every gate, ``[T, B, gates * H]``, with both biases."""
    rows = w.shape[1]
    return _plain(x, w[0], 0 if b is None else b[0, :rows] + b[0, rows:])


def _plain(x: Array, w: Array, bias: Array | int) -> Array:
    """Return one product for the whole window instead of one per step."""
    require_small((*x.shape[:2], len(w)))
    flat = np.ascontiguousarray(x).reshape(-1, x.shape[2])
    return np.asarray(flat @ w.T + bias).reshape(*x.shape[:2], -1)


def _start(given: Array | None, x: Array, width: int) -> Array:
    return np.zeros((x.shape[1], width), x.dtype) if given is None else given[0]
