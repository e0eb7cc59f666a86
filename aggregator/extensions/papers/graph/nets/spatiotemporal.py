"""PFGL's graph model: blocks of attention, a graph convolution and a convolution along time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class SpatialAttention(nn.Module):
    """Attention over stations, ``softmax over j of V sigmoid(((H W1) W2) (W3 H)' + b)``.

    Rows sum to one. An absent station has no weight and no output.
    """

    def __init__(self, stations: int, features: int, steps: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(steps))  # ``(L,)``
        self.w2 = nn.Parameter(torch.empty(features, steps))  # ``(F, L)``
        self.w3 = nn.Parameter(torch.empty(features))  # ``(F,)``
        self.v = nn.Parameter(torch.empty(stations, stations))  # ``(N, N)``
        self.b = nn.Parameter(torch.empty(stations, stations))  # ``(N, N)``

    def forward(self, h: Tensor, present: Tensor) -> Tensor:
        """Return ``(B, N, N)`` for ``h (B, N, F, L)`` and ``there (N,)`` of bool."""
        product = (h @ self.w1 @ self.w2) @ (self.w3 @ h).transpose(1, 2)
        seen = torch.sigmoid(product + self.b) * present[:, None]
        return torch.softmax((self.v @ seen).masked_fill(~present, -torch.inf), 2)


class TemporalAttention(nn.Module):
    """Attention over time steps, ``softmax over i of V sigmoid(((H' U1) U2) (U3 H) + b)``.

    Columns sum to one, so that ``H E`` is a weighted mean over time.

    Attributes:
        u1: ``(N,)``.
        u2: ``(F, N)``.
        u3: ``(F,)``; the paper prints L numbers, which do not fit.
        v: ``(L, L)``.
        b: ``(L, L)``.
    """

    def __init__(self, stations: int, features: int, steps: int) -> None:
        super().__init__()
        self.u1 = nn.Parameter(torch.empty(stations))
        self.u2 = nn.Parameter(torch.empty(features, stations))
        self.u3 = nn.Parameter(torch.empty(features))
        self.v = nn.Parameter(torch.empty(steps, steps))
        self.b = nn.Parameter(torch.empty(steps, steps))

    def forward(self, h: Tensor) -> Tensor:
        """Return ``(B, L, L)`` for ``h (B, N, F, L)``, which is zero where a station is absent."""
        over_stations = torch.einsum("bnfl,n->blf", h, self.u1)
        product = (over_stations @ self.u2) @ (self.u3 @ h)
        return torch.softmax(self.v @ torch.sigmoid(product + self.b), 1)


class Surroundings(NamedTuple):
    """Graph of the present stations."""

    there: Tensor  # mask of the slots that a station holds, ``(N,)`` of bool
    terms: Tensor  # Chebyshev polynomials of their scaled Laplacian, ``(K, N, N)``, zero elsewhere


class SpatioTemporalBlock(nn.Module):
    """One spatio-temporal block: ``ReLU(conv_t(ReLU(sum_k (T_k * S) (H E) Theta_k)))``.

    The graph convolution reads the output of the temporal attention, the spatial attention reads
    the input; ``swapped`` is the reverse, as in ASTGCN's reference. While the attention over steps
    is uniform, the printed form passes on means over the whole window only. ``residual_ln`` adds
    the input before the last ReLU and normalises over the filters, as that reference does; the
    paper prints neither.

    >>> block = SpatioTemporalBlock(8, 64, 32, order=3)
    >>> sum(p.numel() for p in block.parameters())
    29544
    """

    def __init__(
        self,
        stations: int,
        features: int,
        steps: int,
        *,
        order: int,
        residual_ln: bool = False,
        swapped: bool = False,
        spatial: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.swapped = swapped
        self.spatial = spatial or SpatialAttention(stations, features, steps)
        self.temporal = TemporalAttention(stations, features, steps)
        self.theta = nn.ParameterList(torch.empty(features, features) for _ in range(order))
        self.conv = nn.Conv1d(features, features, 3, padding=1)
        self.residual = nn.Conv1d(features, features, 1) if residual_ln else None
        self.norm = nn.LayerNorm(features) if residual_ln else None

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        """Map ``(B, N, F, L)`` to the same shape; zero where absent before, zero after."""
        weighted = h @ self.temporal(h)[:, None]
        looked_at, read = (weighted, h) if self.swapped else (h, weighted)
        weights = self.spatial(looked_at, around.there)
        spread = torch.relu(self.spread(read, weights, around.terms))
        out = self.conv(spread.flatten(0, 1))
        if self.residual is None or self.norm is None:
            out = torch.relu(out)
        else:
            joined = torch.relu(out + self.residual(h.flatten(0, 1)))
            out = self.norm(joined.transpose(1, 2)).transpose(1, 2)
        found: Tensor = out.view(h.shape) * around.there[:, None, None]
        return found

    def spread(self, h: Tensor, weights: Tensor, terms: Tensor) -> Tensor:
        """Return ``sum_k (T_k * S) h Theta_k``; ``T_0`` is a diagonal and is not multiplied out."""
        own = (terms[0] * weights).sum(2)[:, :, None, None] * h
        found = functional.linear(own.transpose(2, 3), self.theta[0].T)
        flat = h.flatten(2)
        for term, theta in zip(terms[1:], list(self.theta)[1:], strict=True):
            mixed = ((term * weights) @ flat).view(h.shape)
            found = found + functional.linear(mixed.transpose(2, 3), theta.T)
        return found.transpose(2, 3)


class SpatioTemporal(nn.Module):
    """Blocks in sequence."""

    def __init__(
        self,
        stations: int,
        features: int,
        steps: int,
        *,
        blocks: int = 2,
        order: int = 3,
        residual_ln: bool = False,
        swapped: bool = False,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            SpatioTemporalBlock(
                stations, features, steps, order=order, residual_ln=residual_ln, swapped=swapped
            )
            for _ in range(blocks)
        )

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        """Map ``(B, N, F, L)`` to the same shape."""
        for block in self.blocks:
            h = block(h, around)
        return h
