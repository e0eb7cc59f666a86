"""The days that an owner lists are holidays in what a bundle of profiles reads."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.analytic.profile_holidays import days_of, with_holidays
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.forecasting.calendar_features import DAY, local_seconds
from tests.edge_sdk.extensions.analytic.day_fleet import (
    ZONE,
    frame_of,
    initial_of,
    load_of,
    manifest_of,
    runtime_of,
)

pytestmark = pytest.mark.extension
START = date(2024, 1, 1)
LOAD = load_of(0, 42, gaps=0.0)  # whole weeks: the day after them is a Monday


def day(number):
    return (START + timedelta(days=number)).isoformat()


@pytest.mark.parametrize("step", [3600, 900])
def test_a_window_tells_its_holidays_and_those_of_the_day_ahead(step):
    manifest = manifest_of(step)
    load = load_of(0, 30, step, gaps=0.0)
    plain = frame_of(load, manifest)
    listed = days_of([day(20), day(30), "1999-12-31"])
    frame, model = with_holidays(plain, manifest, listed, ZONE), ProfileModel(manifest)
    newest = np.array([len(load) - 1])
    found, before = (model.record(one.inputs(newest))[0] for one in (frame, plain))
    assert before.holidays is None
    assert found.local.tolist() == before.local.tolist()
    known = local_seconds(plain.times, ZONE)[-model.lookback :]
    assert found.holidays[: model.lookback].tolist() == np.isin(known // DAY, listed).tolist()
    ahead = (known[-1] + step * np.arange(1, model.horizon + 1)) // DAY
    assert found.holidays[model.lookback :].tolist() == np.isin(ahead, listed).tolist()
    assert found.holidays[model.lookback :].any()


def test_a_frame_without_holidays_is_what_it_was():
    manifest = manifest_of()
    plain = frame_of(LOAD, manifest)
    frame = with_holidays(plain, manifest, days_of(["1999-12-31"]), ZONE)
    assert np.array_equal(frame.channels, plain.channels, equal_nan=True)


def test_the_forecast_of_a_holiday_is_that_of_a_weekend(tmp_path):
    medians = []
    for holidays in ([], [day(42)]):
        folder = tmp_path / str(len(holidays))
        folder.mkdir()
        one = runtime_of(folder, LOAD, len(LOAD), forecast={"holidays": holidays, "online": False})
        medians.append(one.forecast(one.first_state()).median)
    monday, holiday = medians
    assert monday == pytest.approx(LOAD.reshape(42, 24)[[-6, -5, -4, -3, -7]].mean(axis=0), rel=0.2)
    assert holiday.mean() == pytest.approx(0.5 * monday.mean(), rel=0.1)


def test_what_is_no_date_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"forecast\.holidays: .*Christmas"):
        runtime_of(tmp_path, LOAD, 24, forecast={"holidays": ["Christmas"]})


def test_marking_twice_is_marking_once():
    manifest = manifest_of()
    listed = days_of([day(40), day(42)])
    once = with_holidays(frame_of(LOAD, manifest), manifest, listed, ZONE)
    model, p = ProfileModel(manifest), initial_of(manifest, [LOAD])
    newest = np.array([len(LOAD) - 1])
    twice = with_holidays(once, manifest, listed, ZONE)
    told = [model.forecast(p, x.inputs(newest))[0] for x in (once, twice)]
    assert np.array_equal(*told)


def test_days_and_hours_are_those_of_the_devices_time_zone(tmp_path):
    slots = []
    for zone in ("UTC", "America/Los_Angeles"):
        folder = tmp_path / zone.replace("/", "-")
        folder.mkdir()
        one = runtime_of(folder, LOAD, 48, forecast={"time_zone": zone, "holidays": [day(1)]})
        at = [x.name for x in one.manifest.features].index("slot-of-day")
        slots.append(one.frame().channels[:, at] * 24)
    utc, local = (np.round(x).astype(int) for x in slots)
    assert utc[:5].tolist() == [0, 1, 2, 3, 4]
    assert local[:5].tolist() == [16, 17, 18, 19, 20]  # eight hours behind in winter
    assert (utc >= 24).nonzero()[0].tolist() == list(range(24, 48))
    assert (local >= 24).nonzero()[0].tolist() == list(range(32, 48))


def test_an_unknown_time_zone_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"forecast.*time_zone: 'Mars/Olympus' is no zone"):
        runtime_of(tmp_path, LOAD, 24, forecast={"time_zone": "Mars/Olympus"})
