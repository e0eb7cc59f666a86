"""Send the device's newest forecast to the aggregator, over the fleet's own link.

No thread: the client, which signs and sends, runs in the agent's loop, and sending only queues a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edge_sdk.forecasting.issued_forecast import IssuedForecast
from edge_sdk.outputs.base import AgentReport
from edge_sdk.wire.protocol.messages import ForecastMessage

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

    def send_with(self, send: Send) -> None:
        """Send through this function from now on."""
        self._send = send

    def start(self) -> None:
        """Do nothing: the client has the link."""

    def submit(self, report: AgentReport, *, is_new: bool) -> None:
        """Send a new forecast, or one that could not be sent before."""
        if is_new:
            self._waiting = forecast_message(report.issued)
        if self._waiting is not None and self._send(self._waiting):
            self._waiting = None
            self._written += 1

    def health(self) -> dict[str, Any]:
        """Return the number of forecasts sent, and whether one waits for the link."""
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
