"""Put together a forecast with its issue time, model version and quality."""

from __future__ import annotations

from edge_sdk.forecasting.combination import FLEET
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.forecast_choice import ForecastChoice
from edge_sdk.forecasting.issued_forecast import ForecastQuality, IssuedForecast
from edge_sdk.training.model_runtime import ModelRuntime

_NO_CLOCK_BEFORE = 1_577_836_800.0  # a wall clock before 2020 counts as unset


def issued_forecast(
    learner: ModelRuntime,
    found: Forecast,
    choice: ForecastChoice,
    *,
    now: float,
    run: int,
    version: int,
) -> IssuedForecast:
    """Return a forecast as outputs receive it.

    Args:
        learner: Model runtime that forecast.
        found: The forecast.
        choice: Choice of the served candidate, with the held-back errors.
        now: Unix seconds of this machine's clock.
        run: Training run of the model.
        version: Version of the common model.
    """
    manifest, series, errors = learner.manifest, learner.series, choice.errors
    quality = ForecastQuality(choice.name, errors.get(choice.name), errors.get(FLEET), choice.days)
    return IssuedForecast(
        device=learner.config.id,
        fleet=learner.config.fleet,
        stream=manifest.target.stream,
        issued=now if now > _NO_CLOCK_BEFORE else None,
        newest=series.newest * series.step if len(series) else None,
        step=series.step,
        forecast=found,
        bundle=manifest.name,
        bundle_version=manifest.version,
        run=run,
        version=version,
        quality=quality,
    )
