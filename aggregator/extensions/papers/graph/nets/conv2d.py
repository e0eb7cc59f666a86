"""The server model of the LSTM-CNN baselines: convolutions over stations and time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aggregator.extensions.papers.graph.nets.spatiotemporal import Surroundings


class Conv2d(nn.Module):
    """Two convolutions of 3 by 3 with ReLU over (station, time); the graph is not used.

    Stations are neighbours here if their slots are adjacent.

    >>> sum(p.numel() for p in Conv2d(64).parameters())
    73856
    """

    def __init__(self, features: int, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(features, features, 3, padding=1) for _ in range(layers)
        )

    def forward(self, h: Tensor, around: Surroundings) -> Tensor:
        """Map ``(B, N, F, L)`` to the same shape; zero where absent before, zero after."""
        plane = h.transpose(1, 2)
        for layer in self.layers:
            plane = torch.relu(layer(plane)) * around.there[:, None]
        return plane.transpose(1, 2)
