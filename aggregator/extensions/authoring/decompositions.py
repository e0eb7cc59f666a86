"""Lower operators that trace badly: recurrent layers, convolutions, attention.

A user's module calls ``torch.lstm`` or ``torch.conv1d`` somewhere below its ``forward``; inside
``with Lowering():`` such calls run an equal formula of few, plain operators instead. The module
does not change, and its parameters keep their names.
"""

# ruff: noqa: PLR0917, ANN401, ARG001, FBT001, FBT002
# (the signatures are torch's own)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from aggregator.extensions.authoring import bptt, recurrent_operators
from aggregator.extensions.authoring.export_spec import ExportError

Lowered = Callable[..., Any]


class Lowering(TorchFunctionMode):
    """Mode in which functions with a lowering run it.

    Args:
        recurrent: ``unrolled``, for gradients; ``twice``, for gradients of gradients; or
            ``native``, one operator a layer, for forecasts.
    """

    def __init__(self, recurrent: str) -> None:
        super().__init__()
        lstm, gru = _LAYERS[recurrent]
        self._rules: Mapping[Any, Lowered] = {
            **_RULES,
            torch.lstm: partial(lstm_stack, lstm),
            torch.gru: partial(gru_stack, gru),
        }

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the lowering of a function that has one, else the function."""
        return self._rules.get(func, func)(*args, **(kwargs or {}))


def lstm_stack(
    layer: Lowered, x: Tensor, hx: object, params: object, *rest: Any
) -> tuple[Tensor, ...]:
    """Run ``torch.lstm``, layer by layer."""
    if not isinstance(hx, (tuple, list)):
        raise ExportError("packed sequences cannot be exported: every window has the same length")
    out, states = _stack(layer, x, list(zip(*hx, strict=True)), params, *rest)
    return out, *(torch.stack(state) for state in zip(*states, strict=True))


def gru_stack(
    layer: Lowered, x: Tensor, hx: Tensor, params: object, *rest: Any
) -> tuple[Tensor, ...]:
    """Run ``torch.gru``, layer by layer."""
    if not isinstance(params, (tuple, list)):
        raise ExportError("packed sequences cannot be exported: every window has the same length")
    out, states = _stack(layer, x, [(h,) for h in hx], params, *rest)
    return out, torch.stack([state for (state,) in states])


def _stack(
    layer: Lowered,
    x: Tensor,
    start: list[tuple[Tensor, ...]],
    params: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Run layers and directions one by one, as ``nn.LSTM`` documents their order."""
    ways, each = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != layers * ways * each:
        raise ExportError("projections (proj_size) of a recurrent layer cannot be exported")
    rows = x.transpose(0, 1) if batch_first else x
    ends: list[tuple[Tensor, ...]] = []
    for depth in range(layers):
        outs = []
        for way in range(ways):
            k = depth * ways + way
            weights = _with_biases(params[k * each : (k + 1) * each])
            out, *end = layer(rows.flip(0) if way else rows, *start[k], *weights)
            outs.append(out.flip(0) if way else out)
            ends.append(tuple(end))
        rows = torch.cat(outs, 2) if bidirectional else outs[0]
    return (rows.transpose(0, 1) if batch_first else rows), ends


def _with_biases(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(weights) == 4:
        return weights
    zero = weights[1].new_zeros(weights[1].shape[0])
    return (*weights, zero, zero)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x
    out = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return out.view(*x.shape[:-1], weight.shape[0]) if x.dim() != 2 else out


def _conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    width, step, gap = weight.shape[2], _one(stride), _one(dilation)
    total = gap * (width - 1)
    if isinstance(padding, str):
        left = total // 2 if padding == "same" else 0
        right = total - left if padding == "same" else 0
    else:
        left = right = _one(padding)
    x = functional.pad(x, (left, right)) if left or right else x
    length = (x.shape[2] - total - 1) // step + 1
    outs = [
        _conv_group(piece, w, length, step, gap)
        for piece, w in zip(x.chunk(groups, 1), weight.chunk(groups), strict=True)
    ]
    out = torch.cat(outs, 2) if groups > 1 else outs[0]
    return (out if bias is None else out + bias).transpose(1, 2)


def _conv_group(x: Tensor, weight: Tensor, length: int, step: int, gap: int) -> Tensor:
    outputs, inputs, width = weight.shape
    reach = (length - 1) * step + 1
    taps = [x[:, :, k * gap : k * gap + reach : step] for k in range(width)]
    columns = torch.cat(taps, 1).transpose(1, 2).reshape(-1, width * inputs)
    flat = weight.transpose(1, 2).reshape(outputs, width * inputs)
    return (columns @ flat.t()).view(x.shape[0], length, outputs)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    (up, left), (high, wide) = _pair(padding), weight.shape[2:]
    if _pair(stride) != (1, 1) or _pair(dilation) != (1, 1) or groups != 1:
        raise ExportError("torch.conv2d: only stride 1, dilation 1 and one group can be exported")
    x = functional.pad(x, (left, left, up, up))
    rows, columns = x.shape[2] - high + 1, x.shape[3] - wide + 1
    taps = [x[:, :, i : i + rows, j : j + columns] for i in range(high) for j in range(wide)]
    flat = torch.cat(taps, 1).permute(0, 2, 3, 1).reshape(-1, high * wide * x.shape[1])
    table = weight.permute(0, 2, 3, 1).reshape(weight.shape[0], high * wide * x.shape[1])
    out = (flat @ table.t()).view(x.shape[0], rows, columns, weight.shape[0])
    return (out if bias is None else out + bias).permute(0, 3, 1, 2)


def _pair(value: Any) -> tuple[int, int]:
    one, other = value if isinstance(value, (list, tuple)) else (value, value)
    return int(one), int(other)


def _pooled(x: Tensor, kernel: Any, stride: Any, padding: Any, fill: float) -> list[Tensor]:
    width = _one(kernel)
    step = _one(stride) if stride not in (None, (), []) else width
    around = _one(padding)
    x = functional.pad(x, (around, around), value=fill) if around else x
    reach = ((x.shape[2] - width) // step) * step + 1
    return [x[:, :, k : k + reach : step] for k in range(width)]


def _avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    if ceil_mode or not count_include_pad:
        raise ExportError("average pooling: only ceil_mode=False with count_include_pad=True")
    taps = _pooled(x, kernel_size, stride, padding, 0.0)
    return reduce(torch.add, taps) * (1 / len(taps))


def _max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    if ceil_mode or _one(dilation) != 1:
        raise ExportError("max pooling: only ceil_mode=False and dilation=1")
    taps = _pooled(x, kernel_size, stride, padding, -3.0e38)
    return reduce(lambda best, new: torch.where(new > best, new, best), taps)


def _adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    parts = _one(output_size)
    if x.shape[2] % parts:
        raise ExportError("adaptive pooling: the length must be a multiple of the output size")
    return x.reshape(x.shape[0], x.shape[1], parts, x.shape[2] // parts).mean(3)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute ``softmax(q k' * scale + mask) v`` over one joint batch of examples and heads."""
    if enable_gqa:
        raise ExportError("grouped-query attention cannot be exported")
    rows, columns, width = query.shape[-2], key.shape[-2], query.shape[-1]
    factor = 1 / math.sqrt(width) if scale is None else scale
    q, k, v = (t.reshape(-1, t.shape[-2], t.shape[-1]) for t in (query, key, value))
    scores = torch.bmm(q * factor, k.transpose(1, 2)).view(*query.shape[:-1], columns)
    if is_causal:
        attn_mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, scores.new_full((), -1e30))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1).view(-1, rows, columns)
    return torch.bmm(weights, v).view(*query.shape[:-1], value.shape[-1])


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Project, attend, project: inputs ``[L, B, E]``, as ``F.multi_head_attention_forward``."""
    if bias_k is not None or add_zero_attn or key_padding_mask is not None:
        raise ExportError("attention: no bias_kv, no add_zero_attn, no key_padding_mask")
    weights = (
        (q_proj_weight, k_proj_weight, v_proj_weight)
        if in_proj_weight is None
        else in_proj_weight.chunk(3)
    )
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        _linear(t, w, b).view(t.shape[0], t.shape[1], num_heads, -1).permute(1, 2, 0, 3)
        for t, w, b in zip((query, key, value), weights, biases, strict=True)
        if w is not None
    )
    out = _attention(q, k, v, attn_mask).permute(2, 0, 1, 3)
    joined = out.reshape(query.shape[0], query.shape[1], -1)
    return _linear(joined, out_proj_weight, out_proj_bias), None


def _group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    out = ((grouped - mean) * torch.rsqrt(variance + eps)).view(x.shape)
    channels = (x.shape[1], *[1] * (x.dim() - 2))
    out = out if weight is None else out * weight.view(channels)
    return out if bias is None else out + bias.view(channels)


def _max_pool1d_of_module(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if kwargs.pop("return_indices", False):
        raise ExportError("max pooling: indices cannot be exported")
    return _max_pool1d(x, *args, **kwargs)


def _one(value: Any) -> int:
    return int(value[0] if isinstance(value, (tuple, list)) else value)


# Gradients of gradients are traced from these layers, at two to three times the nodes: the saved arrays of
# the explicit backward passes of ``bptt`` depend on nothing in autograd.


def differentiable_lstm(
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


def differentiable_gru(
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


_LAYERS: Mapping[str, tuple[Lowered, Lowered]] = {
    "unrolled": (bptt.lstm_layer, bptt.gru_layer),
    "twice": (differentiable_lstm, differentiable_gru),
    "native": (recurrent_operators.lstm_layer, recurrent_operators.gru_layer),
}
_RULES: dict[Any, Lowered] = {
    functional.linear: _linear,
    torch.conv1d: _conv1d,
    torch.conv2d: _conv2d,
    functional.group_norm: _group_norm,
    torch.avg_pool1d: _avg_pool1d,
    functional.avg_pool1d: _avg_pool1d,
    torch.max_pool1d: _max_pool1d,
    functional.max_pool1d: _max_pool1d_of_module,
    functional.multi_head_attention_forward: _multi_head_attention,
    torch.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    functional.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    functional.scaled_dot_product_attention: _attention,
}
