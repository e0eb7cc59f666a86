"""Profiles in closed form: the fleet's sums against pooled rows, the own part, stages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.profile_features import HINGED, KNOTS, ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import (
    RELAXATION,
    STAGES,
    fleet_scale,
    next_coefficients,
    own_part,
    prior_forecast,
    prior_share,
    scaled_design,
    stage_of,
    stage_statistics,
)
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import total

seeds = st.integers(0, 2**32 - 1)
LOSS = QuantileLoss()


def device(seed, rows=200, width=6, stages=3):
    draw = np.random.default_rng(seed)
    design = draw.normal(size=(rows, width)).astype(np.float32)
    truth = np.arange(width) / width
    stage = draw.integers(0, stages, rows)
    targets = design @ truth + stage + 0.3 * draw.standard_t(3, rows)
    return np.concatenate([design, np.ones((rows, 1), np.float32)], 1), targets, stage


def summed(devices, coefficients):
    own = {str(i): stage_statistics(*one, coefficients, LOSS) for i, one in enumerate(devices)}
    stages = {stage for found in own.values() for stage in found}
    return {s: total({k: found[s] for k, found in own.items() if s in found}) for s in stages}


@given(seeds, st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_a_first_pass_is_ridge_regression_on_the_pooled_rows_of_each_stage(seed, count):
    devices = [device(seed + i) for i in range(count)]
    found = next_coefficients(None, summed(devices, None), 0.01, stages=3)
    for stage in range(3):
        rows = [d[s == stage] / np.sqrt((s == stage).sum()) for d, _, s in devices]
        goals = [y[s == stage] / np.sqrt((s == stage).sum()) for _, y, s in devices]
        square = float(np.square(np.concatenate(rows)).sum()) / 7
        ridge = np.sqrt(0.01 * square) * np.eye(7)
        stacked = np.concatenate([*rows, ridge]), np.concatenate([*goals, np.zeros(7)])
        assert found[stage] == pytest.approx(np.linalg.lstsq(*stacked, rcond=None)[0], abs=1e-4)


def test_passes_approach_the_least_absolute_error_and_relaxation_needs_fewer():
    devices = [device(i) for i in range(3)]

    def objective(passes, step):
        found = next_coefficients(None, summed(devices, None), 1e-6, stages=3)
        for number in range(1, passes):
            wide = step if 1 < number < passes - 1 else 1.0
            found = next_coefficients(found, summed(devices, found), 1e-6, stages=3, step=wide)
        missed = [y - prior_forecast(d, np.zeros(len(y)), s, found) for d, y, s in devices]
        return float(np.mean(np.abs(np.concatenate(missed))))

    best = objective(60, 1.0)
    plain, relaxed = objective(5, 1.0) - best, objective(5, RELAXATION) - best
    assert objective(1, 1.0) - best > plain > relaxed
    assert objective(9, RELAXATION) == pytest.approx(best, rel=2e-3)


def test_the_fleet_minimises_the_sum_of_the_devices_relative_errors():
    draw = np.random.default_rng(4)
    made = []
    for noise, answer in ((0.1, 1.0), (5.0, 2.0), (0.2, 1.5)):
        design = np.ones((200, 1), np.float32)
        made.append((design, answer + noise * draw.standard_t(3, 200), noise))
    stages, found = np.zeros(200, np.int64), None
    for _ in range(60):
        own = {
            str(i): stage_statistics(d, y, stages, found, LOSS, noise=e)[0]
            for i, (d, y, e) in enumerate(made)
        }
        found = next_coefficients(found, {0: total(own)}, 1e-9, stages=1)

    def objective(answer):
        return sum(float(np.abs(y - answer).mean()) / e for _, y, e in made)

    grid = np.linspace(0.9, 2.1, 1201)
    best = grid[np.argmin([objective(answer) for answer in grid])]
    assert found[0, 0] == pytest.approx(best, abs=0.02)
    assert best < 1.2  # the device that is foreseen best


def test_rows_without_a_target_do_not_count():
    design, targets, stage = device(5)
    gap = targets.copy()
    gap[::3] = np.nan
    seen = np.isfinite(gap)
    one = stage_statistics(design, gap, stage, None, LOSS)
    other = stage_statistics(design[seen], gap[seen], stage[seen], None, LOSS)
    assert one.keys() == other.keys()
    assert all((one[s].gram == other[s].gram).all() for s in one)


def test_a_stage_without_devices_takes_its_neighbours_coefficients():
    design, targets, _ = device(6)
    own = stage_statistics(design, targets, np.full(200, 2), None, LOSS)
    found = next_coefficients(None, own, 0.1, stages=4)
    assert (found == found[2]).all()
    more = {
        1: own[2].scaled(1.0),
        3: stage_statistics(-design, targets, np.full(200, 3), None, LOSS)[3],
    }
    found = next_coefficients(None, more, 0.1, stages=5)
    assert (found[[0, 2]] == found[1]).all()
    assert (found[4] == found[3]).all()
    assert (found[1] != found[3]).any()
    with pytest.raises(ValueError, match="without statistics has no solution"):
        next_coefficients(None, {}, 0.1)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_own_part_lies_between_nothing_and_the_devices_own_fit(seed):
    design, targets, _ = device(seed)
    large = QuantileLoss(floor=1e9)  # the same weight for every row: least squares
    found = {s: own_part(design, targets, s, large, passes=1) for s in (1e-9, 0.1, 10.0, math.inf)}
    wide = design.astype(np.float64)
    assert found[1e-9] == pytest.approx(np.linalg.lstsq(wide, targets, rcond=None)[0], abs=1e-3)
    size = [np.linalg.norm(one) for one in found.values()]
    assert size == sorted(size, reverse=True)
    assert size[-1] == 0.0
    assert not own_part(design[:1], targets[:1], 0.1, LOSS).any()
    assert not own_part(design, np.full(200, np.nan), 0.1, LOSS).any()


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0), st.floats(1e-3, 1e3))
def test_the_share_of_the_prior_falls_with_its_loss_and_has_no_unit(prior, own, unit):
    losses = np.array([prior, 1.1 * prior])
    low, high = prior_share(losses, np.array([own, own]))
    assert 0.0 <= high <= low <= 1.0
    assert prior_share(unit * losses, np.full(2, unit * own)) == pytest.approx([low, high])
    even = np.exp(0.2) * own
    assert prior_share(np.array(even), np.array(own)) == pytest.approx(0.5)


def test_stages_begin_at_their_least_number_of_days():
    assert [int(stage_of(np.array(days))) for days in STAGES] == list(range(len(STAGES)))
    assert [int(stage_of(np.array(days - 1))) for days in STAGES[1:]] == list(
        range(len(STAGES) - 1)
    )


def test_a_fleet_of_rhythms_forecasts_a_new_device_on_its_first_evening():
    day, draw = 24, np.random.default_rng(9)
    clock = np.arange(60 * day)
    weekend = (clock // day + 3) % 7 >= 5
    shape = 1.5 + np.sin(2.0 * np.pi * (clock % day) / day)
    factor = np.where(weekend, 0.4, 1.0)
    made = [
        size * shape * factor * draw.gamma(80.0, 1 / 80, len(clock))
        for size in (1.0, 7.0, 30.0, 2.0)
    ]
    local = np.arange(62 * day) * 3600
    origins = np.arange(day - 1, 20 * day, day)
    rows = [profile_rows(ProfileRecord(load, local, 3600), origins, day) for load in made]
    goals = [
        (load[origins[:, None] + 1 + np.arange(day)] / one.level[:, None] - one.base).ravel()
        for load, one in zip(made, rows, strict=True)
    ]
    scale = fleet_scale([np.square(r.design).mean(axis=(0, 1)) for r in rows[:3]])
    designs = [scaled_design(one, scale) for one in rows]
    assert designs[0].shape[1] == len(rows[0].names) + len(HINGED) * len(KNOTS)
    stages = np.repeat(stage_of(rows[0].known), day)
    found = None
    for _ in range(4):
        sums = summed(list(zip(designs[:3], goals[:3], [stages] * 3, strict=True)), found)
        found = next_coefficients(found, sums, 1e-3)
    forecast = prior_forecast(designs[3], rows[3].base.ravel(), stages, found)
    truth = goals[3] + rows[3].base.ravel()
    second = slice(day, 2 * day)  # the evening of the second day: Saturday is next
    plain = np.abs(rows[3].base.ravel() - truth)
    assert np.abs(forecast - truth)[second].mean() < 0.5 * plain[second].mean()
