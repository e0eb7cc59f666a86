"""The prior tells homes from other buildings, and moves a window's base by that probability."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.extensions.analytic.profile_features import ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import STAGES
from edge_sdk.extensions.analytic.profile_kinds import (
    SIGNS,
    fitted_weights,
    home_share,
    home_signs,
)
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.extensions.analytic.profile_section import WIDTH
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from tests.edge_sdk.extensions.analytic.day_fleet import (
    frame_of,
    initial_of,
    load_of,
    manifest_of,
)

pytestmark = pytest.mark.extension


def rows_of(load, step=3600):
    day = 86_400 // step
    record = ProfileRecord(load, np.arange(len(load)) * step, step)
    return profile_rows(record, np.arange(5 * day, len(load) - day, day) - 1, day)


def test_rough_loads_are_told_from_smooth_ones_they_were_not_learned_from():
    draw, clock = np.random.default_rng(0), np.arange(24 * 40)
    shape = 1.5 + np.sin(2.0 * np.pi * clock / 24)
    signs, flags = [], []
    for roughness in (0.02, 0.03, 0.6, 0.9):
        load = shape * draw.lognormal(0.0, roughness, len(clock))
        signs.append(home_signs(rows_of(load), 24))
        flags.append(np.full(len(signs[-1]), roughness > 0.1))
    weights = fitted_weights(np.concatenate(signs), np.concatenate(flags))
    told = [home_share(one, weights).mean() for one in signs]
    assert max(told[:2]) < 0.1
    assert min(told[2:]) > 0.9
    assert home_share(signs[0], np.zeros(SIGNS)).tolist() == [0.5] * len(signs[0])


def test_the_signs_do_not_depend_on_the_length_of_a_row():
    load = load_of(1, 40, gaps=0.0)
    hours, quarters = rows_of(load), rows_of(np.repeat(load / 4.0, 4), 900)
    assert home_signs(hours, 24)[:, 1:5] == pytest.approx(home_signs(quarters, 96)[:, 1:5])


def test_what_a_homes_coefficients_add_moves_the_forecast_and_what_is_learned():
    manifest, load = manifest_of(), load_of(2, 40, gaps=0.0)
    frame, run = frame_of(load, manifest), functions_of_profiles(manifest)
    model = ProfileModel(manifest)
    homes = np.zeros((len(STAGES), WIDTH))
    homes[:, 0] = 1.0
    before = initial_of(manifest, [load])
    half = initial_of(manifest, [load], homes=homes)  # without weights the probability is 1/2
    alike = initial_of(manifest, [load], coefficients=0.5 * homes)
    x = frame.inputs(frame.origins()[-60::20])
    told = [run["forecast"](p=p, x=x)[0] for p in (before, half, alike)]
    assert np.abs(told[1] - told[0]).max() > 1e-3
    assert told[1] == pytest.approx(told[2], rel=1e-5, abs=1e-5)
    y = np.asarray(load_of(3, 40, gaps=0.0)[: 24 * len(x)].reshape(len(x), 24))
    number, own = np.arange(len(x)), np.zeros((3, WIDTH))
    sums = [run["own_sums"](p=p, x=x, y=y, number=number, own=own)[0] for p in (half, alike)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-3, abs=1e-3)
    noises = [run["noise"](p=p, x=x, y=y)[0] for p in (before, half)]
    assert noises[0] == pytest.approx(noises[1])
    assert model.parts(half).home.shape == (len(STAGES), SIGNS)
