"""Show feeders in the console, over HTTP and to Prometheus, from the stored forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup
from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder import FeederBook, FeederForecast
from aggregator.extensions.feeder.feeder_chart import day_chart

SHOWN = 20  # feeders with a picture


def feeder_values(config: AggregatorConfig, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the stored feeders, or the one of the query, each with its picture."""
    found = list(FeederBook.of(config).all())
    zone = ZoneInfo(config.section("feeder").zone)
    wanted = query.get("id")
    chosen = [one for one in found if wanted is None or one.feeder == wanted]
    return {
        "names": [one.feeder for one in found],
        "feeders": [_shown(one, zone) for one in chosen[:SHOWN]],
        "zone": zone.key,
        "left_out": len(chosen) - len(chosen[:SHOWN]),
    }


def mark(config: AggregatorConfig) -> str:
    """Return a text that differs after a feeder was forecast again."""
    return str(FeederBook.of(config).mark())


def document(config: AggregatorConfig) -> Mapping[str, Any]:
    """Return the stored forecasts for programs."""
    return {"feeders": [one.document() for one in FeederBook.of(config).all()]}


def _shown(one: FeederForecast, zone: ZoneInfo) -> dict[str, Any]:
    yesterday, rows = one.yesterday, one.rows()
    return {
        "name": one.feeder,
        "forecast": one,
        "yesterday": yesterday,
        "yesterday_missing": yesterday.expected - yesterday.members,
        "peak": max(rows, key=lambda row: row["value"]),
        "rows": [
            row | {"before": before} for row, before in zip(rows, yesterday.values, strict=True)
        ],
        "chart": Markup(day_chart(one, zone)),  # noqa: S704 - day_chart escapes
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
