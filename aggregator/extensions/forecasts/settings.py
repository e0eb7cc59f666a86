"""Define the section ``[forecasts]`` of the aggregator's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForecastsSection:
    """Forecasts that devices send on their owners' request."""

    # store the newest forecast of each device that sends one: nearly as personal as its readings, and not
    # needed for the load of a feeder, which sums give
    store: bool = False
