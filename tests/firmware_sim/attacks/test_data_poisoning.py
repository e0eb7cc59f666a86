"""Poisoned readings: one lie in every window that holds the reading, on a scale fixed before."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.manifest import Feature, Target, Window
from firmware_sim.attacks import bind
from firmware_sim.attacks.byzantine_halves import DataPoisoner, poisoned

LOAD, HEAT = "elec.import.energy", "weather.temperature"
FEATURES = (
    Feature("lag", "lag", "1", lag_steps=3),
    Feature("load", "target", "kWh"),
    Feature("heat", "stream", "°C", low=0.0, high=1.0, stream=HEAT),
)


@pytest.fixture
def frame():
    rng = np.random.default_rng(5)
    series = Series(3600, [LOAD, HEAT])
    for stream, values in ((LOAD, rng.uniform(10, 30, 60)), (HEAT, rng.uniform(0, 1, 60))):
        series.load(
            SeriesRow(stream, 400_000 + i, float(v)) for i, v in enumerate(values) if i != 17
        )
    plan = SimpleNamespace(
        window=Window(4, 1, 3600),
        target=Target(LOAD, "kWh", "level", "device"),
        features=FEATURES,
    )
    return ChannelFrame.of(series, plan)


def batch(of):
    origins = of.origins()
    return Drawable(of, origins).select(origins), origins


@pytest.mark.parametrize("name", ["fdi_bias", "fdi_ramp", "fdi_scale", "fdi_outage"])
def test_targets_and_inputs_are_poisoned_alike(frame, name):
    changed = poisoned(frame, FEATURES, bind(name), seed=3)
    clean, origins = batch(frame)
    after, _ = batch(changed)
    row = {origin: i for i, origin in enumerate(origins.tolist())}
    for origin in origins.tolist():
        if origin - 1 in row and origin != 18:  # hour 17 was not measured
            was_target = after.y[row[origin - 1], 0]
            assert after.x[row[origin], -1, 1] == pytest.approx(was_target, abs=1e-6)
    assert not np.allclose(after.y, clean.y)
    np.testing.assert_array_equal(after.x[:, :, 2], clean.x[:, :, 2])


def test_a_lag_has_the_poisoned_value_of_its_hour(frame):
    changed = poisoned(frame, FEATURES, bind("fdi_ramp", {"by": "9"}), seed=0)
    lagged, own = changed.channels[:, 0], changed.channels[:, 1]
    np.testing.assert_allclose(lagged[2:], own[:-2], atol=1e-6)


def test_label_flip_changes_targets_only(frame):
    changed = poisoned(frame, FEATURES, bind("label_flip"), seed=0)
    clean, _ = batch(frame)
    after, _ = batch(changed)
    np.testing.assert_array_equal(after.x, clean.x)
    seen = frame.scale.shrink(frame.raw)
    both = np.nanmax(seen) + np.nanmin(seen)
    np.testing.assert_allclose(after.y + clean.y, both, atol=1e-6)


def test_the_scale_comes_from_the_true_readings(frame):
    changed = poisoned(frame, FEATURES, bind("fdi_bias"), seed=0)
    assert changed.scale is frame.scale
    moved = (changed.raw - frame.raw)[np.isfinite(frame.raw)]
    np.testing.assert_allclose(moved, 0.5 * frame.scale.width)


def test_a_frame_is_poisoned_once(frame):
    poisoner = DataPoisoner(bind("fdi_bias"), lambda: FEATURES, 0)
    drawable = Drawable(frame, frame.origins())
    assert poisoner.windows(drawable).frame is poisoner.windows(drawable).frame
