"""Show the newest forecast of a device whose owner sends forecasts to the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from aggregator.analysis.line_chart import line_chart
from aggregator.config import AggregatorConfig, bind
from aggregator.ingress.forecast_book import ForecastBook, steps_of
from edge_sdk.app.cli import Failure
from edge_sdk.wire.protocol.topics import is_device_id


def device_forecast(config: AggregatorConfig, device: str) -> Mapping[str, Any] | None:
    """Return the stored forecast of a device with its picture and its rows; None if it has sent none.

    Args:
        config: Configuration of the aggregator.
        device: An enrolled device.
    """
    book = ForecastBook(config.forecasts_folder)
    found = book.read(device) if is_device_id(device) else None
    if found is None:
        return None
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
        stream: Stream that is forecast.
        unit: Its unit.
        steps: Start in Unix seconds, value, and both ends of each step; None if unknown.

    Example:
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
