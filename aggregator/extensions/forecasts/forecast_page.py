"""Show forecasts in the console: the newest of one device, and those of several in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.forecasts.forecast_book import ForecastBook, steps_of
from aggregator.operations.charts import line_chart
from edge_sdk.app.clock import SystemClock
from edge_sdk.errors import Failure
from edge_sdk.protocol.topics import is_device_id

PICTURED = 4  # devices in one picture of forecasts


def device_forecast(config: AggregatorConfig, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the stored forecast of a device with its picture and its rows; empty if it has sent none."""
    book, device = ForecastBook.of(config), query.get("id", "")
    found = book.read(device) if is_device_id(device) else None
    if found is None:
        return {}
    steps = steps_of(found)
    unit = unit_of(config, found.stream)
    return {
        "issued": found.t,
        "stream": found.stream,
        "unit": unit,
        "model": found.model,
        "bundle": found.bundle,
        "version": found.version,
        "by": found.by,
        "source": found.source,
        "error": found.error,
        "coverage": found.coverage,
        "steps": steps,
        "chart": forecast_chart(found.stream, unit, steps),
    }


def newest_forecasts(config: AggregatorConfig, _query: Mapping[str, str]) -> dict[str, Any]:
    """Return a picture of the devices' forecasts after the present time; empty without a forecast.

    They are drawn one by one: a forecast may be a median, and medians have no sum.
    """
    now = SystemClock().wall()
    found, count = ForecastBook.of(config).newest(PICTURED)
    ahead = {
        device: [
            (one["start"], one["value"]) for one in steps_of(forecast) if one["value"] is not None
        ]
        for device, forecast in found
        if forecast.start + forecast.num * forecast.step > now
        and forecast.stream == found[0][1].stream
    }
    ahead = {device: steps for device, steps in ahead.items() if steps}
    if not ahead:
        return {}
    begin = min(steps[0][0] for steps in ahead.values())
    stream = found[0][1].stream
    unit = unit_of(config, stream)
    lines = {
        device: [((at - begin) / 3600.0, value) for at, value in steps]
        for device, steps in ahead.items()
    }
    title = f"Forecasts of {stream}"
    x_name = f"hours after {datetime.fromtimestamp(begin, UTC):%Y-%m-%d %H:%M} UTC"
    picture = line_chart(title, unit, lines, x_name)
    return {
        "chart": Markup(picture),  # noqa: S704 - line_chart escapes
        "devices": list(ahead),
        "stream": stream,
        "unit": unit,
        "count": count,
    }


def unit_of(config: AggregatorConfig, stream: str) -> str:
    """Return the unit of a stream by the bundles of the configured runs."""
    for view in config.views():
        with suppress(Failure):
            target = bind(view).bundle.manifest.target
            if target.stream == stream:
                return target.unit
    return "unit of the stream"


def forecast_chart(stream: str, unit: str, steps: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a picture of a forecast and the ends of its interval.

    Args:
        steps: Start in Unix seconds, value, and both ends of each step; None if unknown.

    >>> steps = [{"start": 0.0, "value": 1.5, "lower": 1.0, "upper": None}]
    >>> str(forecast_chart("x", "kWh", steps)).count("<circle")
    2
    """
    first = datetime.fromtimestamp(steps[0]["start"], UTC)
    lines = {
        name: [
            ((one["start"] - steps[0]["start"]) / 3600.0, one[key])
            for one in steps
            if one[key] is not None
        ]
        for name, key in (("upper end", "upper"), ("forecast", "value"), ("lower end", "lower"))
    }
    title = f"Forecast of {stream} with its interval"
    x_name = f"hours after {first:%Y-%m-%d %H:%M} UTC"
    return Markup(line_chart(title, unit, lines, x_name))  # noqa: S704 - line_chart escapes
