"""A running agent logs its first reading and forecast, and a line a day."""

from __future__ import annotations

import logging

import pytest

from edge_sdk.extensions.setup.agent_log import ActivityLog

DAY, BEGUN = 86_400, 1_700_006_400  # a midnight


class Device:
    """A client whose readings and clock the test sets."""

    def __init__(self):
        self.now, self.newest_reading, self.forecast_source = 0.0, None, "none"
        self.counts = {"readings new": 0, "forecasts": 0}

    def status(self):
        monitor = {"error relative to naive, 7 days": 0.61}
        forecast = {"served": "own", "monitor": monitor if self.counts["forecasts"] > 80 else {}}
        fleet = {"fleet": "north", "linked": True, "stopped": "", "run": 3, "round": 9}
        return {"counts": {**self.counts}, "forecast": forecast, **fleet}

    def read(self, hour):
        self.newest_reading = BEGUN + hour * 3600
        self.forecast_source = "model" if hour >= 24 else "none"
        self.counts["readings new"] += 1
        self.counts["forecasts"] += hour >= 24
        self.now += 3600.0


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_nine_days_of_readings_are_eleven_lines(lines):
    device = Device()
    log = ActivityLog(device)
    for hour in range(9 * 24 + 1):
        device.read(hour)
        for _ in range(3):
            log.turn()
    found = lines()
    assert [line.split()[:2] for line in found].count(["day", "complete"]) == 9
    assert found[0] == "first reading at=2023-11-15T00:00:00+00:00"
    assert [line for line in found if line.startswith("first forecast by=model")]
    assert found[-1] == (
        "day complete day=2023-11-23 readings=24 forecasts=24 served=own "
        'error_relative_to_naive=0.61 fleet="run 3, round 9"'
    )
    assert "error_relative_to_naive=unknown" in found[2]
    assert len(found) == 11


def test_readings_from_before_the_start_are_not_the_first(lines):
    device = Device()
    device.read(40)
    log = ActivityLog(device)
    device.read(41)
    log.turn()
    assert [line.split(" by")[0] for line in lines()] == ["first forecast"]


def test_a_day_without_readings_is_logged_too(lines):
    device = Device()
    device.read(30)
    log = ActivityLog(device)
    for _ in range(60):
        device.now += 3600.0
        log.turn()
    days = [line for line in lines() if line.startswith("day complete")]
    assert len(days) == 2
    assert "readings=0" in days[0]
