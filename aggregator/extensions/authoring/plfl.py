"""The load model of the PL-FL paper: two shared LSTM layers, and a personal head."""

from __future__ import annotations

from torch import Tensor, nn


class LoadLstm(nn.Module):
    """Two LSTM layers of 20, every step's output joined, three linear layers with PReLU.

    With two bias vectors a gate and one slope a channel of PReLU: the only reading of the paper
    that reproduces its table of traffic.

    >>> sum(p.numel() for p in LoadLstm().parameters())
    42181
    >>> sum(p.numel() for p in LoadLstm().lstm.parameters())
    5760
    """

    def __init__(
        self, channels: int = 8, lookback: int = 12, horizon: int = 1, hidden: int = 20
    ) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, num_layers=2, batch_first=True)
        self.head = head(hidden * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        joined: Tensor = self.head(self.lstm(x)[0].flatten(1))
        return joined


def head(width: int, horizon: int) -> nn.Sequential:
    """Return the personal head: ``width`` to 120 to 60 to ``horizon``."""
    return nn.Sequential(
        nn.Linear(width, 120),
        nn.PReLU(120),
        nn.Linear(120, 60),
        nn.PReLU(60),
        nn.Linear(60, horizon),
    )
