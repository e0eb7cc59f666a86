"""Score a device's candidates and naive forecasts on its own stored record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.forecasting import boosted_fit
from edge_sdk.forecasting.boosted_fit import FleetForecasts
from edge_sdk.forecasting.boosted_model import BoostedModel
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.candidates import CandidateModels, chosen
from edge_sdk.forecasting.combination import (
    BLEND,
    BY_STEP,
    CANDIDATES,
    COMMON,
    FLEET,
    FLEET_TREES,
    LAST_GOOD,
    MEAN,
    TUNED,
    mean_loss,
)
from edge_sdk.forecasting.forecast import fan
from edge_sdk.forecasting.forecast_choice import ForecastChoice
from edge_sdk.forecasting.forecast_metrics import mae, mase, naive_lag1, rmse
from edge_sdk.forecasting.own_model import fit
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.wire.contract.parameter_layout import Vector

LAST_VALUE = "last value"
"""The newest value, repeated."""


@dataclass(frozen=True, slots=True)
class BacktestRow:
    """The score of one way to forecast.

    Attributes:
        name: Name of the candidate, or ``last value``.
        error: Mean absolute error, in the unit of the series.
        rmse: Root of the mean squared error.
        mase: Error in units of the record's mean absolute step; None for a constant record.
        loss: Twice the mean pinball loss of the quantiles; None for a point forecast.
        is_trained: Whether its model may have been trained on the scored windows.
    """

    name: str
    error: float
    rmse: float
    mase: float | None
    loss: float | None
    is_trained: bool


def scored(
    models: CandidateModels,
    choice: ForecastChoice,
    p: Vector,
    frame: ChannelFrame,
    origins: Ints,
    *,
    is_trained: bool,
) -> tuple[list[BacktestRow], int]:
    """Score every way to forecast that the record allows, the least error first.

    All are scored on the same windows: those that each of them can forecast. The device's own models
    are fitted again, on the windows before the first scored one.

    Args:
        models: The candidates.
        choice: The present choice; its weights are those of the weighted mean.
        p: Whole vector of the fleet's model.
        frame: Channels and readings.
        origins: Windows to score, oldest first.
        is_trained: Whether the fleet's model may have been trained on them.

    Returns:
        The rows, and the number of windows.
    """
    if not len(origins):
        return [], 0
    before = frame.origins()
    before = before[before + frame.window.horizon < origins[0]]
    again = replace(models, own=fit(frame, before), boosted=_boosted(models, p, frame, before))
    fans = again.fans(p, frame, origins)
    found = dict(zip(CANDIDATES, fans, strict=True))
    if models.tuned is None:
        del found[TUNED]
    if choice.name in (MEAN, BY_STEP):
        found[choice.name] = chosen(choice, fans)
    around = found[FLEET] - found[FLEET][:, :, [models.levels.index(0.5)]]
    found[LAST_VALUE] = frame.last[origins, None, None] + around
    found = {name: one for name, one in found.items() if np.isfinite(one).any()}
    truth = frame.truth(origins)
    known = np.isfinite(truth).all(axis=1)
    for one in found.values():
        known &= np.isfinite(one).all(axis=(1, 2))
    step = naive_lag1(frame.raw)
    of_fleet = {FLEET, COMMON, TUNED, LAST_GOOD, FLEET_TREES, BLEND, MEAN, BY_STEP}
    learned = of_fleet if is_trained else set()
    rows = [
        _row(name, one[known], truth[known], models, step, is_trained=name in learned)
        for name, one in found.items()
    ]
    return sorted(rows, key=lambda row: row.error), int(known.sum())


def _boosted(
    models: CandidateModels, p: Vector, frame: ChannelFrame, before: Ints
) -> BoostedModel | None:
    """Return trees and blend fitted to some windows; None where the device has none."""
    if models.boosted is None:
        return None

    def of(vector: Vector) -> FleetForecasts:
        def quantiles(origins: Ints) -> Floats:
            return fan(models.graph, vector, frame, origins, models.levels)

        return FleetForecasts(quantiles, quantiles)

    named = {FLEET: p} if models.common is None else {FLEET: p, COMMON: models.common}
    fleet = {name: of(vector) for name, vector in named.items()}
    return boosted_fit.fit(frame, before, models.levels, lambda _early, _late: fleet)


def _row(
    name: str,
    fan: Floats,
    truth: Floats,
    models: CandidateModels,
    step: float,
    *,
    is_trained: bool,
) -> BacktestRow:
    middle = fan[:, :, models.levels.index(0.5)]
    loss = mean_loss(fan, truth, models.levels) if len(models.levels) > 1 else None
    return BacktestRow(
        name, mae(truth, middle), rmse(truth, middle), mase(truth, middle, step), loss, is_trained
    )


def as_json(row: BacktestRow, choice: ForecastChoice) -> Mapping[str, object]:
    """Return a row as plain values."""
    return {
        "name": row.name,
        "error": row.error,
        "rmse": row.rmse,
        "mase": row.mase,
        "loss": row.loss,
        "trained on these windows": row.is_trained,
        "served": row.name == choice.name,
    }
