"""Define a forecast as a device issues it: with its origin, issue time, model version and quality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edge_sdk.forecasting.forecast import Forecast

SCHEMA = 1
"""Version of the document of ``IssuedForecast.document``; raised when a key changes its meaning."""


@dataclass(frozen=True, slots=True)
class ForecastQuality:
    """The candidate that is served, and its error on values that no candidate had learned.

    Attributes:
        candidate: Name of the served candidate: ``fleet``, ``tuned``, ``own`` and so on.
        error: Its held-back error in the unit of the forecast; None before the first comparison.
        fleet_error: Held-back error of the fleet's model; None before the first comparison.
        days: Number of days compared.
    """

    candidate: str
    error: float | None = None
    fleet_error: float | None = None
    days: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IssuedForecast:
    """One forecast of one device, as outputs receive it.

    Attributes:
        device: Id of the device.
        fleet: Fleet of the device.
        stream: Canonical stream that is forecast.
        issued: Unix seconds of the issue; None while the device's clock is not set.
        newest: Start of the newest reading, Unix seconds; None before the first.
        step: Seconds of one forecast interval.
        forecast: The values, with their prediction interval.
        bundle: Name of the bundle.
        bundle_version: Version of the bundle.
        run: Training run of the model; 0 before the first.
        version: Version of the common model; -1 before the first.
        quality: Served candidate and its held-back error.
    """

    device: str
    fleet: str
    stream: str
    issued: float | None
    newest: int | None
    step: int
    forecast: Forecast
    bundle: str
    bundle_version: int
    run: int
    version: int
    quality: ForecastQuality

    @property
    def is_available(self) -> bool:
        """Return whether there is a value."""
        return self.forecast.source != "none" and bool(len(self.forecast.times))

    def rows(self) -> list[tuple[int, float | None, float | None, float | None]]:
        """Return start, value and both ends of the interval of each forecast interval.

        A value that is not known is None, as is an interval that the model does not forecast.
        """
        found, ends = self.forecast, self.forecast.interval
        return [
            (
                int(start),
                _known(found.values[i]),
                None if ends is None else _known(ends[i][0]),
                None if ends is None else _known(ends[i][1]),
            )
            for i, start in enumerate(found.times)
        ]

    def document(self) -> dict[str, Any]:
        """Return the forecast as a JSON document."""
        found, quality = self.forecast, self.quality
        return {
            "schema": SCHEMA,
            "device": self.device,
            "fleet": self.fleet,
            "stream": self.stream,
            "unit": found.unit,
            "issued_at": moment(self.issued),
            "newest_reading": moment(self.newest),
            "step_seconds": self.step,
            "source": found.source,
            "missing": found.missing,
            "coverage": found.coverage,
            "calibrated_on": found.calibrated,
            "model": {
                "bundle": self.bundle,
                "bundle_version": self.bundle_version,
                "run": self.run,
                "version": self.version,
            },
            "quality": {
                "candidate": quality.candidate,
                "error": quality.error,
                "fleet_error": quality.fleet_error,
                "days": quality.days,
            },
            "values": [
                {"start": moment(start), "value": value, "lower": lower, "upper": upper}
                for start, value, lower, upper in self.rows()
            ],
        }


def moment(at: float | None) -> str | None:
    """Format Unix seconds as ISO 8601 in UTC.

    >>> moment(1_700_000_000), moment(None)
    ('2023-11-14T22:13:20+00:00', None)
    """
    return None if at is None else datetime.fromtimestamp(int(at), UTC).isoformat()


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
