"""Quantiles of a load or of traffic, from its last rows and the same slots of earlier days.

The models need nothing but the series itself and the clock. Every earlier day is optional: a device
whose record is too short, or has a gap there, gives the channel's mask, and the model forecasts
from what is left.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from aggregator.extensions.authoring.export_spec import Recipe
from edge_sdk.protocol.contract.manifest import Feature, Loss, Target, Training, Window

LEVELS = (0.1, 0.5, 0.9)
DAY = 86_400
AROUND = 4  # rows of earlier days on either side of the forecast ones
GAIN = 8.0  # ratio of a series' range to its deviation, about: weights expect deviations
CLOCK = ("hour_sin", "hour_cos", "dow_sin", "dow_cos")
AGO = {1: "a-day", 2: "two-days", 3: "three-days", 7: "a-week"}
WARMTH = ("temperature", "temperature-known")
AHEAD = ("temperature-ahead", "temperature-ahead-known")


class WeekSlots(nn.Module):
    """Two hidden layers beside a linear path that follows a drifting level.

    Channels are the series; the series ``d * day - horizon - AROUND + 1`` steps ago for each of the
    ``days`` d; a mask for each of these; sine and cosine of the hour and of the day of the week,
    and the weekend; for a model with ``weather``, the temperature and its mask; and, with ``ahead``,
    those of the forecast row. Of the earlier
    days it reads the forecast slots and ``AROUND`` slots on either side. A ``relative`` model reads
    differences from the last value, and forecasts them. Further inputs are derived: harmonics of
    the hour, because a site's day is not one sine wave.

    >>> WeekSlots(1, days=4)(torch.zeros(5, 24, 14)).shape
    torch.Size([5, 1, 3])
    """

    def __init__(
        self,
        horizon: int,
        *,
        days: int,
        lookback: int = 24,
        width: int = 128,
        levels: int = 3,
        weather: bool = False,
        ahead: bool = False,
        relative: bool = True,
    ) -> None:
        super().__init__()
        self.shape, self.days = (horizon, levels), days
        self.weather, self.ahead, self.relative = weather, ahead, relative
        self.near = horizon + 2 * AROUND
        inputs = (
            lookback + 1 + days * (self.near + 1) + 11 + (5 if weather else 0) + (3 if ahead else 0)
        )
        outputs = horizon * levels
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, outputs)
        self.path = nn.Linear(inputs, outputs)
        nn.init.normal_(self.path.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Forecast ``[B, horizon, levels]`` from ``[B, lookback, channels]``."""
        last, now = x[:, -1:, 0], x[:, -1]
        masks, clock = 1 + self.days, 1 + 2 * self.days
        earlier, known = x[:, -self.near :, 1:masks], x[:, -self.near :, masks:clock]
        rows = x[:, :, 0]
        if self.relative:
            earlier, rows = earlier - last[:, :, None], rows - last
        read = [GAIN * rows, GAIN * last, GAIN * (earlier * known).flatten(1)]
        read += [now[:, masks:clock], *harmonics(2 * now[:, clock : clock + 4] - 1)]
        read += [2 * now[:, clock + 4 : clock + 5] - 1]
        if self.weather:
            read += _weather(x, clock + 5)
        if self.ahead:
            read += _weather_ahead(x, clock + 5)
        seen = torch.cat(read, 1)
        out: Tensor = self.head(self.body(seen)) + self.path(seen)
        return (out / GAIN).view(out.shape[0], *self.shape)


def _weather(x: Tensor, at: int) -> list[Tensor]:
    warm, known = x[:, :, at], x[:, :, at + 1]
    here, before = known[:, -1:], known[:, :1]
    now = (2 * warm[:, -1:] - 1) * here
    return [here, now, now * now, (warm[:, -1:] - warm[:, :1]) * here * before, here * before]


def _weather_ahead(x: Tensor, at: int) -> list[Tensor]:
    """Return the temperature at the target, its square, and its change; zero where unknown.

    Without an announcement the device gives the newest temperature, so that the change is zero: no
    mask is read that training never saw at zero.
    """
    now, here = 2 * x[:, -1:, at] - 1, x[:, -1:, at + 1]
    then, known = 2 * x[:, -1:, at + 2] - 1, x[:, -1:, at + 3]
    some = here + known - here * known
    return [then * some, then * then * some, GAIN * (then - now) * here]


def harmonics(now: Tensor) -> list[Tensor]:
    """Return the hour's sine and cosine and their first three harmonics, then the rest of ``now``.

    >>> quarter = torch.tensor([[1.0, 0.0, 0.0]])  # six o'clock
    >>> torch.cat(harmonics(quarter), 1).tolist()[0][:4]
    [1.0, 0.0, 0.0, -1.0]
    """
    s, c, rest = now[:, :1], now[:, 1:2], now[:, 2:]
    twice = (2 * s * c, c * c - s * s)
    thrice = (twice[0] * c + twice[1] * s, twice[1] * c - twice[0] * s)
    return [s, c, *twice, *thrice, 2 * twice[0] * twice[1], twice[1] ** 2 - twice[0] ** 2, rest]


def recipe(
    name: str,
    stream: str,
    unit: str,
    *,
    horizon: int,
    step: int,
    days: tuple[int, ...],
    lookback: int = 24,
    weather: bool = False,
    ahead: bool = False,
    relative: bool = True,
    shared: tuple[str, ...] = ("",),
    graphs: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of ``WeekSlots`` for a series of sums over ``step`` seconds.

    Args:
        stream: Canonical name of the series.
        horizon: Rows ahead.
        days: Days whose slots are read, by distance from the target.
        lookback: Rows of the window; at least ``horizon + 2 * AROUND``.
        weather: Whether the outside temperature is an optional channel.
        ahead: Whether the temperature ``horizon`` rows later is one too.
        relative: Whether the model forecasts the change from the last value, or the value.
        shared: Prefixes of the layers that a run shares by default.
        graphs: Graphs besides gradient and forecast.
    """
    lags = [(f"{name}-{AGO[d]}-ago", d * DAY // step - horizon - AROUND + 1) for d in days]
    warm = (
        Feature(WARMTH[0], "stream", "°C", low=-20.0, high=45.0, stream="weather.temperature"),
        Feature(WARMTH[1], "mask", "1", of=WARMTH[0]),
    )
    later = (
        replace(warm[0], name=AHEAD[0], lead_steps=horizon),
        Feature(AHEAD[1], "mask", "1", of=AHEAD[0]),
    )
    return Recipe(
        window=Window(lookback=lookback, horizon=horizon, step_seconds=step),
        features=(
            Feature(name, "target", unit),
            *(Feature(lag, "lag", unit, lag_steps=steps) for lag, steps in lags),
            *(Feature(f"{lag}-known", "mask", "1", of=lag) for lag, _ in lags),
            *(Feature(x.replace("_", "-"), "calendar", "1", -1.0, 1.0, what=x) for x in CLOCK),
            Feature("weekend", "calendar", "1", what="weekend"),
            *(warm if weather else ()),
            *(later if ahead else ()),
        ),
        target=Target(
            stream, unit, form="change" if relative else "level", scale="device", output="quantiles"
        ),
        loss=Loss("pinball", levels=LEVELS),
        training=Training(minibatch="fresh", rate=1e-3, batch=64, steps=20),
        shared=shared,
        graphs=graphs,
    )


HALF_HOUR = 1800
DAYS = 7


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


def weekly_recipe(horizon: int, stream: str = "ev.demand.energy") -> Recipe:
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
