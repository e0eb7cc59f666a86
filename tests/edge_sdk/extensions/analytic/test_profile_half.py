"""Devices with a bundle of profiles: the numbers of the pure functions, by blocks of windows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edge_sdk.extensions.analytic.half import AnalyticState
from edge_sdk.extensions.analytic.profile_features import ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import (
    RELAXATION,
    STAGES,
    naive_noise,
    next_coefficients,
    own_part,
    prior_forecast,
    scaled_design,
    stage_of,
    stage_statistics,
)
from edge_sdk.extensions.analytic.profile_half import LEARNED, IssuedWindows, summed, with_own_part
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.extensions.analytic.profile_section import WIDTH
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import from_vector, total
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.protocol.contract.method import END, Task
from tests.edge_sdk.extensions.analytic.day_fleet import (
    KEPT,
    context_of,
    frame_of,
    half_of,
    initial_of,
    issues_of,
    load_of,
    manifest_of,
    record_of,
)

LOSS, PENALTY, LAST = QuantileLoss(), 1e-3, len(STAGES) - 1
SPRING = 473_352 * 3600 + 60 * 86_400  # the clocks change after 30 days


def pure_rows(frame, scale):
    """Return design, targets, base, level, stages and rows of a device, by the pure functions."""
    origins = issues_of(frame)
    rows = profile_rows(record_of(frame), origins, frame.window.horizon)
    goals = (frame.truth(origins) / rows.level[:, None] - rows.base).ravel()
    stages = np.repeat(stage_of(rows.known), frame.window.horizon)
    return scaled_design(rows, scale), goals, stages, rows


def passes_of(count):
    return [(0, 1.0)] + [(1, RELAXATION if 0 < i < count - 2 else 1.0) for i in range(count - 1)]


def test_three_devices_and_the_closed_form_give_the_numbers_of_the_pure_functions():
    manifest = manifest_of()
    model = ProfileModel(manifest)
    loads = [load_of(seed, days) for seed, days in ((0, 50), (1, 45), (2, 60))]
    frames = {f"m{i}": frame_of(load, manifest, SPRING) for i, load in enumerate(loads)}
    initial = initial_of(manifest, loads)
    scale = model.parts(initial).scale

    halves = {name: half_of(manifest, frame, name) for name, frame in frames.items()}
    states = {name: half.init(initial) for name, half in halves.items()}
    w, found = initial, None
    for number, (weighted, step) in enumerate(passes_of(4)):
        sent = {}
        for name, half in halves.items():
            task = Task(
                name, number, "train", base=number, values={"weighted": weighted}, arrays={"w": w}
            )
            states[name], (update,) = half.apply(states[name], task)
            assert update.values["n"] == len(issues_of(frames[name]))
            sent[name] = from_vector(update.vector, 1, WIDTH)
        found = next_coefficients(found, {LAST: total(sent)}, PENALTY, step=step)
        w = w.copy()
        w[model.places["coefficients"][0]] = found.ravel()
        if not number:
            w[model.places["expected"][0]] = found.ravel()

    pure = {name: pure_rows(frame, scale) for name, frame in frames.items()}
    wanted = None
    for weighted, step in passes_of(4):
        sums = {}
        for name, (design, goals, stages, rows) in pure.items():
            noise = float(naive_noise(rows, goals)[stages >= STAGES.index(7)].mean())
            given = wanted if weighted else None
            sums[name] = stage_statistics(design, goals, stages, given, LOSS, noise=noise)[LAST]
        wanted = next_coefficients(wanted, {LAST: total(sums)}, PENALTY, step=step)
    assert found == pytest.approx(wanted, abs=1e-3)

    for name, half in halves.items():
        design, goals, stages, rows = pure[name]
        state, effects = half.apply(states[name], Task(name, 5, END, base=9, arrays={"w": w}))
        assert effects == ()
        own = model.parts(half.model(state)["p"])
        told = prior_forecast(design, rows.base.ravel(), stages, model.parts(w).coefficients)
        missed = goals + rows.base.ravel() - told
        delta = own_part(design, missed, 0.1 * min(1.0, LEARNED / len(rows.level)), LOSS)
        assert own.own[0] == pytest.approx(delta, abs=1e-3)
        (yhat,) = model.forecast(
            half.model(state)["p"], frames[name].inputs(issues_of(frames[name])[-3:])
        )
        share = float(own.share[0])
        mine = told + design @ delta.astype(np.float32)
        plain = (rows.base + rows.design[:, :, rows.names.index("mall")]).ravel()
        levels = (share * mine + (1 - share) * plain).reshape(rows.base.shape)
        assert yhat[:, :, 1] == pytest.approx(
            (levels * rows.level[:, None])[-3:], rel=1e-3, abs=1e-3
        )
        assert AnalyticState.from_arrays(state.arrays()).upto == state.upto > 0


def test_a_year_of_quarter_hours_is_summed_in_little_memory():
    """Python, numpy and cryptography alone are some 47 MiB resident, of 64 MiB."""
    manifest = manifest_of(900)
    load = load_of(2, 60, 900, gaps=0.0)
    local = context_of(manifest, frame_of(load, manifest))
    initial = initial_of(manifest, [load])
    windows = IssuedWindows.of(local.run, local).newest(64)  # the sums are as large for a year
    tracemalloc.start()
    try:
        with_own_part(local.run, windows, initial, manifest.spec())
        summed(local.run, windows, initial, is_weighted=True)
        assert tracemalloc.get_traced_memory()[1] < 17 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_hidden_days_train_the_stages_of_new_devices():
    manifest = manifest_of(stages=(0, 4, 8))
    frame = frame_of(load_of(3, 40, gaps=0.0), manifest)
    initial = initial_of(manifest, [load_of(3, 40, gaps=0.0)])
    half = half_of(manifest, frame)
    task = Task("meter", 1, "train", base=0, values={"weighted": 0.0}, arrays={"w": initial})
    _, (update,) = half.apply(half.init(initial), task)
    found = from_vector(update.vector, 3, WIDTH)

    model = ProfileModel(manifest)
    whole, origins = record_of(frame), issues_of(frame)
    numbers = frame.times[origins] // 3600
    rows = profile_rows(whole, origins, 24)
    goals = (frame.truth(origins) / rows.level[:, None] - rows.base).ravel()
    noise = float(naive_noise(rows, goals)[np.repeat(rows.known >= 7, 24)].mean())
    for place, stage in enumerate((0, 4, 8)):
        design, goals = [], []
        for origin, number in zip(origins, numbers, strict=True):
            values = whole.values.copy()
            if stage < LAST:
                days = STAGES[stage] + number // 6 % (STAGES[stage + 1] - STAGES[stage])
                values[: max(0, origin + 1 - 24 * days)] = np.nan
            one = profile_rows(ProfileRecord(values, whole.local, 3600), np.array([origin]), 24)
            if stage_of(one.known)[0] == stage:
                design.append(scaled_design(one, model.parts(initial).scale))
                goals.append(
                    (frame.truth(np.array([origin])) / one.level[:, None] - one.base).ravel()
                )
        assert design
        joined = np.concatenate(design), np.concatenate(goals)
        wanted = stage_statistics(
            *joined, np.zeros(len(joined[1]), np.int64), None, LOSS, noise=noise
        )[0]
        assert found.gram[place] == pytest.approx(wanted.gram[0], rel=1e-4, abs=1e-4)
        assert found.cross[place] == pytest.approx(wanted.cross[0], rel=1e-4, abs=1e-4)


def test_a_device_with_one_known_day_forecasts_with_the_prior_and_sends_nothing():
    manifest = manifest_of()
    load = load_of(4, 1, gaps=0.0)
    frame, initial = frame_of(load, manifest), initial_of(manifest, [load_of(4, 40)])
    half = half_of(manifest, frame)
    task = Task("meter", 1, "train", base=0, values={"weighted": 0.0}, arrays={"w": initial})
    state, effects = half.apply(half.init(initial), task)
    assert effects == ()
    state, _ = half.apply(state, Task("meter", 2, END, base=1, arrays={"w": initial}))
    p = half.model(state)["p"]
    assert (p == initial).all()
    assert frame.is_ready
    (yhat,) = ProfileModel(manifest).forecast(p, frame.inputs(np.array([23])))
    assert yhat[0, :, 1] == pytest.approx(load, rel=1e-5)
    assert (np.diff(yhat[0], axis=1) >= 0.0).all()


@pytest.mark.parametrize("step", [900, 3600])
def test_windows_are_learned_from_every_six_hours_of_local_time(step):
    manifest = manifest_of(step)
    frame = frame_of(load_of(1, 40, step), manifest, SPRING)
    local = context_of(manifest, frame)
    windows = IssuedWindows.of(local.run, local)
    assert (windows.numbers * step == frame.times[issues_of(frame)]).all()
    assert sum(len(one["x"]) for one in windows.blocks()) == len(windows)
    assert len(IssuedWindows.of(local.run, Drawable(frame, np.zeros(0, np.int64)))) == 0
    some = windows.evenly(5).numbers  # of all times of the day, from the whole record
    assert set(some) <= set(windows.numbers)
    assert some[0] == windows.numbers[0]
    assert some[-1] >= windows.numbers[len(windows) * 3 // 4]
    assert (windows.evenly(10**6).numbers == windows.numbers).all()


def test_the_first_days_are_blended_with_the_mean_profile():
    manifest = manifest_of()
    load = load_of(2, 12, gaps=0.0)
    initial = initial_of(manifest, [load])
    half = half_of(manifest, frame_of(load, manifest))
    state, _ = half.apply(half.init(initial), Task("meter", 1, END, base=0, arrays={"w": initial}))
    assert 0.0 < ProfileModel(manifest).parts(state.own).share[0] < 1.0


def test_the_day_has_an_expected_value_and_paths_of_its_own_residuals():
    manifest = manifest_of()
    model, load = ProfileModel(manifest), load_of(2, 60, gaps=0.0)
    frame = frame_of(load, manifest)
    initial = initial_of(manifest, [load])
    half = half_of(manifest, frame)
    state, _ = half.apply(half.init(initial), Task("meter", 1, END, base=0, arrays={"w": initial}))
    p = half.model(state)["p"]
    parts = model.parts(p)
    assert parts.own.any(axis=1).all()
    assert (parts.residuals != model.parts(initial).residuals).all()  # KEPT days are all its own
    assert parts.residuals.shape == (KEPT, 24)
    assert parts.share[0] == 1.0
    x = frame.inputs(np.array([len(frame) - 1]))
    expected, paths = model.forecast_day(p, x)
    (yhat,) = model.forecast(p, x)
    assert expected.shape == (1, 24)
    assert paths.shape == (1, manifest.analytic.paths, 24)
    low, high = np.quantile(paths[0], [0.1, 0.9], axis=0)
    wide = yhat[0, :, 2] - yhat[0, :, 0]
    assert (high - low) == pytest.approx(wide, rel=0.5, abs=0.1)
    assert expected[0] == pytest.approx(paths[0].mean(axis=0), rel=0.5)
