"""Graphs of a split model: the device's computations around the server's graph model.

All of them are functions of the whole flat vector, and every gradient in ``p`` has its whole
length: components outside of a graph are zero, so that the parts of one step are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vjp

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of, trace
from edge_sdk.protocol.contract.manifest import (
    AIDED_FORECAST,
    DECODE,
    ENCODE,
    ENCODE_VJP,
    SIGNATURES,
    Loss,
)

Function = Callable[..., tuple[Tensor, ...]]
Weights = dict[str, Tensor]


def activation(traced: Traced) -> tuple[int, int]:
    """Return F and L of the activations ``[B, F, L]``.

    Raises:
        ExportError: The module has no ``encoder`` and ``decoder``, or they do not fit together.
    """
    encoder, decoder = (_half(traced, name) for name in ("encoder", "decoder"))
    with torch.no_grad():
        h = encoder(torch.zeros(3, *traced.sample))
        if h.dim() != 3 or len(h) != 3:
            raise ExportError(
                f"the encoder must return [batch, F, L]; for a batch of 3 it returned "
                f"{list(h.shape)}"
            )
        out = decoder(h, torch.zeros_like(h))
    if tuple(out.shape[1:]) != traced.forecast:
        raise ExportError(f"the decoder must return {[3, *traced.forecast]}, not {list(out.shape)}")
    return int(h.shape[1]), int(h.shape[2])


def encode(traced: Traced) -> Function:
    """Return ``(p, x) -> h``."""
    run = _runs(traced, "encoder")
    return lambda p, x: (run(_of(traced, p, "encoder"), x),)


def encode_vjp(traced: Traced) -> Function:
    """Return ``(p, x, gh) -> g``: the vector-Jacobian product of ``gh`` in p."""
    run = _runs(traced, "encoder")

    def of(p: Tensor, x: Tensor, gh: Tensor) -> tuple[Tensor]:
        pull = vjp(lambda weights: run(weights, x), _of(traced, p, "encoder"))[1]
        return (_whole(traced, p, "encoder", pull(gh)[0]),)

    return of


def decode(traced: Traced, loss: Loss) -> Function:
    """Return ``(p, h, z, y) -> (loss, g, gh, gz)``; gh is that of the direct path alone."""
    run = _runs(traced, "decoder")

    def of(p: Tensor, h: Tensor, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def value_of(weights: Weights, h: Tensor, z: Tensor) -> Tensor:
            return loss_of(loss, error_of(run(weights, h, z), y))

        back = grad_and_value(value_of, argnums=(0, 1, 2))
        (grads, gh, gz), value = back(_of(traced, p, "decoder"), h, z)
        return value, _whole(traced, p, "decoder", grads), gh, gz

    return of


def aided_forecast(traced: Traced) -> Function:
    """Return ``(p, x, z) -> yhat``."""
    return lambda p, x, z: (functional_call(traced.module, traced.weights(p), (x, z)),)


def encode_graph(traced: Traced, _loss: Loss) -> onnx.ModelProto:
    """Export ``p, x -> h``, with recurrent layers as single operators."""
    return _exported(ENCODE, traced, encode(traced), "native", [traced.example()[0]])


def encode_vjp_graph(traced: Traced, _loss: Loss) -> onnx.ModelProto:
    """Export ``p, x, gh -> g``, with recurrent layers unrolled."""
    x, h, _, _ = example(traced)
    return _exported(ENCODE_VJP, traced, encode_vjp(traced), "unrolled", [x, h])


def decode_graph(traced: Traced, loss: Loss) -> onnx.ModelProto:
    """Export ``p, h, z, y -> loss, g, gh, gz``, with recurrent layers unrolled."""
    _, h, z, y = example(traced)
    return _exported(DECODE, traced, decode(traced, loss), "unrolled", [h, z, y])


def aided_forecast_graph(traced: Traced, _loss: Loss) -> onnx.ModelProto:
    """Export ``p, x, z -> yhat``, with recurrent layers as single operators."""
    x, _, z, _ = example(traced)
    return _exported(AIDED_FORECAST, traced, aided_forecast(traced), "native", [x, z])


def example(traced: Traced, batch: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw ``x``, ``h``, ``z`` and ``y``; the latter three as inputs of a decoder."""
    x, y = traced.example(batch, seed=0 if batch is None else batch)
    shape = (len(x), *activation(traced))
    draw = torch.Generator().manual_seed(len(x))
    return x, torch.rand(shape, generator=draw), torch.rand(shape, generator=draw), y


def _exported(
    name: str, traced: Traced, function: Function, recurrent: str, examples: Sequence[Tensor]
) -> onnx.ModelProto:
    inputs, outputs = SIGNATURES[name]
    feeds = (traced.initial, *examples)
    graph = trace(function, feeds, Lowering(recurrent), batched=range(1, len(feeds)))
    return emit(graph, inputs, outputs)


def _half(traced: Traced, name: str) -> nn.Module:
    found = getattr(traced.module, name, None)
    if not isinstance(found, nn.Module):
        raise ExportError(f"the module has no {name!r}: a split model has encoder and decoder")
    return found


def _runs(traced: Traced, name: str) -> Callable[..., Tensor]:
    half = _half(traced, name)

    def run(weights: Weights, *inputs: Tensor) -> Tensor:
        out: Tensor = functional_call(half, weights, inputs)
        return out

    return run


def _of(traced: Traced, p: Tensor, half: str) -> Weights:
    named = traced.weights(p).items()
    return {x.removeprefix(f"{half}."): w for x, w in named if x.startswith(f"{half}.")}


def _whole(traced: Traced, p: Tensor, half: str, grads: Weights) -> Tensor:
    parts = [
        grads[name.removeprefix(f"{half}.")].reshape(-1)
        if name.startswith(f"{half}.")
        else p.new_zeros(size)
        for name, size in traced.sizes
    ]
    return torch.cat(parts)
