"""A device trains on the older part of its history and selects its model by the newest part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.config import TrainingSection
from edge_sdk.training.run_role import slots_needed
from tests.edge_sdk.conftest import MANIFEST


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
def test_no_window_is_both_trained_on_and_held_back(make, fraction):
    fleet = make(training={"holdout_fraction": fraction})
    runtime = fleet.device.start().learner
    fleet.device.observe()
    trained, held = runtime.learnable(), runtime.held_back()
    boundary = int(len(trained.frame) * (1 - fraction))
    assert trained.origins.max() + MANIFEST.window.horizon < boundary
    assert held.origins.min() + 1 == boundary  # the first held-back target
    every = runtime.frame().origins(observed=True)
    assert not set(trained.origins) & set(held.origins)
    assert set(trained.origins) | set(held.origins) == set(every)  # a horizon of one loses none


def test_without_a_holdout_every_window_is_trained_on_and_none_selects_the_model(make):
    fleet = make()
    runtime = fleet.device.start().learner
    fleet.device.observe()
    assert runtime.held_back() is None
    assert runtime.judged(runtime.bundle.initial) is None
    np.testing.assert_array_equal(runtime.learnable().origins, runtime.frame().origins())


def test_the_scale_ignores_the_held_back_readings(make):
    fleet = make(training={"holdout_fraction": 0.5})
    runtime = fleet.device.start().learner
    fleet.device.observe()
    frame = runtime.frame()
    trained = frame.raw[: len(frame) // 2]
    assert (frame.scale.low, frame.scale.high) == (trained.min(), trained.max())


def test_a_holdout_lengthens_the_history_that_training_needs(fleet):
    config = fleet.device.config
    holdout = replace(config, training=TrainingSection(holdout_fraction=0.5))
    assert slots_needed(holdout, MANIFEST) == 2 * slots_needed(config, MANIFEST)


def test_a_holdout_of_more_than_half_is_refused(make):
    with pytest.raises(SettingsError, match="holdout_fraction"):
        make(training={"holdout_fraction": 0.6})
