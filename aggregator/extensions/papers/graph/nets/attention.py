"""PFGL's two attentions: over stations, and over time steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
