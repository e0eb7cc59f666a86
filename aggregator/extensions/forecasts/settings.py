"""Define the section ``[forecasts]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForecastsSection:
    """Forecasts that devices send on their owners' request."""

    store: bool = False  # store the newest forecast of each device that sends one
