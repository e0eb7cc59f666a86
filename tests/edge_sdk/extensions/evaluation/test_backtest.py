"""``gridfed-edge backtest``: every way to forecast is scored on the same windows of the own record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.choice.combination import (
    BLEND,
    CANDIDATES,
    FLEET_TREES,
    LAST_DAY,
    LAST_GOOD,
    LAST_WEEK,
    OWN,
)
from edge_sdk.extensions.evaluation.backtest import backtest
from edge_sdk.extensions.evaluation.forecast_metrics import naive_lag1
from edge_sdk.forecasting.forecast import COMMON, FLEET, TUNED
from edge_sdk.training import bootstrap
from tests.edge_sdk.days import DAY, NEAR, live, load, observe


@pytest.fixture
def read_only(numpy_bundle, monkeypatch):
    monkeypatch.setattr(bootstrap, "open_bundle", lambda _config, _announced: numpy_bundle)


def trained(make, **settings):
    fleet = make(**settings)
    client = fleet.device.start()
    observe(client, 60)
    live(fleet, 60, 1, w=NEAR)
    client.flush()
    return fleet.device.config, client


@pytest.mark.slow
def test_naive_forecasts_are_scored_as_by_hand(make, read_only):
    config, _ = trained(make)
    found = backtest(config, 7.0).data
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {*CANDIDATES, "last value"} - {COMMON, LAST_GOOD}
    values = np.array([load(hour) for hour in range(61 * DAY)])
    late = np.arange(len(values) - found["windows"], len(values))
    for name, back in ((LAST_DAY, DAY), (LAST_WEEK, 7 * DAY), ("last value", 1)):
        error = np.abs(values[late] - values[late - back]).mean()
        assert rows[name]["error"] == pytest.approx(error)
        assert rows[name]["mase"] == pytest.approx(error / naive_lag1(values))
    assert found["windows"] == 7 * DAY
    assert found["unit"] == "kWh"
    assert [row["error"] for row in found["rows"]] == sorted(r["error"] for r in found["rows"])


@pytest.mark.slow
def test_what_was_trained_on_the_windows_is_marked(make, read_only):
    config, _ = trained(make)
    found = backtest(config)
    marked = {row["name"] for row in found.data["rows"] if row["trained on these windows"]}
    assert marked == {FLEET, TUNED, FLEET_TREES, BLEND}
    assert "trained on these windows" in found.text
    json.dumps(found.data)


@pytest.mark.slow
def test_a_part_that_was_held_back_is_scored_without_a_mark(make, read_only):
    config, client = trained(make, training={"holdout_fraction": 0.25})
    found = backtest(config).data
    assert not any(row["trained on these windows"] for row in found["rows"])
    assert found["windows"] == pytest.approx(0.25 * 61 * DAY, abs=2)
    served = client.status()["forecast"]["served"]
    assert [row["name"] for row in found["rows"] if row["served"]] in ([served], [])
    longer = backtest(config, 40.0).data
    assert any(row["trained on these windows"] for row in longer["rows"])


def test_the_own_model_is_fitted_on_the_days_before_only(make, read_only):
    """A record that changes its shape at the scored days: nothing fitted before it can know."""
    fleet = make()
    client = fleet.device.start()
    observe(client, 50)
    rng = np.random.default_rng(0)
    jumps = rng.normal(size=10_000)
    observe(client, 7, first=50, value=lambda hour: 2.0 + jumps[hour])
    client.flush()
    rows = {row["name"]: row["error"] for row in backtest(fleet.device.config, 6.0).data["rows"]}
    assert rows[OWN] > 0.5 * rows[LAST_WEEK]


def test_an_empty_record_says_what_is_missing(make, read_only):
    fleet = make()
    fleet.device.start()
    with pytest.raises(ConfigError, match="no stored window can be scored"):
        backtest(fleet.device.config)
    with pytest.raises(ConfigError, match="--days: 0 is not above 0"):
        backtest(fleet.device.config, 0.0)
