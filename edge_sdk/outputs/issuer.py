"""Decide when a forecast is issued, and pass it to every output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.forecasting.issued_forecast import IssuedForecast
from edge_sdk.outputs.base import AgentReport
from edge_sdk.outputs.fleet import FleetOutput
from edge_sdk.outputs.threaded_output import ThreadedOutput
from edge_sdk.runtime import GraphError

logger = logging.getLogger(__name__)

_STATUS_EVERY = 15.0  # seconds between two reports of the agent's state
_FAREWELL = 5.0  # seconds for all outputs to end; a service manager allows some twenty
_UNUSABLE = (
    GraphError,
    StoreFull,
    MemoryError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
)
"""Errors of a forecast that leave everything else of the agent usable."""


class ForecastingClient(Protocol):
    """The part of ``Client`` that an issuer uses."""

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock."""

    def forecast_marks(self) -> tuple[object, ...]:
        """Return what a forecast depends on; another one is due when it changes."""

    def issue(self) -> IssuedForecast:
        """Forecast, with origin, issue time, model version and quality."""

    def status(self) -> dict[str, Any]:
        """Return the client's state."""


class ForecastIssuer:
    """Issues a forecast when a reading, a model or the served candidate is new.

    Args:
        outputs: Outputs, not started yet.
        client: Client that forecasts.
        sources: Returns the state of the continuous sources.
    """

    def __init__(
        self,
        outputs: Sequence[ThreadedOutput | FleetOutput],
        client: ForecastingClient,
        sources: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self._outputs, self._client, self._sources = outputs, client, sources
        self._marks: tuple[object, ...] | None = None
        self._is_stale = True
        self._issued: IssuedForecast | None = None
        self._pending: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._stated = -float("inf")
        self._failing = ""

    def turn(self) -> None:
        """Issue a forecast if one is due; report the agent's state now and then. Never raises."""
        if not self._outputs:
            return
        now, marks = self._client.now, self._client.forecast_marks()
        if marks != self._marks:
            self._marks, self._is_stale = marks, True
            self._pending = {output.name for output in self._outputs}
        ready = {name for name in self._pending if self._not_before.get(name, now) <= now}
        if ready and self._is_stale:
            self._issue()
            self._is_stale = False
        if self._issued is None or not (ready or now - self._stated >= _STATUS_EVERY):
            return
        self._stated = now
        self._report(self._issued, ready)
        self._pending -= ready
        self._not_before |= {x.name: now + x.interval for x in self._outputs if x.name in ready}

    def _report(self, issued: IssuedForecast, ready: set[str]) -> None:
        """Pass the newest forecast, and the state of the agent, to every output."""
        sources, outputs = tuple(self._sources()), tuple(self.health())
        report = AgentReport(issued, self._client.status(), sources, outputs)
        for output in self._outputs:
            output.submit(report, is_new=output.name in ready)

    def health(self) -> list[dict[str, Any]]:
        """Return the state of every output."""
        return [output.health() for output in self._outputs]

    def _issue(self) -> None:
        try:
            self._issued = self._client.issue()
        except _UNUSABLE as error:
            why = str(error) or type(error).__name__
            if why != self._failing:
                self._failing = why
                logger.warning("forecast not issued %s", fields(why=why))
        else:
            self._failing = ""

    def __enter__(self) -> Self:
        """Start every output."""
        for output in self._outputs:
            output.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the last forecast, and stop every output, within a few seconds for all together."""
        for output in self._outputs:
            output.stop()
        end = time.monotonic() + _FAREWELL
        for output in self._outputs:
            output.close(max(0.0, end - time.monotonic()))
