"""``clipped_gradient``: the sum of every example's own gradient, each clipped to a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import torch
from torch import Tensor
from torch.func import functional_call

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.errors import ExportError
from aggregator.extensions.authoring.per_example import Recorder, Use
from aggregator.extensions.authoring.trace import Traced, error_of, losses_of, trace
from edge_sdk.protocol.contract.manifest import Loss

SMALLEST = 1e-12
"""Least norm of a gradient that is divided by its norm."""

Clipped = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def clipped_gradient(traced: Traced, loss: Loss) -> Clipped:
    """Return ``(p, x, y, bound) -> (loss, sum_b g_b min(1, bound / |g_b|))``.

    ``g_b`` is the gradient of example b's own loss in all of ``p``, ``|.|`` the Euclidean norm
    (Abadi et al. 2016, algorithm 1, before the noise). The loss is the mean over the batch, as in
    ``gradient``; the gradient is a **sum**, to which noise is calibrated: a mean must divide by a
    number that does not depend on the readings.

    In float32 a clipped gradient may be longer than the bound by a few parts in a million.

    Raises:
        ExportError: When called, if a parameter enters an operator without a rule.
    """

    def of(p: Tensor, x: Tensor, y: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
        weights = traced.weights(p.detach().requires_grad_())
        with Recorder(weights) as recorder:
            yhat = functional_call(traced.module, weights, (x,))
        losses = losses_of(loss, error_of(yhat, y))
        parts = _parts(recorder.uses, losses.sum())
        squared = torch.stack([part.squared for part in parts.values()]).sum(0)
        share = (bound / squared.sqrt().clamp_min(SMALLEST)).clamp_max(1.0)
        sums = [
            parts[name].total(share).reshape(-1) if name in parts else p.new_zeros(size)
            for name, size in traced.sizes
        ]
        return losses.mean(), torch.cat(sums)

    return of


def clipped_graph(traced: Traced, loss: Loss) -> onnx.ModelProto:
    """Export ``p, x, y, bound -> loss, g``."""
    examples = (traced.initial, *traced.example(), torch.tensor(0.5))
    graph = trace(clipped_gradient(traced, loss), examples, Lowering("unrolled"), batched=(1, 2))
    return emit(graph, ("p", "x", "y", "bound"), ("loss", "g"))


class _Added:
    """A parameter that is added: its gradient is the sum of slopes, ``[B, N]``."""

    def __init__(self, slopes: list[Tensor], _: list[Tensor]) -> None:
        self.each = torch.cat(slopes, 1).sum(1) if len(slopes) > 1 else slopes[0].sum(1)
        self.squared = (self.each * self.each).sum(1)

    def total(self, share: Tensor) -> Tensor:
        return share[None] @ self.each


class _Multiplied:
    """A weight: the gradient of an example is ``slopes' read``, which is never computed in full."""

    def __init__(self, slopes: list[Tensor], read: list[Tensor]) -> None:
        self.slopes = torch.cat(slopes, 1) if len(slopes) > 1 else slopes[0]
        self.read = torch.cat(read, 1) if len(read) > 1 else read[0]
        self.squared = (_products(self.slopes) * _products(self.read)).sum((1, 2))

    def total(self, share: Tensor) -> Tensor:
        """Sum over examples, weighted."""
        weighted = share[:, None, None] * self.slopes
        rows = weighted.reshape(-1, self.slopes.shape[2])
        return rows.t() @ self.read.reshape(-1, self.read.shape[2])


def _parts(uses: Sequence[Use], total: Tensor) -> dict[str, _Added | _Multiplied]:
    slopes = torch.autograd.grad(total, [use.out for use in uses])
    kinds: dict[str, type[_Added | _Multiplied]] = {}
    for use in uses:
        kind = _Added if use.a is None else _Multiplied
        if kinds.setdefault(use.name, kind) is not kind:
            raise ExportError(f"parameter {use.name!r} is both added and multiplied")
    return {
        name: kind(
            [slope for use, slope in zip(uses, slopes, strict=True) if use.name == name],
            [use.a for use in uses if use.name == name and use.a is not None],
        )
        for name, kind in kinds.items()
    }


def _products(rows: Tensor) -> Tensor:
    """Return the scalar products of an example's positions with one another, ``[B, T, T]``."""
    if rows.shape[1] == 1:
        return (rows * rows).sum(2, keepdim=True)
    return torch.bmm(rows, rows.transpose(1, 2))
