"""Compare exported graphs with torch before they are signed.

Every check raises ``ExportError`` if the two differ by more than the tolerance, or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from torch.func import functional_call, grad_and_value, vmap

from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.lipschitz_bound import certificate
from aggregator.extensions.authoring.split import example
from aggregator.extensions.authoring.trace import Traced, error_of, loss_of, losses_of
from edge_sdk.protocol.contract.manifest import (
    AIDED_FORECAST,
    CLIPPED_GRADIENT,
    DECODE,
    ENCODE,
    ENCODE_VJP,
    FORECAST,
    GRADIENT,
    HVP,
    ROBUST_GRADIENT,
    Loss,
    Manifest,
)

# 1 and 2 are special cases of many operators; 37 is the traced size; the rest are ordinary
BATCHES = (1, 2, 3, 17, 37, 64, 200)
# largest relative error of a gradient, against its largest component, and of a forecast
TOLERANCE = 1e-5
# relative change of parameters that float32 arithmetic may amount to: four units in the last place
ROUNDING = 4 * 2.0**-23
KINK_LIMIT = 0.1  # largest relative error of a gradient also where a unit lies on its kink


class Runnable(Protocol):
    """Interface of a loaded graph."""

    def __call__(self, **feeds: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Run the graph once."""


Engine = Callable[[bytes], Runnable]


def reference_engine(data: bytes) -> Runnable:
    """Load a graph with ONNX's reference evaluator: slow, and independent of any engine."""
    evaluator = ReferenceEvaluator(data)

    def run(**feeds: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        return tuple(evaluator.run(None, feeds))

    return run


def check_graph(name: str, traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare one graph of a bundle with torch, by its name."""
    _CHECKS[name](traced, loss, graph)


def check_gradient(traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare loss and gradient with torch's own backward pass at every batch size.

    A unit whose input rounds to zero has two derivatives (ReLU, and every operator with a kink): two
    engines may choose different ones. A larger error is accepted where torch's own gradient moves as
    far when the parameters move by rounding.

    Raises:
        ExportError: They differ by more than the tolerance, or are not finite.
    """
    for batch in BATCHES:
        x, y = traced.example(batch, seed=batch)
        p = traced.initial.requires_grad_()
        value = traced.loss(loss, p, x, y)
        (wanted,) = torch.autograd.grad(value, p)
        got_value, got = graph(p=_array(p), x=_array(x), y=_array(y))
        error = _relative_difference(got, wanted)
        if TOLERANCE < error <= KINK_LIMIT:
            error -= _sensitivity(traced, loss, (x, y), wanted)
        _refuse("gradient", batch, error)
        _refuse("loss", batch, _distance(got_value, value) / max(1.0, value.item()))


def _sensitivity(
    traced: Traced, loss: Loss, example: tuple[torch.Tensor, torch.Tensor], gradient: torch.Tensor
) -> float:
    """Return the relative change of torch's gradient when the parameters change by rounding.

    The largest of 32 moves with random signs; without a kink within rounding it is about ``ROUNDING``.
    """
    signs, found = torch.Generator().manual_seed(1), 0.0
    for _ in range(32):
        flips = 2.0 * torch.randint(0, 2, traced.initial.shape, generator=signs) - 1.0
        p = (traced.initial.detach() * (1 + ROUNDING * flips)).requires_grad_()
        (moved,) = torch.autograd.grad(traced.loss(loss, p, *example), p)
        found = max(found, _relative_difference(_array(moved), gradient))
    return found


def check_robust(traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare with torch's own second derivative, at a radius at which both parts count."""
    for batch in BATCHES:
        p, (x, y) = traced.initial.requires_grad_(), traced.example(batch, seed=batch)
        at = x.requires_grad_(), y.requires_grad_()
        losses = losses_of(loss, error_of(traced.predict(p, x), y))
        slopes = torch.autograd.grad(losses.sum(), at, create_graph=True)
        slope = torch.cat([part.flatten(1) for part in slopes], 1).norm(dim=1).mean()
        for rho in (0.0, 1.0):
            (wanted,) = torch.autograd.grad(losses.mean() + rho * slope, p, retain_graph=True)
            feeds = {"p": _array(p), "x": _array(x), "y": _array(y), "rho": np.array(rho, "f4")}
            got_value, got, got_slope = graph(**feeds)
            _refuse(ROBUST_GRADIENT, batch, _relative_difference(got, wanted))
            _refuse(ROBUST_GRADIENT, batch, _relative_difference(got_slope, slope))
            _refuse("loss", batch, _relative_difference(got_value, losses.mean()))


def check_clipped(traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare with torch's gradient of every example, at a bound that half of them exceed."""
    p, (x, y) = traced.initial, traced.example(max(BATCHES), seed=1)
    each, losses = _each(traced, loss, p, x, y)
    q = p.clone().requires_grad_()
    (mean,) = torch.autograd.grad(traced.loss(loss, q, x, y), q)
    _refuse(CLIPPED_GRADIENT, len(x), _relative_difference(_array(each.mean(0)), mean))
    lengths = each.double().norm(dim=1)
    bound = lengths.median()
    clipped = (bound / lengths).clamp(max=1.0)[:, None] * each
    for batch in BATCHES:
        feeds = {"p": _array(p), "x": _array(x[:batch]), "y": _array(y[:batch])}
        got_value, got = graph(**feeds, bound=np.array(bound.item(), "f4"))
        _refuse(CLIPPED_GRADIENT, batch, _relative_difference(got, clipped[:batch].sum(0).float()))
        _refuse("loss", batch, _relative_difference(got_value, losses[:batch].mean()))


def check_hvp(traced: Traced, loss: Loss, graph: Runnable) -> None:
    """Compare with torch's own product of the second derivative and a vector, at every batch size."""
    draw = torch.Generator().manual_seed(3)
    v = torch.randn(traced.initial.shape, generator=draw)
    for batch in BATCHES:
        p, (x, y) = traced.initial.requires_grad_(), traced.example(batch, seed=batch)
        (slope,) = torch.autograd.grad(traced.loss(loss, p, x, y), p, create_graph=True)
        (wanted,) = torch.autograd.grad(slope @ v, p)
        (got,) = graph(p=_array(p), x=_array(x), y=_array(y), v=_array(v))
        _refuse(HVP, batch, _relative_difference(got, wanted))


def _each(
    traced: Traced, loss: Loss, p: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every example's gradient ``[B, P]`` and loss ``[B]``, from ``torch.func``."""

    def one(p: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return traced.loss(loss, p, x[None], y[None])

    with Lowering("twice"):  # torch's own recurrent layers have no batching rule
        found: tuple[torch.Tensor, torch.Tensor] = vmap(grad_and_value(one), (None, 0, 0))(p, x, y)
    return found


def check_paths(traced: Traced, manifest: Manifest) -> None:
    """Compare the certificate's bound with measured slopes; do nothing without ``paths``.

    Raises:
        ExportError: A slope of the loss exceeds the bound: a path is missing or wrong.
        CertificateError: A path names a missing layer.
    """
    if manifest.paths is None:
        return
    p = traced.initial
    x, y = (part.requires_grad_() for part in traced.example(max(BATCHES), seed=2))
    error = error_of(traced.predict(p, x), y)
    slopes = torch.autograd.grad(losses_of(manifest.loss, error).sum(), (x, y))
    steepest = float(torch.cat([part.flatten(1) for part in slopes], 1).norm(dim=1).max())
    bound = certificate(manifest, p.double().numpy(), error=float(error.detach().abs().max()))
    if steepest > bound.data * (1 + TOLERANCE):
        raise ExportError(
            f"paths: the loss changes by {steepest:.3g} with its data, the bound is "
            f"{bound.data:.3g}: a path from window to forecast is missing or wrong"
        )


def check_forecast(traced: Traced, _loss: Loss, graph: Runnable) -> None:
    """Compare forecasts with the module's own at every batch size."""
    for batch in BATCHES:
        x, _ = traced.example(batch, seed=batch)
        p = traced.initial
        with torch.no_grad():
            wanted = traced.predict(p, x)
        (got,) = graph(p=_array(p), x=_array(x))
        _refuse("forecast", batch, _distance(got, wanted))


def check_halves(traced: Traced, loss: Loss, graph: Runnable, name: str) -> None:
    """Compare one graph of a split model with the module's own halves at every batch size."""
    for batch in BATCHES:
        x, h, z, y = example(traced, batch)
        p = traced.initial.requires_grad_()
        feeds, wanted = _WANTED[name](_Parts(traced, loss, p, x, h, z, y))
        got = graph(p=_array(p), **{key: _array(value) for key, value in feeds.items()})
        for one, other in zip(got, wanted, strict=True):
            _refuse(name, batch, _relative_difference(one, other))


class _Parts(NamedTuple):
    traced: Traced
    loss: Loss
    p: torch.Tensor
    x: torch.Tensor
    h: torch.Tensor
    z: torch.Tensor
    y: torch.Tensor

    def half(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the encoder or the decoder with the vector's weights."""
        named = self.traced.weights(self.p).items()
        weights = {x.removeprefix(f"{name}."): w for x, w in named if x.startswith(f"{name}.")}
        out: torch.Tensor = functional_call(getattr(self.traced.module, name), weights, inputs)
        return out


Feeds = Mapping[str, torch.Tensor]
Wanted = tuple[Feeds, tuple[torch.Tensor, ...]]


def _encoded(of: _Parts) -> Wanted:
    return {"x": of.x}, (of.half("encoder", of.x),)


def _pulled(of: _Parts) -> Wanted:
    out = (of.half("encoder", of.x) * of.h).sum()  # any numbers of h's shape serve as gh
    return {"x": of.x, "gh": of.h}, torch.autograd.grad(out, of.p)


def _decoded(of: _Parts) -> Wanted:
    h, z = of.h.requires_grad_(), of.z.requires_grad_()
    value = loss_of(of.loss, error_of(of.half("decoder", h, z), of.y))
    return {"h": h, "z": z, "y": of.y}, (value, *torch.autograd.grad(value, (of.p, h, z)))


def _aided(of: _Parts) -> Wanted:
    yhat = functional_call(of.traced.module, of.traced.weights(of.p), (of.x, of.z))
    return {"x": of.x, "z": of.z}, (yhat,)


_WANTED: Mapping[str, Callable[[_Parts], Wanted]] = {
    ENCODE: _encoded,
    ENCODE_VJP: _pulled,
    DECODE: _decoded,
    AIDED_FORECAST: _aided,
}


def _refuse(what: str, batch: int, error: float) -> None:
    if not error <= TOLERANCE:
        raise ExportError(
            f"graph {what!r} differs from torch by {error:.2g} at batch size {batch} "
            f"(at most {TOLERANCE:g}): the model uses something that is not exported faithfully"
        )


def _relative_difference(got: NDArray[np.float32], wanted: torch.Tensor) -> float:
    scale = max(float(wanted.detach().abs().max()), float(np.finfo(np.float32).tiny))
    return _distance(got, wanted) / scale


def _distance(got: NDArray[np.float32], wanted: torch.Tensor) -> float:
    if got.shape != tuple(wanted.shape):
        return float("inf")
    return float(np.abs(got - _array(wanted)).max())


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().numpy(), np.float32)


_CHECKS: Mapping[str, Callable[[Traced, Loss, Runnable], None]] = {
    GRADIENT: check_gradient,
    FORECAST: check_forecast,
    ROBUST_GRADIENT: check_robust,
    CLIPPED_GRADIENT: check_clipped,
    HVP: check_hvp,
    **{name: partial(check_halves, name=name) for name in _WANTED},
}
