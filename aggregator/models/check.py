"""Hold exported graphs against torch, before anybody signs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from aggregator.models.errors import ExportError
from aggregator.models.trace import Traced
from edge_sdk.wire.manifest import Loss

BATCHES = (1, 2, 3, 17, 37, 64, 200)
"""1 and 2 are special to many operators; 37 is the size that was traced; the rest are not."""
TOLERANCE = 1e-5
"""Largest error of a gradient relative to its largest component, and of a forecast."""


class Runnable(Protocol):
    """A loaded graph."""

    def __call__(self, **feeds: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Run once."""


Engine = Callable[[bytes], Runnable]


def reference_engine(data: bytes) -> Runnable:
    """Load a graph with ONNX's own reference: slow, and independent of any engine."""
    evaluator = ReferenceEvaluator(data)

    def run(**feeds: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        return tuple(evaluator.run(None, feeds))

    return run


def check_gradient(traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare loss and gradient with torch's own backward pass at every batch size.

    Raises:
        ExportError: They differ by more than the tolerance, or are not finite.
    """
    for batch in BATCHES:
        x, y = traced.example(batch, seed=batch)
        p = traced.initial.requires_grad_()
        value = traced.loss(loss, p, x, y)
        (wanted,) = torch.autograd.grad(value, p)
        got_value, got = graph(p=_array(p), x=_array(x), y=_array(y))
        scale = max(float(wanted.abs().max()), float(np.finfo(np.float32).tiny))
        _refuse("gradient", batch, _distance(got, wanted) / scale)
        _refuse("loss", batch, _distance(got_value, value) / max(1.0, value.item()))


def check_forecast(traced: Traced, graph: Runnable) -> None:
    """Compare forecasts with the module's own at every batch size.

    Raises:
        ExportError: They differ by more than the tolerance, or are not finite.
    """
    for batch in BATCHES:
        x, _ = traced.example(batch, seed=batch)
        p = traced.initial
        with torch.no_grad():
            wanted = traced.predict(p, x)
        (got,) = graph(p=_array(p), x=_array(x))
        _refuse("forecast", batch, _distance(got, wanted))


def _refuse(what: str, batch: int, error: float) -> None:
    if not error <= TOLERANCE:
        raise ExportError(
            f"graph {what!r} differs from torch by {error:.2g} at batch size {batch} "
            f"(at most {TOLERANCE:g}): the model uses something that is not exported faithfully"
        )


def _distance(got: NDArray[np.float32], wanted: torch.Tensor) -> float:
    if got.shape != tuple(wanted.shape):
        return float("inf")
    return float(np.abs(got - _array(wanted)).max())


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().numpy(), np.float32)
