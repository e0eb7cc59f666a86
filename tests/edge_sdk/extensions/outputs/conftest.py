"""Forecasts and reports to write."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.extensions.outputs.forecast_issuer import AgentReport
from edge_sdk.forecasting.forecast import Forecast, ForecastQuality, IssuedForecast

START = 1_700_002_800


def issued_forecast(**changes) -> IssuedForecast:
    forecast = Forecast(
        START + 3600 * np.arange(2, dtype=np.int64),
        np.array([1.25, np.nan]),
        "kWh",
        "own model",
        np.array([[1.0, 1.5], [np.nan, np.nan]]),
        0.8,
        calibrated=48,
    )
    values = {
        "device": "meter-1",
        "fleet": "north",
        "stream": "elec.import.energy",
        "issued": 1_700_002_805.5,
        "newest": START - 3600,
        "step": 3600,
        "forecast": forecast,
        "bundle": "load-week-1",
        "bundle_version": 1,
        "run": 3,
        "version": 7,
        "quality": ForecastQuality("own", 0.125, 0.25, 9),
    }
    return IssuedForecast(**values | changes)


def nothing_yet() -> IssuedForecast:
    empty = Forecast(np.zeros(0, np.int64), np.zeros(0), "kWh", "none", missing="24 h of energy")
    quality = ForecastQuality("fleet")
    return issued_forecast(forecast=empty, issued=None, newest=None, version=-1, quality=quality)


@pytest.fixture
def report() -> AgentReport:
    status = {
        "forecast": {"monitor": {"error relative to naive, 7 days": 0.75, "alarms": 2}},
        "linked": True,
        "ready": True,
        "stopped": "",
        "method": "fedavg",
        "run": 3,
        "round": 8,
        "version": 7,
        "spent": 2,
        "outbox": 0,
        "windows": 120,
        "can_forecast": True,
        "counts": {"readings new": 130, 'odd "name"\\': 1},
    }
    sources = (
        {
            "type": "p1",
            "linked": True,
            "lost": 1,
            "accepted": 9,
            "rejected": {"bad checksum": 2},
            "seconds_since": None,
        },
    )
    outputs = ({"output": "0 http", "written": 4, "failures": 0, "failing": ""},)
    return AgentReport(issued_forecast(), status, sources, outputs)
