"""PFGL's block for thousands of stations: attention within a neighbourhood.

The graph convolution weights attention with Chebyshev polynomials, and these are zero between
stations that are further apart than K - 1 edges: attention beyond contributes only to the softmax's
sum. Here V and b have numbers for such pairs only, and the softmax is over them. It equals the full
block with V and b zero elsewhere and attention masked to these pairs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from aggregator.extensions.papers.graph.nets.spatiotemporal import SpatioTemporalBlock, Surroundings
from aggregator.extensions.papers.graph.stations import Matrix, within


@dataclass(frozen=True)
class Pattern:
    """Neighbourhoods within a number of edges, as rows of the same length and as a sparse table."""

    near: Tensor  # slots, rising, ``(N, D)``; shorter rows are padded with their last slot
    real: Tensor  # mask of the slots that are not padding, ``(N, D)`` of bool
    # position of the pair (near[i, m], near[i, j]) in the flattened ``near``, ``(N, D, D)``; ``N
    # D`` if there is none
    pairs: Tensor
    rows: Tensor  # row pointers of the compressed form, ``(N + 1,)``
    columns: Tensor  # column indices of the real slots, ``(E,)``
    turned: Tensor  # order of the real slots that transposes the table, ``(E,)``

    @classmethod
    def of(cls, adjacent: Matrix, edges: int) -> Pattern:
        """Return the neighbourhoods within ``edges`` edges.

        >>> from aggregator.extensions.papers.graph.stations import path
        >>> Pattern.of(path(4), 1).near.tolist()
        [[0, 1, 1], [0, 1, 2], [1, 2, 3], [2, 3, 3]]
        """
        table = within(adjacent, edges)
        n, counts = len(table), table.sum(1)
        width = int(counts.max(initial=1))
        near, real = np.zeros((n, width), np.int64), np.arange(width) < counts[:, None]
        for i, row in enumerate(table):
            found = np.flatnonzero(row)
            near[i] = np.pad(found, (0, width - len(found)), mode="edge")
        where = np.full((n, n), n * width)
        where[np.arange(n)[:, None], near] = np.arange(n * width).reshape(n, width)
        for short in np.flatnonzero(counts < width):  # filling repeats a slot: it means the first
            last = int(counts[short]) - 1
            where[short, near[short, last]] = short * width + last
        pairs = where[near[:, :, None], near[:, None, :]]
        columns = near[real]
        rows = np.concatenate([[0], np.cumsum(counts)])
        turned = np.argsort(columns, kind="stable")
        parts = (near, real, pairs, rows, columns, turned)
        return cls(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


class LocalAttention(nn.Module):
    """``SpatialAttention`` within a neighbourhood."""

    def __init__(self, pattern: Pattern, features: int, steps: int) -> None:
        super().__init__()
        for name, part in vars(pattern).items():
            self.register_buffer(name, part, persistent=False)  # goes where the parameters go
        self.w1 = nn.Parameter(torch.empty(steps))  # ``(L,)``
        self.w2 = nn.Parameter(torch.empty(features, steps))  # ``(F, L)``
        self.w3 = nn.Parameter(torch.empty(features))  # ``(F,)``
        self.v = nn.Parameter(torch.empty(pattern.near.shape))  # ``(N, D)``, for (i, near[i, m])
        self.b = nn.Parameter(torch.empty(pattern.near.shape))  # ``(N, D)``, likewise

    @property
    def pattern(self) -> Pattern:
        return Pattern(**{field.name: getattr(self, field.name) for field in fields(Pattern)})

    def forward(self, h: Tensor, present: Tensor) -> Tensor:
        """Return ``(B, N, D)`` for ``h (B, N, F, L)``: the weight of near[i, j] for i."""
        pattern = self.pattern
        near, real, pairs = pattern.near, pattern.real, pattern.pairs
        left, right = h @ self.w1 @ self.w2, self.w3 @ h
        offsets = torch.cat([self.b.flatten(), self.b.new_zeros(1)])[pairs]
        seen = torch.sigmoid(left[:, near] @ right[:, near].transpose(2, 3) + offsets)
        here = real & present[near]
        found = torch.einsum("nm,bnmj->bnj", self.v * here, seen)
        here = here | ~here.any(1, keepdim=True)  # an empty row has any value and is not read
        return torch.softmax(found.masked_fill(~here, -torch.inf), 2)


class LocalBlock(SpatioTemporalBlock):
    """``SpatioTemporalBlock`` with attention within the reach of the convolution."""

    spatial: LocalAttention

    def __init__(
        self, pattern: Pattern, features: int, steps: int, *, order: int, swapped: bool = False
    ) -> None:
        spatial = LocalAttention(pattern, features, steps)
        count = len(pattern.near)
        super().__init__(count, features, steps, order=order, swapped=swapped, spatial=spatial)

    def spread(self, h: Tensor, weights: Tensor, terms: Tensor) -> Tensor:
        """Return ``sum_k (T_k * S) h Theta_k`` over the pattern."""
        pattern = self.spatial.pattern
        here = torch.arange(len(pattern.near), device=h.device)[:, None]
        found: Tensor | None = None
        for term, theta in zip(terms, self.theta, strict=True):
            values = (term[here, pattern.near] * weights)[:, pattern.real]
            mixed = torch.stack(
                [_mixed(v, x, pattern) for v, x in zip(values, h.flatten(2), strict=True)]
            )
            part = functional.linear(mixed.view(h.shape).transpose(2, 3), theta.T)
            found = part if found is None else found + part
        assert found is not None
        return found.transpose(2, 3)


class SparseAttentionNet(nn.Module):
    """Blocks in sequence."""

    def __init__(
        self,
        adjacent: Matrix,
        features: int,
        steps: int,
        *,
        blocks: int = 2,
        order: int = 3,
        swapped: bool = False,
    ) -> None:
        super().__init__()
        pattern = Pattern.of(adjacent, order - 1)
        self.blocks = nn.ModuleList(
            LocalBlock(pattern, features, steps, order=order, swapped=swapped)
            for _ in range(blocks)
        )

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        for block in self.blocks:
            h = block(h, around)
        return h


class _Product(torch.autograd.Function):
    """A sparse table times a dense one, with a gradient for the present values only."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, pattern: Pattern) -> Tensor:  # noqa: ANN401 - torch's
        ctx.save_for_backward(values, x)
        ctx.pattern = pattern
        return _table(pattern.rows, pattern.columns, values) @ x

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401 - torch's
        (values, x), pattern, (g,) = ctx.saved_tensors, ctx.pattern, upstream
        n = len(pattern.rows) - 1
        counts = torch.bincount(pattern.columns, minlength=n)
        begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        owners = torch.repeat_interleave(torch.arange(n, device=g.device), pattern.rows.diff())
        back = _table(begins, owners[pattern.turned], values[pattern.turned]) @ g
        empty = _table(pattern.rows, pattern.columns, torch.zeros_like(values))
        products = torch.sparse.sampled_addmm(empty, g.contiguous(), x.T, beta=0.0)
        return products.values(), back, None


def _mixed(values: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
    found: Tensor = _Product.apply(values, x.contiguous(), pattern)  # type: ignore[no-untyped-call]
    return found


def _table(rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    size = (len(rows) - 1, len(rows) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its sparse tables a beta
        return torch.sparse_csr_tensor(rows, columns, values, size, check_invariants=False)
