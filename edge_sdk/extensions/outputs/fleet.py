"""Send the device's newest forecast to the aggregator, over the fleet's own link.

No thread: the client, which signs and sends, runs in the agent's loop, and sending only queues a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.outputs.forecast_issuer import (
    AgentReport,
    ForecastingClient,
    OutputPlace,
    OutputType,
)
from edge_sdk.extensions.outputs.forecast_message import ForecastMessage
from edge_sdk.extensions.outputs.threaded_output import OutputSection
from edge_sdk.forecasting.forecast import IssuedForecast

Send = Callable[[ForecastMessage], bool]
"""Send a forecast; return False if nothing may be sent now."""


class FleetOutput:
    """The fleet as an output; a forecast that cannot be sent waits for the next report.

    Args:
        name: Number and type, for the log.
        interval: Shortest time between two forecasts, in seconds.
    """

    def __init__(self, name: str, interval: float) -> None:
        self.name, self.interval = name, interval
        self._send: Send = lambda _forecast: False
        self._waiting: ForecastMessage | None = None
        self._written = 0

    def start(self, client: ForecastingClient) -> None:
        """Send over the client's link from now on."""
        self._send = client.send_forecast

    def submit(self, report: AgentReport, *, is_new: bool) -> None:
        """Send a new forecast, or one that could not be sent before."""
        if is_new:
            self._waiting = forecast_message(report.issued)
        if self._waiting is not None and self._send(self._waiting):
            self._waiting = None
            self._written += 1

    def health(self) -> dict[str, Any]:
        failing = "" if self._waiting is None else "the aggregator is away"
        return {"output": self.name, "written": self._written, "failures": 0, "failing": failing}

    def stop(self) -> None:
        """Do nothing."""

    def close(self, patience: float = 0.0) -> None:
        """Do nothing: a forecast that waits is obsolete with the next start."""


def forecast_message(issued: IssuedForecast) -> ForecastMessage | None:
    """Return the message of a forecast; None without a value, or while the clock is not set."""
    found = issued.forecast
    if issued.issued is None or not issued.is_available:
        return None
    ends = found.interval
    lower, upper = (ends[:, 0], ends[:, 1]) if ends is not None else (np.nan * found.values,) * 2
    error = issued.quality.error
    return ForecastMessage(
        t=int(1000 * issued.issued),
        start=1000 * int(found.times[0]),
        step=1000 * issued.step,
        num=len(found.times),
        stream=issued.stream,
        model=issued.bundle,
        bundle=issued.bundle_version,
        run=issued.run,
        source=found.source,
        by=issued.quality.candidate,
        version=None if issued.version < 0 else issued.version,
        error=None if error is None or not math.isfinite(error) else float(error),
        coverage=found.coverage,
        blob=np.stack([found.values, lower, upper]).astype("<f4").tobytes(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutputSection(OutputSection):
    """``type = "fleet"``: to the aggregator, signed, over the fleet's own link."""

    interval: Duration = "15m"  # shortest time between two forecasts, at least 1s
    uncovered: bool = False  # also with a [privacy] mechanism, whose claim forecasts void


def _open(section: FleetOutputSection, place: OutputPlace) -> FleetOutput:
    if place.is_private and not section.uncovered:
        raise ConfigError(
            f"{place.where}: a forecast is computed from readings without noise, so sending it voids the "
            "claim of [privacy]",
            hint="remove the output, or set uncovered = true",
        )
    return FleetOutput(f"{place.number} fleet", seconds(section.interval))


FLEET = OutputType(FleetOutputSection, _open)
