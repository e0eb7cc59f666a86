"""``robust_gradient`` and ``hvp``: graphs with second derivatives of the loss."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from torch import Tensor
from torch.func import functional_call, grad

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of, losses_of, trace
from edge_sdk.protocol.contract.manifest import Loss

Robust = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def robust_gradient(traced: Traced, loss: Loss) -> Robust:
    """Return ``(p, x, y, rho) -> (loss, g + rho * grad G, G)``.

    ``G`` is the mean over the batch of the Euclidean norm of the slope of an example's own loss in
    its inputs and targets together, ``|grad_(x,y) l_b|``: the local estimate of the loss's
    Lipschitz constant in the data by which BAFDP bounds the risk over a Wasserstein ball of radius
    rho (its (13) and (16); the paper says only "Lipschitz constant"). It is differentiated again by
    ``p``, exactly. A G of zero has the gradient zero.
    """

    def of(p: Tensor, x: Tensor, y: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def losses(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return losses_of(loss, error_of(functional_call(traced.module, weights, (x,)), y))

        def penalised(weights: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            # examples are independent: the slope of the sum is each one's own slope
            slopes = grad(lambda x, y: losses(weights, x, y).sum(), argnums=(0, 1))(x, y)
            steepness, value = _norms(*slopes).mean(), losses(weights, x, y).mean()
            return value + rho * steepness, (value, steepness)

        grads, (value, steepness) = grad(penalised, has_aux=True)(traced.weights(p))
        return value, torch.cat([grads[name].reshape(-1) for name, _ in traced.layers]), steepness

    return of


def robust_graph(traced: Traced, loss: Loss) -> onnx.ModelProto:
    """Export ``p, x, y, rho -> loss, g, slope``."""
    examples = (traced.initial, *traced.example(), torch.tensor(0.5))
    graph = trace(robust_gradient(traced, loss), examples, Lowering("twice"), batched=(1, 2))
    return emit(graph, ("p", "x", "y", "rho"), ("loss", "g", "slope"))


def _norms(of_x: Tensor, of_y: Tensor) -> Tensor:
    """Return each example's norm ``[B]``, with slope zero instead of infinity at zero."""
    squared = (of_x * of_x).sum((1, 2)) + (of_y * of_y).sum(1)
    some = squared > 0
    return torch.where(some, torch.sqrt(torch.where(some, squared, 1.0)), 0.0)


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
