"""A device of a model with optional channels: weather and earlier days may come and go."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sdk.client import Client
from edge_sdk.forecasting.series import Reading
from firmware_sim.testing.loopback import LoopbackBroker
from tests.edge_sdk.conftest import DEVICE, ManualClock, device_config

LOAD, WARM = "elec.import.energy", "weather.temperature"
START = 1_700_006_400  # midnight, UTC
HOUR = 3600


class BeforeTheHour(ManualClock):
    """A clock that stands 200 seconds before the end of hour 200."""

    def wall(self):
        return 1000 * (START + 201 * HOUR - 200)


@pytest.fixture
def start(tmp_path):
    """Start a device with a shipped bundle; one after the other, on one store."""
    broker, clock = LoopbackBroker(), ManualClock()

    def of(bundle):
        config = device_config(tmp_path, bundle=bundle)
        return Client(config, transport=lambda will: broker.link(DEVICE, will), clock=clock)

    return of


def observe(client, first, last, *, warm=False):
    for hour in range(first, last):
        at = START + hour * HOUR
        client.observe(Reading(LOAD, at, 1.0 + 0.5 * math.sin(hour * math.pi / 12)))
        if warm:
            client.observe(Reading(WARM, at, 12.0 + hour % 7))


def test_a_day_of_energy_is_enough_for_a_forecast_by_the_model(start):
    with start("load-week-1") as client:
        observe(client, 0, 23)
        assert not client.is_ready
        assert client.status()["missing"] == "1 more reading without a gap (1 hour)"
        assert client.forecast().source == "none"
        observe(client, 23, 24)
        assert client.is_ready
        forecast = client.forecast()
        assert (forecast.source, forecast.missing) == ("model", "")
        assert np.isfinite(forecast.values).all()
        assert forecast.times.tolist() == [START + 24 * HOUR]


@pytest.mark.parametrize(
    ("bundle", "rows"), [("load-week-1", 24), ("load-quarter-hour-1", 32), ("cells-week-24", 32)]
)
def test_an_empty_device_needs_one_window_and_no_lags(start, bundle, rows):
    with start(bundle) as client:
        assert client.status()["missing"].endswith(
            f"then {rows} readings without a gap ({rows * client.step / HOUR:g} hours)"
        )


def test_weather_may_come_and_go_without_a_gap_in_the_forecasts(start):
    """Whatever arrives, every hour from the first full window on has a forecast by the model."""
    with start("load-week-weather-1") as client:
        observe(client, 0, 24)
        alone = client.forecast()
        for hour in range(24, 96):
            assert client.forecast().source == "model"
            observe(client, hour, hour + 1, warm=48 <= hour < 72)
        assert client.learner.windows().origins.tolist() == list(range(23, 95))
        temperature, known = client.learner.frame().channels[:, -2:].T
        assert np.flatnonzero(known).tolist() == list(range(48, 74))  # carried over two rows
        assert (temperature[known == 0] == 0).all()
        assert alone.source == "model"


def test_a_masked_temperature_has_no_influence_on_the_forecast(start):
    with start("load-week-weather-1") as client:
        graph, p = client.learner.bundle.graphs["forecast"], client.learner.bundle.initial
        frame_width = len(client.learner.manifest.features)
        rng = np.random.default_rng(3)
        x = rng.random((5, client.learner.manifest.window.lookback, frame_width), np.float32)
        x[:, :, -1] = 0.0  # the mask
        (before,) = graph(p=p, x=x)
        x[:, :, -2] = rng.random(x.shape[:2], np.float32)
        (after,) = graph(p=p, x=x)
        np.testing.assert_array_equal(before, after)
        x[:, :, -1] = 1.0
        (known,) = graph(p=p, x=x)
        assert not np.allclose(known, after)


def test_a_gap_costs_the_window_and_not_a_week(start):
    with start("load-week-1") as client:
        observe(client, 0, 240)
        observe(client, 250, 273)
        assert client.status()["missing"] == "1 more reading without a gap (1 hour)"
        observe(client, 273, 274)
        assert client.forecast().source == "model"


def test_an_announcement_changes_the_forecast_of_its_hour_alone_also_after_a_restart(tmp_path):
    """The clock stands five minutes before the hour: what is announced opens no row."""
    broker, clock = LoopbackBroker(), BeforeTheHour()

    def opened():
        config = device_config(tmp_path, bundle="load-week-weather-ahead-1")
        return Client(config, transport=lambda will: broker.link(DEVICE, will), clock=clock)

    with opened() as client:
        observe(client, 0, 200, warm=True)
        before, marks = client.forecast(), client.forecast_marks()
        assert (before.source, before.times.tolist()) == ("model", [START + 200 * HOUR])
        client.observe(Reading(WARM, START + 201 * HOUR, 30.0))
        assert client.forecast_marks() == marks
        client.observe(Reading(WARM, START + 200 * HOUR, 35.0))
        changed = client.forecast()
        assert client.forecast_marks() != marks
        assert abs(changed.values[0] - before.values[0]) > 1e-3
        for hour in range(201, 300):
            client.observe(Reading(WARM, START + hour * HOUR, 5.0))
        np.testing.assert_array_equal(client.forecast().values, changed.values)
        assert client.learner.series.newest == (START + 200 * HOUR) // HOUR
        assert client.status()["counts"]["readings announced"] == 100
        client.flush()
    with opened() as client:
        np.testing.assert_array_equal(client.forecast().values, changed.values)
