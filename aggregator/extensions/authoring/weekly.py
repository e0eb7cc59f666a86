"""Quantiles of a site's demand, from its last rows and the same slots of the seven days before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aggregator.extensions.authoring.export_spec import Recipe
from aggregator.extensions.authoring.week_slots import harmonics
from edge_sdk.protocol.contract.manifest import Feature, Loss, Target, Training, Window

LEVELS = (0.1, 0.5, 0.9)
HALF_HOUR = 1800
DAYS = 7
AROUND = 4  # rows of earlier days on either side of the forecast hours
GAIN = 8.0  # ratio of a site's largest reading to their deviation, about: weights expect deviations


class Weekly(nn.Module):
    """Two hidden layers, and a parallel linear path that follows a drifting level.

    Channels are the demand, the demand ``d * day - horizon - AROUND + 1`` steps ago for the days
    ``d`` of a week, and five of the calendar in 0 to 1: sine and cosine of the hour, of the day of
    the week, and the weekend. Further inputs are derived: a mask of non-zero demand, and the
    hour's harmonics, because a site's day is not one sine wave.

    >>> Weekly(6)(torch.zeros(5, 32, 13)).shape
    torch.Size([5, 6, 3])
    """

    def __init__(self, horizon: int, lookback: int = 32, width: int = 128, levels: int = 3) -> None:
        super().__init__()
        self.shape = (horizon, levels)
        self.near = horizon + 2 * AROUND
        inputs, outputs = 2 * lookback + 4 * self.near + 1 + 11, horizon * levels
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, outputs)
        self.path = nn.Linear(inputs, outputs)
        nn.init.normal_(self.path.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon, levels]`` from ``[B, lookback, 13]``."""
        demand, days = GAIN * x[:, :, 0], GAIN * x[:, :, 1 : 1 + DAYS]
        near = days[:, -self.near :]
        is_busy = torch.relu(4 * demand) - torch.relu(4 * demand - 1)
        read = (demand, is_busy, near[:, :, 0], near[:, :, 1], near[:, :, DAYS - 1])
        means = (near.mean(2), days.mean((1, 2))[:, None])
        seen = torch.cat([*read, *means, *harmonics(2 * x[:, -1, 1 + DAYS :] - 1)], 1)
        out: Tensor = self.head(self.body(seen)) + self.path(seen)
        return (out / GAIN).view(out.shape[0], *self.shape)


def recipe(horizon: int, stream: str = "ev.demand.energy") -> Recipe:
    """Return the recipe of ``Weekly``, on half-hours."""
    day = 86_400 // HALF_HOUR
    lags = [(d, d * day - horizon - AROUND + 1) for d in range(1, DAYS + 1)]
    calendar = ("hour_sin", "hour_cos", "dow_sin", "dow_cos")
    waves = (Feature(x.replace("_", "-"), "calendar", "1", -1.0, 1.0, what=x) for x in calendar)
    return Recipe(
        window=Window(lookback=32, horizon=horizon, step_seconds=HALF_HOUR),
        features=(
            Feature("demand", "target", "kWh"),
            *(Feature(f"demand-{d}-days-ago", "lag", "kWh", lag_steps=n) for d, n in lags),
            *waves,
            Feature("weekend", "calendar", "1", what="weekend"),
        ),
        target=Target(stream, "kWh", form="level", scale="device", output="quantiles"),
        loss=Loss("pinball", levels=LEVELS),
        training=Training(minibatch="fresh", rate=1e-3, batch=64, steps=20),
    )
