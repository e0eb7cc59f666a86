"""``hvp``: Hessian-vector products, without a matrix of second derivatives."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from torch import Tensor
from torch.func import functional_call, grad

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of, trace
from edge_sdk.protocol.contract.manifest import Loss

Curvature = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor]]


def hessian_product(traced: Traced, loss: Loss) -> Curvature:
    """Return ``(p, x, y, v) -> (H v,)``: H has the second derivatives of the batch's loss in p.

    It is the gradient of ``<g(p), v>`` (Pearlmutter 1994): twice the work of a gradient, and its
    memory. At a kink of the loss H is that of the side that autograd takes.
    """

    def of(p: Tensor, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor]:
        along = traced.weights(v)

        def value(weights: dict[str, Tensor]) -> Tensor:
            return loss_of(loss, error_of(functional_call(traced.module, weights, (x,)), y))

        def slope_along(weights: dict[str, Tensor]) -> Tensor:
            slopes = grad(value)(weights)
            return torch.stack([(slopes[name] * along[name]).sum() for name in slopes]).sum()

        curved = grad(slope_along)(traced.weights(p))
        return (torch.cat([curved[name].reshape(-1) for name, _ in traced.layers]),)

    return of


def hvp_graph(traced: Traced, loss: Loss) -> onnx.ModelProto:
    """Export ``p, x, y, v -> hv``."""
    examples = (traced.initial, *traced.example(), traced.initial.flip(0))
    graph = trace(hessian_product(traced, loss), examples, Lowering("twice"), batched=(1, 2))
    return emit(graph, ("p", "x", "y", "v"), ("hv",))
