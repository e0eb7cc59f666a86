"""Forecasts of a span of the past, written to a file."""

from __future__ import annotations

import csv

from edge_sdk.extensions.evaluation.forecast import DeviceInspection, write_rolling
from tests.edge_sdk.extensions.intervals.test_client_intervals import BEGUN, fleet, made, observe

__all__ = ["fleet", "made"]


def test_past_intervals_are_written_beside_past_forecasts(fleet, tmp_path):
    client = fleet.device.start()
    observe(client, 80)
    review = DeviceInspection(client.config, client.learner, client.state)
    out = tmp_path / "rolling.csv"
    assert write_rolling(review, BEGUN + 40 * 3600, BEGUN + 60 * 3600, out) == 20
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["origin", "step", "forecast", "truth", "lower", "upper"]
    assert all(float(r["lower"]) <= float(r["forecast"]) <= float(r["upper"]) for r in rows)
