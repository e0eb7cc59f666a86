"""A small fully connected net over the whole window: the smallest load model."""

from __future__ import annotations

from torch import Tensor, nn


class LoadMlp(nn.Module):
    """The window as one row: 64, 32, then the forecast; PReLU between.

    >>> sum(p.numel() for p in LoadMlp().parameters())
    8417
    """

    def __init__(self, channels: int = 8, lookback: int = 12, horizon: int = 1) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * lookback, 64),
            nn.PReLU(64),
            nn.Linear(64, 32),
            nn.PReLU(32),
        )
        self.head = nn.Linear(32, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        out: Tensor = self.head(self.body(x))
        return out
