"""Adapter from a torch net to a ``GraphModel``: one flat vector, examples in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from aggregator.extensions.papers.graph.model import Array
from aggregator.extensions.papers.graph.nets.spatiotemporal import Surroundings
from aggregator.extensions.papers.graph.stations import Matrix, chebyshev_of_present
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class TorchGraphModel:
    """A net over the activations of all stations.

    Examples are independent, so they are taken ``block`` at a time, forwards and backwards, and a
    gradient is the sum over blocks: memory beside the arguments and results is that of one block.
    Between two calls nothing is kept but the polynomials of the last graph.
    """

    make: Callable[[], nn.Module]  # makes the net; its parameters need no values
    adjacent: Matrix  # 0/1, ``(N, N)``, symmetric, zero diagonal; N is the capacity
    order: int = 3  # number of Chebyshev polynomials that it receives
    dtype: str = "float32"  # precision of the computation, ``float32`` or ``float64``
    device: str = "cpu"
    block: int = 32  # examples at a time
    _last: dict[bytes, Surroundings] = field(default_factory=dict, repr=False, compare=False)

    @property
    def capacity(self) -> int:
        return len(self.adjacent)

    @cached_property
    def spec(self) -> ParamSpec:
        """Return the layout of ``p``, in the order of the net's parameters."""
        return ParamSpec.of([(name, tuple(p.shape)) for name, p in self._net.named_parameters()])

    @cached_property
    def _net(self) -> nn.Module:
        return self.make().to(self._device, self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def _device(self) -> torch.device:
        return torch.device(self.device)

    def init(self, seed: int) -> Array:
        """Return parameters: Xavier's uniform for tables, 0 to ``1/sqrt(length)`` for rows."""
        draw = torch.Generator().manual_seed(seed)
        parts = [_drawn(p, draw) for p in self._net.parameters()]
        return self._out(torch.cat([part.reshape(-1) for part in parts]))

    def forward(self, p: Array, h: Array, present: Array) -> Array:
        around, weights = self._around(present), self._weights(self._in(p))
        out = np.zeros(h.shape, self.dtype)
        with torch.no_grad():
            for rows in self._blocks(h, present):
                z = functional_call(self._net, weights, (self._there(h[rows], around), around))
                out[rows] = self._out(z)
        return out

    def pullback(self, p: Array, h: Array, present: Array, gz: Array) -> tuple[Array, Array]:
        """Return the gradients, one block after the other; see ``GraphModel``."""
        around, flat = self._around(present), self._in(p).requires_grad_()
        gh, total = np.zeros(h.shape, self.dtype), torch.zeros_like(flat)
        for rows in self._blocks(h, present):
            x = self._there(h[rows], around).requires_grad_()
            z = functional_call(self._net, self._weights(flat), (x, around))
            gx, gp = torch.autograd.grad(z, (x, flat), self._there(gz[rows], around))
            total += gp
            gh[rows] = self._out(gx * around.there[:, None, None])
        return gh, self._out(total)

    def _weights(self, flat: Tensor) -> Weights:
        return {
            layer.name: flat[layer.offset : layer.offset + layer.size].view(layer.shape)
            for layer in self.spec.layers
        }

    def _blocks(self, h: Array, present: Array) -> list[slice]:
        examples = len(h) if present.any() else 0  # without stations the softmax is empty
        return [slice(at, at + self.block) for at in range(0, examples, self.block)]

    def _there(self, h: Array, around: Surroundings) -> Tensor:
        return torch.where(around.there[:, None, None], self._in(h), 0.0)

    def _around(self, present: NDArray[np.bool_]) -> Surroundings:
        key = np.packbits(present).tobytes()
        if key not in self._last:
            terms = chebyshev_of_present(self.adjacent, present, max(self.order, 2))
            self._last.clear()
            there = torch.tensor(np.asarray(present, np.bool_), device=self._device)
            self._last[key] = Surroundings(there, self._in(terms))
        return self._last[key]

    def _in(self, array: Array) -> Tensor:
        return torch.tensor(array, dtype=self._dtype, device=self._device)

    def _out(self, tensor: Tensor) -> NDArray[Any]:
        found: NDArray[Any] = tensor.detach().cpu().numpy()
        return found


def _drawn(like: Tensor, draw: torch.Generator) -> Tensor:
    """Draw on the CPU, so that a seed gives the same parameters on every device."""
    out = torch.empty(like.shape, dtype=torch.float64)
    if out.dim() < 2:
        nn.init.uniform_(out, 0.0, max(out.numel(), 1) ** -0.5, generator=draw)
    else:
        nn.init.xavier_uniform_(out, generator=draw)
    return out.to(like.dtype).to(like.device)


def cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
