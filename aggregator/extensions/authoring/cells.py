"""Models of cellular traffic: closeness (the last hours) and period (the same hours, days ago).

All read one window ``[B, lookback, channels]`` whose channels are the traffic three days, two days
and (where the horizon is short of a day) one day before, and last the traffic itself; ``views``
cuts closeness and period out of it. Widths are those of the papers: BAFDP's 64, 64 with ReLU; two
recurrent layers of 64 for FedGRU, Fed-NTP and each branch of FedDA.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HOURS, DAYS, WIDTH = 3, 3, 64
"""Hours of closeness, days of period, and units of a layer."""


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
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__()
        self.horizon = horizon
        self.body = nn.Sequential(
            nn.Linear(HOURS + DAYS * horizon, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(WIDTH, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        close, period = views(x, self.horizon)
        joined = torch.cat([close.flatten(1), period.flatten(1)], 1)
        out: Tensor = self.head(self.body(joined))
        return out


class CellsRecurrent(nn.Module):
    """Two recurrent layers of 64 over three steps: an hour of closeness beside a day of period."""

    def __init__(self, layer: type[nn.GRU | nn.LSTM], horizon: int) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__()
        self.horizon = horizon
        self.body = layer(1 + horizon, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        steps = torch.cat(views(x, self.horizon), 2)
        out: Tensor = self.head(self.body(steps)[0][:, -1])
        return out


class CellsGru(CellsRecurrent):
    """The GRU of FedGRU.

    >>> sum(p.numel() for p in CellsGru().parameters())
    38081
    """

    def __init__(self, horizon: int = 1) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__(nn.GRU, horizon)


class CellsLstm(CellsRecurrent):
    """The LSTM of Fed-NTP.

    >>> sum(p.numel() for p in CellsLstm().parameters())
    50753
    """

    def __init__(self, horizon: int = 1) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
        super().__init__(nn.LSTM, horizon)


class CellsBranches(nn.Module):
    """FedDA's two branches: an LSTM of closeness and one of period, last states added.

    >>> sum(p.numel() for p in CellsBranches().parameters())
    100929
    """

    def __init__(self, horizon: int = 1) -> None:
        """Initialise the parameters; seed torch first for reproducible ones."""
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
        """Forecast ``[B, horizon]`` from ``[B, lookback, channels]``."""
        close, period = views(x, self.horizon)
        ends = self.branches["closeness"](close)[0], self.branches["period"](period)[0]
        out: Tensor = self.head(ends[0][:, -1] + ends[1][:, -1])
        return out
