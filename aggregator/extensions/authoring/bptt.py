"""LSTM and GRU layers with explicit backward passes, which halve the traced nodes of autograd.

The time of a gradient graph is bound by its nodes at small batches (about 1 microsecond a node), so
the backward pass covers whole sequences where it can, and only what depends on the previous step is
unrolled. Layers are time-major: x ``[T, B, I]``, states ``[B, H]``.
"""

# ruff: noqa: PLR0917
# (the signatures are torch's own)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Sequence3 = tuple[Tensor, Tensor, Tensor]


def lstm_layer(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> Sequence3:
    """Run one LSTM layer. Return all outputs ``[T, B, H]``, the last h and the last c ``[B, H]``.

    Gates are in torch's order: input, forget, cell, output.
    """
    return lstm_steps(x, h0, c0, w_ih, w_hh, b_ih + b_hh)


def lstm_steps(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor
) -> Sequence3:
    """Run ``lstm_layer`` with one bias for all rows ``[4H]`` or one for each ``[T*B, 4H]``."""
    steps, batch, _ = x.shape
    hidden = w_hh.shape[1]
    hs, c, *_ = _Lstm.apply(x, h0, c0, w_ih, w_hh, bias)  # type: ignore[no-untyped-call]
    out = hs.view(steps, batch, hidden)
    return out, out[-1], c


def gru_layer(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one GRU layer. Return all outputs ``[T, B, H]`` and the last h ``[B, H]``.

    Gates are in torch's order: reset, update, new; the reset gate is applied after the product. A
    bias may be one for all rows ``[3H]`` or one for each ``[T*B, 3H]``.
    """
    steps, batch, _ = x.shape
    hidden = w_hh.shape[1]
    hs, *_ = _Gru.apply(x, h0, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-untyped-call]
    out = hs.view(steps, batch, hidden)
    return out, out[-1]


class _Lstm(torch.autograd.Function):
    """LSTM function. Rows of saved arrays are time-major: step t is rows ``t*B`` to ``(t+1)*B``."""

    @staticmethod
    def forward(
        x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor
    ) -> tuple[Tensor, ...]:
        steps, batch, _ = x.shape
        hidden = w_hh.shape[1]
        twice = _blocks(
            w_hh, (1.0, 1.0, 2.0, 1.0)
        )  # tanh(z) = 2*sigmoid(2z) - 1: one sigmoid for all
        rows = x.reshape(steps * batch, x.shape[2])
        inputs = _rows(torch.addmm(bias * twice, rows, (w_ih * twice[:, None]).t()), batch)
        w_t = (w_hh * twice[:, None]).t()
        gates, cells, squashed, outs = _lists(4)
        h, c = h0, c0
        for t in range(steps):
            s = torch.sigmoid(torch.addmm(inputs[t], h, w_t))
            i, f, g, o = torch.split(s, hidden, 1)
            c = f * c + i * (2 * g - 1)
            tc = torch.tanh(c)
            h = o * tc
            for kept, value in zip((gates, cells, squashed, outs), (s, c, tc, h), strict=True):
                kept.append(value)
        return torch.cat(outs), c.clone(), torch.cat(gates), torch.cat(cells), torch.cat(squashed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:  # noqa: ANN401 - torch's own type
        x, h0, c0, w_ih, w_hh, bias = inputs
        hs, _, gates, cells, squashed = output
        ctx.by_row = bias.dim() == 2
        ctx.mark_non_differentiable(gates, cells, squashed)
        ctx.save_for_backward(x, h0, c0, w_ih, w_hh, hs, gates, cells, squashed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hs: Tensor, d_last: Tensor, *_: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401 - torch's own type
        x, h0, c0, w_ih, w_hh, hs, gates, cells, squashed = ctx.saved_tensors
        steps, batch, _ = x.shape
        hidden, before = w_hh.shape[1], (steps - 1) * batch
        i, f, g, o = torch.split(gates, hidden, 1)
        previous = torch.cat([c0, cells[:before]])
        # d(gate before its sigmoid) = local * (dc, dc, dc, dh); the cell gate's 2 squared is 4
        local = torch.cat([2 * g - 1, previous, i, squashed], 1) * gates * (1 - gates)
        by_step = _rows(local * _blocks(w_hh, (1.0, 1.0, 4.0, 1.0)), batch)
        through, kept = _rows(o * (1 - squashed * squashed), batch), _rows(f, batch)
        outer = _rows(d_hs, batch)
        pre: list[Tensor] = []
        dc = d_last
        for t in reversed(range(steps)):
            dh = torch.addmm(outer[t], pre[-1], w_hh) if pre else outer[t]
            dc = dh * through[t] + dc
            pre.append(torch.cat([dc, dc, dc, dh], 1) * by_step[t])
            dc = dc * kept[t]
        d_pre = torch.cat(pre[::-1])
        return (
            (d_pre @ w_ih).view(steps, batch, x.shape[2]),
            pre[-1] @ w_hh,
            dc,
            d_pre.t() @ x.reshape(steps * batch, x.shape[2]),
            d_pre[batch:].t() @ hs[:before] + pre[-1].t() @ h0,
            d_pre if ctx.by_row else d_pre.sum(0),
        )


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, ...]:
        steps, batch, _ = x.shape
        hidden = w_hh.shape[1]
        inputs = torch.addmm(b_ih, x.reshape(steps * batch, x.shape[2]), w_ih.t())
        gated, new = torch.split(inputs, [2 * hidden, hidden], 1)
        in_rz, in_n = _rows(gated, batch), _rows(new, batch)
        w_t = w_hh.t()
        biases = _rows(b_hh, batch) if b_hh.dim() == 2 else (b_hh,) * steps
        gates, news, recurrents, outs = _lists(4)
        h = h0
        for t in range(steps):
            from_rz, from_n = torch.split(torch.addmm(biases[t], h, w_t), [2 * hidden, hidden], 1)
            rz = torch.sigmoid(in_rz[t] + from_rz)
            r, z = torch.split(rz, hidden, 1)
            n = torch.tanh(in_n[t] + r * from_n)
            h = n + z * (h - n)
            for kept, value in zip(
                (gates, news, recurrents, outs), (rz, n, from_n, h), strict=True
            ):
                kept.append(value)
        return torch.cat(outs), torch.cat(gates), torch.cat(news), torch.cat(recurrents)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:  # noqa: ANN401 - torch's own type
        x, h0, w_ih, w_hh, *biases = inputs
        hs, gates, news, recurrents = output
        ctx.by_row = [bias.dim() == 2 for bias in biases]
        ctx.mark_non_differentiable(gates, news, recurrents)
        ctx.save_for_backward(x, h0, w_ih, w_hh, hs, gates, news, recurrents)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hs: Tensor, *_: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401 - torch's own type
        x, h0, w_ih, w_hh, hs, gates, news, recurrents = ctx.saved_tensors
        steps, batch, _ = x.shape
        hidden, before = w_hh.shape[1], (steps - 1) * batch
        r, z = torch.split(gates, hidden, 1)
        previous = torch.cat([h0, hs[:before]])
        to_n = (1 - z) * (1 - news * news)
        to_z = (previous - news) * z * (1 - z)
        to_r = to_n * recurrents * r * (1 - r)
        by_input = torch.cat([to_r, to_z, to_n], 1)
        by_state = torch.cat([to_r, to_z, to_n * r], 1)
        local, kept, outer = _rows(by_state, batch), _rows(z, batch), _rows(d_hs, batch)
        seen: list[Tensor] = []
        dh = outer[-1]
        for t in reversed(range(steps)):
            thrice = torch.cat([dh, dh, dh], 1)
            seen.append(thrice)
            carried = torch.addmm(dh * kept[t], thrice * local[t], w_hh)
            dh = outer[t - 1] + carried if t else carried
        dhs = torch.cat(seen[::-1])
        d_in, d_state = dhs * by_input, dhs * by_state
        return (
            (d_in @ w_ih).view(steps, batch, x.shape[2]),
            dh,
            d_in.t() @ x.reshape(steps * batch, x.shape[2]),
            d_state[batch:].t() @ hs[:before] + d_state[:batch].t() @ h0,
            *(d if rows else d.sum(0) for d, rows in zip((d_in, d_state), ctx.by_row, strict=True)),
        )


def _rows(joined: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Cut time-major rows into steps of ``batch`` rows."""
    steps: tuple[Tensor, ...] = torch.split(joined, batch)
    return steps


def _lists(count: int) -> tuple[list[Tensor], ...]:
    return tuple([] for _ in range(count))


def _blocks(like: Tensor, factors: tuple[float, ...]) -> Tensor:
    """Return one factor a gate, repeated over its units: shape ``[len(factors) * H]``."""
    return torch.cat([like.new_full((like.shape[1],), factor) for factor in factors])
