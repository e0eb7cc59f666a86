"""The device's intervals: judged before it learns, kept over restarts and power cuts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk import client as client_module
from edge_sdk.app.settings import SettingsError
from edge_sdk.extensions.evaluation.forecast import result_of
from edge_sdk.forecasting.series import Reading
from edge_sdk.protocol.contract.manifest import Golden, Loss

W0 = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
BEGUN = 1_700_000_000 // 3600 * 3600


def quantiles_of(bundle):
    """The linear bundle, telling a tenth of the scale on either side of its forecast."""
    forecast, manifest = bundle.graphs["forecast"], bundle.manifest

    def fan(**feeds):
        (middle,) = forecast(**feeds)
        return (middle[:, :, None] + np.array([-0.1, 0.0, 0.1], np.float32),)

    def gradient(**feeds):
        return np.float32(1.0), np.zeros_like(feeds["p"])

    told = replace(
        manifest,
        target=replace(manifest.target, output="quantiles"),
        loss=Loss("pinball", levels=(0.1, 0.5, 0.9)),
        golden=Golden(manifest.golden.x, (0.0, 0.0, 0.0)),
    )
    return replace(bundle, manifest=told, graphs={"gradient": gradient, "forecast": fan})


@pytest.fixture
def made(make, numpy_bundle, monkeypatch):
    bundle = quantiles_of(numpy_bundle)
    monkeypatch.setattr(client_module, "open_bundle", lambda _config, _announced: bundle)
    return make


@pytest.fixture
def fleet(made):
    return made()


def observe(client, hours, *, at=0, far=0.0):
    rng = np.random.default_rng(at)
    for hour in range(at, at + hours):
        value = 1.0 + np.sin(hour / 3.0) * 0.5 + far + 0.05 * rng.random()
        client.observe(Reading("elec.import.energy", BEGUN + hour * 3600, value))


def test_a_forecast_has_a_calibrated_interval(fleet):
    client = fleet.device.start()
    observe(client, 60)
    told = client.forecast()
    assert told.source == "model"
    assert told.interval.shape == (1, 2)
    assert told.interval[0, 0] <= told.median[0] <= told.interval[0, 1]
    assert told.coverage == pytest.approx(0.8)
    assert told.calibrated == 60 - 4  # every hour but those of the first window


def test_rising_readings_move_the_upper_end_and_the_state_is_saved(fleet):
    client = fleet.device.start()
    observe(client, 60)
    before = client.forecast()
    observe(client, 40, at=60, far=6.0)
    after = client.forecast()
    grown = np.diff(after.interval, axis=1) - np.diff(before.interval, axis=1)
    assert grown[0, 0] > 0.1
    moved = client.learner.forecaster.kept.calibration.moved
    client.close()
    again = fleet.device.start()
    assert np.array_equal(again.learner.forecaster.kept.calibration.moved, moved)
    assert np.array_equal(again.forecast().interval, after.interval)


def test_after_a_power_cut_the_calibration_catches_up(fleet):
    client = fleet.device.start()
    observe(client, 60)
    client.forecast()
    client.flush()
    observe(client, 20, at=60, far=3.0)
    told = client.forecast()
    rows = client.learner.series.pending()
    client._store.add_readings(rows)  # the readings reached the disk, the calibration did not
    fleet.device.kill()
    again = fleet.device.start()
    assert again.learner.forecaster.kept.calibration.upto == BEGUN // 3600 + 59
    assert np.array_equal(again.forecast().interval, told.interval)


def test_a_damaged_or_foreign_calibration_is_restarted(fleet):
    client = fleet.device.start()
    observe(client, 60)
    told = client.forecast()
    client.close()
    again = fleet.device.start()
    again._store.file_paper("calibration", b"rust")
    fleet.device.kill()
    third = fleet.device.start()
    assert third.learner.forecaster.kept is None
    assert np.array_equal(third.forecast().interval, told.interval)


def test_new_readings_are_scored_by_the_model_from_before_them(fleet):
    client = fleet.device.start()
    observe(client, 60)
    fleet.run()
    client.forecast()
    observe(client, 5, at=60)
    seen = []
    learned = client.learner.half.apply

    def apply(state, event):
        seen.append(client.learner.forecaster.kept.calibration.upto)
        return learned(state, event)

    client.learner.half = client.learner.half._replace(apply=apply)
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert seen[0] == BEGUN // 3600 + 64


def test_no_interval_is_calibrated_unless_configured(fleet):
    client = fleet.device.start()
    observe(client, 60)
    fleet.server.open_round(0, 0, W0)
    fleet.run()
    assert client.learner.forecaster.kept is None


def test_without_calibration_the_interval_is_that_of_the_model(made):
    fleet = made(forecast={"calibrate": False})
    client = fleet.device.start()
    observe(client, 60)
    told = client.forecast()
    assert told.calibrated == 0
    assert told.interval.tolist() == told.quantiles[:, [0, 2]].tolist()
    assert client.learner.intervals(client.state, BEGUN, BEGUN + 10**6).shape == (56, 1, 2)


def test_a_configured_coverage_is_reached(made):
    fleet = made(forecast={"coverage": 0.9})
    client = fleet.device.start()
    observe(client, 60)
    assert client.forecast().coverage == pytest.approx(0.9)


def test_a_coverage_without_calibration_is_refused(made):
    with pytest.raises(SettingsError, match="calibrate"):
        made(forecast={"coverage": 0.9, "calibrate": False})


def test_past_forecasts_have_their_intervals(fleet):
    client = fleet.device.start()
    observe(client, 80)
    span = BEGUN + 40 * 3600, BEGUN + 60 * 3600
    times, told, truth = client.learner.rolling(client.state, *span)
    ends = client.learner.intervals(client.state, *span)
    assert ends.shape == (len(times), 1, 2)
    assert told.shape == truth.shape == (20, 1)
    assert (ends[:, :, 0] <= told).all()
    assert (told <= ends[:, :, 1]).all()


def test_the_printed_forecast_has_its_interval_and_calibration(fleet):
    client = fleet.device.start()
    observe(client, 60)
    told = client.forecast()
    answer = result_of(told)
    low, high = told.interval[0].tolist()
    assert answer.data["interval"] == [[low, high]]
    assert answer.data["calibrated"] == 56
    head, line = answer.text.splitlines()
    assert head == "kWh, by model, 80% between; calibrated on 56 readings:"
    assert line.endswith(f"{low:.6g} to {high:.6g}")


def test_the_waiting_interval_is_the_served_one(fleet, monkeypatch):
    """Where a server's graph has a word in the newest forecast, that forecast is judged."""
    client = fleet.device.start()
    observe(client, 60)
    alone = client.learner.bundle.graphs["forecast"]

    def aided(**feeds):
        return (alone(**feeds)[0] + np.float32(0.25),)

    monkeypatch.setattr(type(client.learner), "_helped", lambda *_: (aided, "model"))
    told = client.forecast()
    kept = client.learner.forecaster.kept
    assert np.allclose(kept.aided.ends[-1], told.interval)
    assert not np.allclose(kept.calibration.ends[-1], told.interval)
    assert told.calibrated == 0  # of such none has been put to the test yet
    assert client.forecast().interval.tolist() == told.interval.tolist()
    observe(client, 1, at=60)
    assert client.forecast().calibrated == 1
    monkeypatch.undo()
    assert client.forecast().calibrated == 57
