"""Log a device's activity: the first reading, the first forecast, and a line a day."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from edge_sdk.app.cli import fields
from edge_sdk.forecasting.forecast import moment
from edge_sdk.outputs import ForecastingClient

logger = logging.getLogger(__name__)

_DAY = 86_400
_SILENCE = 26 * 3600.0  # seconds after which a line is due although no reading has begun a day


class LoggedClient(ForecastingClient, Protocol):
    """The part of ``Client`` that the log uses."""

    @property
    def newest_reading(self) -> int | None:
        """Start of the newest reading, Unix seconds; None before the first."""

    @property
    def forecast_source(self) -> str:
        """Name of the predictor of the next forecast; ``none`` if there is none."""


class ActivityLog:
    """Logs the first reading and forecast, and the completed days of one client.

    Args:
        client: The client; readings that it has now are not its first.
    """

    def __init__(self, client: LoggedClient) -> None:
        self._client, self._newest = client, client.newest_reading
        self._forecasts, self._logged = False, client.now
        self._counts: dict[str, int] = dict(client.status()["counts"])
        self._log_forecast()

    def turn(self) -> None:
        """Log the events since the last call."""
        before, newest, now = self._newest, self._client.newest_reading, self._client.now
        if newest != before:
            self._newest = newest
            if before is None:
                logger.info("first reading %s", fields(at=moment(newest)))
            self._log_forecast()
        is_next = before is not None and newest is not None and newest // _DAY > before // _DAY
        if is_next or now - self._logged >= _SILENCE:
            self._logged = now
            self._log_day(before)

    def _log_forecast(self) -> None:
        if self._forecasts or self._newest is None:
            return
        source = self._client.forecast_source
        if source != "none":
            self._forecasts = True
            logger.info("first forecast %s", fields(by=source, newest=moment(self._newest)))

    def _log_day(self, newest: int | None) -> None:
        status = self._client.status()
        counts: Mapping[str, int] = status["counts"]
        new = {name: counts.get(name, 0) - self._counts.get(name, 0) for name in _COUNTED}
        self._counts = dict(counts)
        monitor = status["forecast"].get("monitor", {})
        error = monitor.get("error relative to naive, 7 days", "unknown")
        day = "none" if newest is None else str(moment(newest))[:10]
        logger.info(
            "day complete %s",
            fields(
                day=day,
                readings=new[_COUNTED[0]],
                forecasts=new[_COUNTED[1]],
                served=status["forecast"]["served"],
                error_relative_to_naive=error,
                fleet=fleet_state(status),
            ),
        )


_COUNTED = ("readings new", "forecasts")


def fleet_state(status: Mapping[str, Any]) -> str:
    """Return the state of a device's part in its fleet, in words.

    >>> status = {"fleet": "north", "linked": True, "stopped": "", "run": 2, "round": 7}
    >>> fleet_state(status), fleet_state(status | {"linked": False})
    ('run 2, round 7', 'no link; run 2, round 7')
    >>> fleet_state({"fleet": None}), fleet_state(status | {"stopped": "budget"})
    ('none', 'run 2, round 7; stopped: budget')
    """
    if status.get("fleet") is None:
        return "none"
    words = "" if status["linked"] else "no link; "
    words += f"run {status['run']}, round {status['round']}" if status["run"] else "no run yet"
    return f"{words}; stopped: {status['stopped']}" if status["stopped"] else words
