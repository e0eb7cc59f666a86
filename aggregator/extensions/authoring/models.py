"""Models of load, with the recurrent nets of the PL-FL paper, and of cellular traffic.

Those of traffic read closeness (the last hours) and period (the same hours, days ago).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LoadMlp(nn.Module):
    """The window as one row: 64, 32, then the forecast; PReLU between.

    >>> sum(p.numel() for p in LoadMlp().parameters())
    8417
    """

    def __init__(self, channels: int = 8, lookback: int = 12, horizon: int = 1) -> None:
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
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, num_layers=2, batch_first=True)
        self.head = head(hidden * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
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
        super().__init__()
        self.gru = nn.GRU(channels, hidden, num_layers=2, batch_first=True)
        self.head = head(hidden * lookback, horizon)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.head(self.gru(x)[0].flatten(1))
        return joined


HOURS, DAYS, WIDTH = 3, 3, 64  # hours of closeness, days of period, and units of a layer


def views(x: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """Return closeness ``[B, 3, 1]`` and period ``[B, 3, horizon]`` of a window, oldest first.

    >>> hours = torch.arange(100.0)  # the window ends at hour 90; its target is hour 91
    >>> rows = [torch.stack([hours[t - 71], hours[t - 47], hours[t - 23], hours[t]])
    ...         for t in (88, 89, 90)]
    >>> close, period = views(torch.stack(rows)[None], 1)
    >>> close.flatten().tolist(), period.flatten().tolist()
    ([88.0, 89.0, 90.0], [19.0, 43.0, 67.0])
    """
    return x[:, -HOURS:, -1:], x[:, -horizon:, :DAYS].transpose(1, 2)


class CellsMlp(nn.Module):
    """BAFDP's net over closeness and period: 64, 64, then the forecast; ReLU between.

    >>> sum(p.numel() for p in CellsMlp().parameters())
    4673
    """

    def __init__(self, horizon: int = 1) -> None:
        super().__init__()
        self.horizon = horizon
        self.body = nn.Sequential(
            nn.Linear(HOURS + DAYS * horizon, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(WIDTH, horizon)

    def forward(self, x: Tensor) -> Tensor:
        close, period = views(x, self.horizon)
        joined = torch.cat([close.flatten(1), period.flatten(1)], 1)
        out: Tensor = self.head(self.body(joined))
        return out


class CellsRecurrent(nn.Module):
    """Two recurrent layers of 64 over three steps: an hour of closeness beside a day of period."""

    def __init__(self, layer: type[nn.GRU | nn.LSTM], horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.body = layer(1 + horizon, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, horizon)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.cat(views(x, self.horizon), 2)
        out: Tensor = self.head(self.body(steps)[0][:, -1])
        return out


class CellsGru(CellsRecurrent):
    """The GRU of FedGRU.

    >>> sum(p.numel() for p in CellsGru().parameters())
    38081
    """

    def __init__(self, horizon: int = 1) -> None:
        super().__init__(nn.GRU, horizon)


class CellsLstm(CellsRecurrent):
    """The LSTM of Fed-NTP.

    >>> sum(p.numel() for p in CellsLstm().parameters())
    50753
    """

    def __init__(self, horizon: int = 1) -> None:
        super().__init__(nn.LSTM, horizon)


class CellsBranches(nn.Module):
    """FedDA's two branches: an LSTM of closeness and one of period, last states added.

    >>> sum(p.numel() for p in CellsBranches().parameters())
    100929
    """

    def __init__(self, horizon: int = 1) -> None:
        super().__init__()
        self.horizon = horizon
        self.branches = nn.ModuleDict(
            {
                name: nn.LSTM(width, WIDTH, num_layers=2, batch_first=True)
                for name, width in (("closeness", 1), ("period", horizon))
            }
        )
        self.head = nn.Linear(WIDTH, horizon)

    def forward(self, x: Tensor) -> Tensor:
        close, period = views(x, self.horizon)
        ends = self.branches["closeness"](close)[0], self.branches["period"](period)[0]
        out: Tensor = self.head(ends[0][:, -1] + ends[1][:, -1])
        return out
