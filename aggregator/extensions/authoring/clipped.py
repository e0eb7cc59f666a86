"""``clipped_gradient``: the sum of every example's own gradient, each clipped to a bound.

No array of all examples' gradients is made. A weight that multiplies an input ``a`` has, for one example,
the gradient ``sum_t d_t a_t'``, where ``d_t`` is the slope of the loss in what came out at position ``t``. Its
squared norm is ``sum_ts (a_t . a_s)(d_t . d_s)``, and a weighted sum over examples is one matrix product
(Goodfellow 2015, arXiv:1510.01799, for one position; Li et al. 2022, arXiv:2110.05679, section 4, for sequences).
Memory grows with activations, not with parameters times examples: ``vmap`` of a gradient needs 11 MB for
the LSTM's 64 examples.
"""

from __future__ import annotations

# ruff: noqa: ANN401
# (the signatures are torch's own)
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name

from aggregator.extensions.authoring import bptt
from aggregator.extensions.authoring.decompositions import Lowering, gru_stack, lstm_stack
from aggregator.extensions.authoring.emit import emit
from aggregator.extensions.authoring.export_spec import ExportError
from aggregator.extensions.authoring.trace import Traced, error_of, losses_of, trace
from edge_sdk.protocol.contract.manifest import Loss


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One use of a parameter."""

    name: str
    out: Tensor  # tensor by which the loss is differentiated, ``[B, T, O]``
    # tensor that the parameter was multiplied with, ``[B, T, I]``; None where it was added: its
    # gradient is then the sum over positions
    a: Tensor | None = None


class Recorder(TorchFunctionMode):
    """Mode that records the uses of each parameter of a called module, and refuses operators without a rule."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self._kept = weights  # an id is valid only while its tensor exists
        self._rules: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            functional.prelu: self._prelu,
            torch.prelu: self._prelu,
            functional.layer_norm: self._layer_norm,
            torch.lstm: partial(lstm_stack, self._lstm),
            torch.gru: partial(gru_stack, self._gru),
        }

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function that has a rule, or that no parameter enters."""
        found = self._rules.get(func)
        if found is not None:
            return found(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        entered = [self._names[id(t)] for t in _tensors((args, kwargs)) if id(t) in self._names]
        if entered and next(_tensors(result), None) is not None:
            raise ExportError(
                f"operator {resolve_name(func) or func} takes the parameter {entered[0]!r}: there "
                "is no rule for the gradient of each example; docs/models.md lists what has one"
            )
        return result

    def _note(self, parameter: Tensor | None, out: Tensor, a: Tensor | None = None) -> None:
        name = self._names.get(id(parameter))
        if name is not None:
            self.uses.append(Use(name, out, a))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        product = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        out, a = _by_example(product, x.shape[0]), _by_example(rows, x.shape[0])
        self._note(weight, out, a)
        self._note(bias, out)
        return out.reshape(*x.shape[:-1], weight.shape[0])

    def _spread(self, parameter: Tensor, batch: Any) -> Tensor:
        """Return a copy of a small parameter for every example, ``[B, N]``."""
        rows = parameter.reshape(1, 1, -1).expand(batch, 1, parameter.numel())
        self._note(parameter, rows)
        return rows[:, 0]

    def _prelu(self, x: Tensor, weight: Tensor) -> Tensor:
        slopes = self._spread(weight, x.shape[0])
        slopes = slopes.view(x.shape[0], -1, *[1] * (x.dim() - 2))
        return torch.where(x > 0, x, slopes * x)

    def _layer_norm(
        self,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        out = functional.layer_norm(x, normalized_shape, None, None, eps)
        shape = (x.shape[0], *[1] * (x.dim() - 1 - len(normalized_shape)), *normalized_shape)
        if weight is not None:
            out = out * self._spread(weight, x.shape[0]).view(shape)
        return out if bias is None else out + self._spread(bias, x.shape[0]).view(shape)

    def _lstm(
        self, x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gates = _each_step(biases[0] + biases[1], x)
        out, h, c = bptt.lstm_steps(x, h0, c0, w_ih, w_hh, _rows(gates))
        self._recur(gates, x, w_ih, biases[0])
        self._recur(gates, _before(h0, out), w_hh, biases[1])
        return out, h, c

    def _gru(
        self, x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor
    ) -> tuple[Tensor, Tensor]:
        entering, returning = (_each_step(bias, x) for bias in biases)
        out, h = bptt.gru_layer(x, h0, w_ih, w_hh, _rows(entering), _rows(returning))
        self._recur(entering, x, w_ih, biases[0])
        self._recur(returning, _before(h0, out), w_hh, biases[1])
        return out, h

    def _recur(self, gates: Tensor, read: Tensor, weight: Tensor, bias: Tensor) -> None:
        self._note(weight, gates, read.transpose(0, 1))
        self._note(bias, gates)


def _each_step(bias: Tensor, x: Tensor) -> Tensor:
    """Return a copy of a bias for every example and step, ``[B, T, N]``, with a slope."""
    given = bias if bias.requires_grad else bias.detach().requires_grad_()
    return given.expand(x.shape[1], x.shape[0], bias.shape[0])


def _rows(by_example: Tensor) -> Tensor:
    """Return ``[B, T, N]`` in the order of a recurrent layer's rows, ``[T*B, N]``."""
    return by_example.transpose(0, 1).reshape(-1, by_example.shape[2])


def _before(first: Tensor, states: Tensor) -> Tensor:
    """Return the state that each step of a recurrent layer read: ``[T, B, H]``."""
    return torch.cat([first[None], states[:-1]])


def _by_example(rows: Tensor, batch: Any) -> Tensor:
    return rows.reshape(batch, -1, rows.shape[-1])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


SMALLEST = 1e-12  # least norm of a gradient that is divided by its norm
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
