"""Catalogue of the exported models, and their recipes.

``load-lstm`` is the paper's form, kept for comparison. The others read hourly data with the load of
a day and a week ago and predict the change from the last value under a Huber loss; on real
buildings the error is 5 to 13 % lower than with the level under a squared error.

``cells-*`` forecast cellular traffic an hour or a day ahead from closeness and period. A day ahead,
period is all of the target's hours on each of the last three days: with the six values of one hour
an MLP on Milan is worse than a repetition of yesterday (RMSE 579 against 352 in the week before the
test), with all hours it is better (289).

``load-week-*``, ``load-quarter-hour-1`` and ``cells-week-*`` need nothing but the series itself and
the clock (``week_slots``). A load's change is learned, and its last layers are personal; of traffic
a day ahead the level.

``chargers-*`` forecast three quantiles of the demand at charging sites, one or six steps ahead.
All but ``chargers-paper-lstm-*`` and ``chargers-week-*`` are in two halves, for a graph model on
the server between them; ``chargers-paper-*`` have the widths and inputs of the PFGL paper.
``chargers-week-*`` read half-hours, and the same slots of seven days: on real sites their quantile
score is the lowest that was reached (``tools/reproduce.py e1``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal

from torch import nn

from aggregator.extensions.authoring.export_spec import Recipe
from aggregator.extensions.authoring.models import (
    CellsBranches,
    CellsGru,
    CellsLstm,
    CellsMlp,
    LoadGru,
    LoadLstm,
    LoadMlp,
)
from aggregator.extensions.authoring.split_models import (
    ConvDecoder,
    ConvEncoder,
    GruDecoder,
    GruEncoder,
    Halves,
    Lstm,
    LstmEncoder,
)
from aggregator.extensions.authoring.week_slots import Weekly, WeekSlots
from aggregator.extensions.authoring.week_slots import recipe as recipe_of_slots
from aggregator.extensions.authoring.week_slots import weekly_recipe as fed_weekly
from edge_sdk.protocol.contract.manifest import (
    CLIPPED_GRADIENT,
    HVP,
    ROBUST_GRADIENT,
    SPLIT,
    Feature,
    LipschitzStage,
    Loss,
    Target,
    Training,
    Window,
)

LOAD = "elec.import.energy"
TRAFFIC = "cell.internet.activity"
DEMAND = "ev.demand.energy"
HOUR = 3600
LEVELS = (0.1, 0.5, 0.9)

_Model = tuple[Callable[[], nn.Module], Recipe]

_TEMPERATURE = Feature(
    "temperature", "stream", "°C", low=-20.0, high=45.0, stream="weather.temperature"
)
_WIND = Feature("wind", "stream", "m/s", low=0.0, high=20.0, stream="weather.wind_speed")
_PAPER = Recipe(
    window=Window(lookback=12, horizon=1, step_seconds=900),
    features=(
        Feature("load", "target", "kWh"),
        Feature("slot-of-day", "calendar", "1", low=0.0, high=95.0, what="slot_of_day"),
        Feature("day-of-week", "calendar", "1", low=0.0, high=6.0, what="day_of_week"),
        _TEMPERATURE,
        _WIND,
        Feature("floor-area", "static", "m²", low=0.0, high=1000.0),
        Feature("wall-area", "static", "m²", low=0.0, high=1000.0),
        Feature("window-area", "static", "m²", low=0.0, high=200.0),
    ),
    target=Target(LOAD, "kWh", form="level", scale="device"),
    loss=Loss("mse"),
    training=Training(minibatch="fixed"),
    shared=("lstm.",),
)
_HOURLY = Recipe(
    window=Window(lookback=12, horizon=1, step_seconds=HOUR),
    features=(
        Feature("load", "target", "kWh"),
        Feature("hour-sin", "calendar", "1", low=-1.0, high=1.0, what="hour_sin"),
        Feature("hour-cos", "calendar", "1", low=-1.0, high=1.0, what="hour_cos"),
        Feature("weekend", "calendar", "1", low=0.0, high=1.0, what="weekend"),
        _TEMPERATURE,
        _WIND,
        Feature("load-a-day-ago", "lag", "kWh", lag_steps=24),
        Feature("load-a-week-ago", "lag", "kWh", lag_steps=168),
    ),
    target=Target(LOAD, "kWh", form="change", scale="device"),
    loss=Loss("huber", delta=0.01),  # near the absolute error; 0.1 cost 2 % on validation weeks
    training=Training(minibatch="fresh"),
    shared=("lstm.",),
)


def _cells(horizon: int) -> Recipe:
    """Return the recipe for traffic: rows of the days before the target align with its last row.

    A lag of a day minus the horizon, plus one, is the traffic itself if the horizon is a day.
    """
    days = {"three-days-ago": 72, "two-days-ago": 48, "a-day-ago": 24}
    lags = {name: hours - horizon + 1 for name, hours in days.items() if hours > horizon}
    before = tuple(
        Feature(f"traffic-{name}", "lag", "1", lag_steps=lag) for name, lag in lags.items()
    )
    return Recipe(
        window=Window(lookback=max(3, horizon), horizon=horizon, step_seconds=HOUR),
        features=(*before, Feature("traffic", "target", "1")),
        target=Target(TRAFFIC, "1", form="level", scale="device"),
        loss=Loss("huber", delta=0.1),  # its slope is bounded, so that the certificate holds
        training=Training(minibatch="fresh"),
    )


_HEAD = LipschitzStage("linear", "head")
_BRANCHES = tuple(
    (LipschitzStage("lstm", f"branches.{name}", steps=3), _HEAD) for name in ("closeness", "period")
)


def _plain(horizon: int, *stages: LipschitzStage) -> Recipe:
    read = LipschitzStage("read", times=math.sqrt(2)) if horizon == 24 else LipschitzStage("read")
    graphs = (ROBUST_GRADIENT, CLIPPED_GRADIENT)
    return replace(_cells(horizon), graphs=graphs, paths=((read, *stages),))


def _dense(horizon: int) -> Recipe:
    recipe = _plain(
        horizon, LipschitzStage("linear", "body.0"), LipschitzStage("linear", "body.2"), _HEAD
    )
    return replace(recipe, graphs=(*recipe.graphs, HVP))


def _recurrent(kind: Literal["gru", "lstm"]) -> tuple[LipschitzStage, LipschitzStage]:
    return LipschitzStage(kind, "body", steps=3), _HEAD


_DEMAND = Feature("demand", "target", "kWh")
_DATES = {  # inputs of PFGL beside the demand, each scaled to 0 to 1
    "hour": ("hour", 0.0, 23.0),
    "day-of-week": ("day_of_week", 0.0, 6.0),
    "day-of-month": ("day_of_month", 1.0, 31.0),
    "day-of-year": ("day_of_year", 1.0, 366.0),
    "month": ("month", 1.0, 12.0),
    "year": ("year", 2010.0, 2030.0),
}


def _chargers(horizon: int, *more: Feature, rate: float = 5e-4) -> Recipe:
    return Recipe(
        window=Window(lookback=32, horizon=horizon, step_seconds=HOUR),
        features=(_DEMAND, *more),
        target=Target(DEMAND, "kWh", form="level", scale="device", output="quantiles"),
        loss=Loss("pinball", levels=LEVELS),
        training=Training(minibatch="fresh", rate=rate, batch=32, steps=16),
        graphs=SPLIT,
    )


def _paper(horizon: int, rate: float = 5e-4) -> Recipe:
    dates = (
        Feature(name, "calendar", "1", low=low, high=high, what=what)
        for name, (what, low, high) in _DATES.items()
    )
    return _chargers(horizon, *dates, rate=rate)


def _weekly(horizon: int) -> Recipe:
    """Return the weekly recipe: days and week before the target, aligned with its last row."""
    lags = (
        Feature(f"demand-{name}-ago", "lag", "kWh", lag_steps=hours - horizon + 1)
        for name, hours in (("a-day", 24), ("a-week", 168))
    )
    clock = (
        Feature("hour-sin", "calendar", "1", low=-1.0, high=1.0, what="hour_sin"),
        Feature("hour-cos", "calendar", "1", low=-1.0, high=1.0, what="hour_cos"),
        Feature("weekend", "calendar", "1", low=0.0, high=1.0, what="weekend"),
    )
    return _chargers(horizon, *clock, *lags, rate=1e-3)


def _conv(channels: int, width: int, hidden: int, horizon: int) -> Halves:
    decoder = ConvDecoder(width, 32, hidden, horizon, len(LEVELS))
    return Halves(ConvEncoder(channels, width), decoder)


def _lstm_conv(horizon: int) -> Halves:
    return Halves(LstmEncoder(7, 64), ConvDecoder(64, 32, 64, horizon, len(LEVELS)))


def _gru(horizon: int) -> Halves:
    return Halves(GruEncoder(7, 64), GruDecoder(64, horizon, len(LEVELS)))


def _papers(horizon: int) -> dict[str, tuple[Callable[[], nn.Module], Recipe]]:
    plain = replace(_paper(horizon, rate=1e-3), graphs=())
    return {
        f"chargers-paper-{horizon}": (partial(_conv, 7, 64, 64, horizon), _paper(horizon)),
        f"chargers-paper-lstm-{horizon}": (partial(Lstm, 7, 64, horizon, len(LEVELS)), plain),
        f"chargers-paper-lstm-conv-{horizon}": (partial(_lstm_conv, horizon), _paper(horizon)),
        f"chargers-paper-gru-{horizon}": (partial(_gru, horizon), _paper(horizon)),
    }


_DAYS = (1, 2, 3, 7)
_DAYS_AHEAD = (2, 3, 7)  # a day ahead, the window itself holds the day before


def _load_slots(step: int, lookback: int, *, weather: bool = False, ahead: bool = False) -> _Model:
    """Return a model of a load one step ahead that needs no other stream.

    Sixty-four units: 128 are 1 to 2 % better and cost 2.7 times the bytes of a round.
    """
    net = partial(
        WeekSlots, 1, days=len(_DAYS), lookback=lookback, width=64, weather=weather, ahead=ahead
    )
    slots = partial(recipe_of_slots, "load", LOAD, "kWh", horizon=1, step=step, days=_DAYS)
    graphs = (CLIPPED_GRADIENT, ROBUST_GRADIENT)
    inputs = partial(slots, lookback=lookback, weather=weather, ahead=ahead)
    return net, inputs(shared=("body.",), graphs=graphs)


def _cell_slots(horizon: int) -> _Model:
    days, lookback = (_DAYS, 24) if horizon == 1 else (_DAYS_AHEAD, 32)
    relative = horizon == 1
    net = partial(WeekSlots, horizon, days=len(days), lookback=lookback, relative=relative)
    slots = partial(recipe_of_slots, "traffic", TRAFFIC, "1", horizon=horizon, step=HOUR, days=days)
    graphs = (CLIPPED_GRADIENT, ROBUST_GRADIENT)
    return net, slots(lookback=lookback, relative=relative, graphs=graphs)


# factory and recipe of every model, by name
MODELS: Mapping[str, tuple[Callable[[], nn.Module], Recipe]] = MappingProxyType(
    {
        "load-lstm": (LoadLstm, _PAPER),
        "load-lstm-week": (LoadLstm, _HOURLY),
        "load-gru": (LoadGru, replace(_HOURLY, shared=("gru.",))),
        "load-mlp": (LoadMlp, replace(_HOURLY, shared=("body.",), graphs=(HVP,))),
        "load-week-1": _load_slots(HOUR, 24),
        "load-week-weather-1": _load_slots(HOUR, 24, weather=True),
        "load-week-weather-ahead-1": _load_slots(HOUR, 24, weather=True, ahead=True),
        "load-quarter-hour-1": _load_slots(900, 32),
        "cells-week-1": _cell_slots(1),
        "cells-week-24": _cell_slots(24),
        "cells-mlp-1": (CellsMlp, _dense(1)),
        "cells-mlp-24": (partial(CellsMlp, 24), _dense(24)),
        "cells-gru-1": (CellsGru, _plain(1, *_recurrent("gru"))),
        "cells-gru-24": (partial(CellsGru, 24), _plain(24, *_recurrent("gru"))),
        "cells-lstm-1": (CellsLstm, _plain(1, *_recurrent("lstm"))),
        "cells-lstm-24": (partial(CellsLstm, 24), _plain(24, *_recurrent("lstm"))),
        "cells-branches-1": (CellsBranches, replace(_cells(1), paths=_BRANCHES)),
        "cells-branches-24": (partial(CellsBranches, 24), replace(_cells(24), paths=_BRANCHES)),
        "chargers-1": (partial(_conv, 6, 16, 32, 1), _weekly(1)),
        "chargers-6": (partial(_conv, 6, 16, 32, 6), _weekly(6)),
        "chargers-week-1": (partial(Weekly, 1), fed_weekly(1)),
        "chargers-week-6": (partial(Weekly, 6), fed_weekly(6)),
        **_papers(1),
        **_papers(6),
    }
)

# models that the package contains; the others, for comparisons, are exported on demand
SHIPPED = tuple(name for name in MODELS if not name.startswith("chargers-paper"))
