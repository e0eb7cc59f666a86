"""Show feeders in the console, over HTTP and to Prometheus, from the stored forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup
from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder import FeederBook, FeederForecast
from aggregator.operations.charts import line_chart

HOUR = 3_600_000
SHOWN = 20  # feeders with a picture


def feeder_values(config: AggregatorConfig, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the stored feeders, or the one of the query, each with its picture."""
    found = list(FeederBook.of(config).all())
    wanted = query.get("id")
    chosen = [one for one in found if wanted is None or one.feeder == wanted]
    return {
        "names": [one.feeder for one in found],
        "feeders": [_shown(one) for one in chosen[:SHOWN]],
        "left_out": len(chosen) - len(chosen[:SHOWN]),
    }


def mark(config: AggregatorConfig) -> str:
    """Return a text that differs after a feeder was forecast again."""
    return str(FeederBook.of(config).mark())


def document(config: AggregatorConfig) -> Mapping[str, Any]:
    """Return the stored forecasts for programs."""
    return {"feeders": [one.document() for one in FeederBook.of(config).all()]}


def feeder_chart(one: FeederForecast) -> str:
    """Return a picture of the forecast with its interval, and of the newest known day.

    Both days begin at the left: the clock time is the same.
    """

    def line(values: Sequence[float] | None) -> list[tuple[float, float]]:
        return [(i * one.step / HOUR, value) for i, value in enumerate(values or ())]

    known = f"{datetime.fromtimestamp(one.yesterday.begin / 1000, UTC):%Y-%m-%d}, known"
    lines = {
        "forecast": line(one.values),
        "lower end": line(one.lower),
        "upper end": line(one.upper),
        known: line(one.yesterday.values),
    }
    begin = datetime.fromtimestamp(one.begin / 1000, UTC)
    title = f"Feeder {one.feeder}, {begin:%Y-%m-%d}"
    x_name = f"hours after {begin:%Y-%m-%d %H:%M} UTC"
    return line_chart(title, one.unit, {k: v for k, v in lines.items() if v}, x_name)


def _shown(one: FeederForecast) -> dict[str, Any]:
    yesterday = one.yesterday
    return {
        "name": one.feeder,
        "forecast": one,
        "yesterday": yesterday,
        "yesterday_missing": yesterday.expected - yesterday.members,
        "rows": [
            row | {"before": before}
            for row, before in zip(one.rows(), yesterday.values, strict=True)
        ],
        "chart": Markup(feeder_chart(one)),  # noqa: S704 - line_chart escapes
    }


def gauges(own: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Register and return the gauges of forecast, of devices and of missing devices."""
    load = Gauge(
        "gridfed_feeder_forecast",
        "Forecast of a feeder for the present step, its interval and its highest step, in its unit.",
        ["feeder", "what"],
        registry=own,
    )
    devices = Gauge("gridfed_feeder_devices", "Devices of a feeder.", ["feeder"], registry=own)
    missing = Gauge(
        "gridfed_feeder_missing_devices",
        "Devices of a feeder that are missing in the sum of expected values.",
        ["feeder"],
        registry=own,
    )
    return load, devices, missing
