"""Models of load: a fully connected net, and the two recurrent nets of the PL-FL paper."""

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


class LoadGru(nn.Module):
    """Two GRU layers of 20, every step's output joined, the head of the LSTM model.

    >>> sum(p.numel() for p in LoadGru().gru.parameters())
    4320
    """

    def __init__(
        self, channels: int = 8, lookback: int = 12, horizon: int = 1, hidden: int = 20
    ) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__()
        self.gru = nn.GRU(channels, hidden, num_layers=2, batch_first=True)
        self.head = head(hidden * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        joined: Tensor = self.head(self.gru(x)[0].flatten(1))
        return joined
