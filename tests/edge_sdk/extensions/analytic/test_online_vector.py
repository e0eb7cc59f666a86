"""A trained vector takes new windows: the batch solution is the oracle, a restart changes no bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from aggregator.extensions.authoring.closed_form import AnalyticRecipe, made
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.analytic.online_vector import OnlineVector, TrainedVector
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import gather
from edge_sdk.protocol.contract.manifest import Loss

MANIFEST, INITIAL = made(
    AnalyticRecipe(step_seconds=21_600, lookback=4, days=(1,), units=3), name="small", version=1
)
MODEL = AnalyticModel(MANIFEST)
OUTPUTS, WIDTH, FIXED = 3, MANIFEST.analytic.width, 2 * len(MANIFEST.analytic.features)
FIRST = 100_000
"""Number of the first window: what the start of a day has no part in."""


@dataclass
class Record:
    """Windows of a wave, numbered on from ``FIRST``; some are missing."""

    x: np.ndarray
    y: np.ndarray
    missing: frozenset = frozenset()

    def until(self, count):
        return Record(self.x[:count], self.y[:count], self.missing)

    def span(self):
        return FIRST, FIRST + len(self.x) - 1

    def named(self, ids):
        rows = ids - FIRST
        here = (rows >= 0) & (rows < len(self.x)) & ~np.isin(rows, list(self.missing))
        return here, replace(self, x=self.x[rows[here]], y=self.y[rows[here]])


def record(seed=0, count=400, missing=()):
    rng = np.random.default_rng(seed)
    window = MANIFEST.window
    number = np.arange(count + window.lookback + 1)
    load = 0.5 + 0.3 * np.sin(np.pi * number / 2) + 0.1 * rng.normal(size=len(number))
    channels = np.stack([load, number % 4 / 4, number // 4 % 7 / 7], 1)
    ends = np.arange(window.lookback - 1, window.lookback - 1 + count)
    x = channels[ends[:, None] + np.arange(1 - window.lookback, 1)].astype(np.float32)
    return Record(x, (load[ends + 1] - load[ends])[:, None].astype(np.float32), frozenset(missing))


def trained(upto, strengths=(0.01, 0.1, 1.0), alone=(False, True, False)):
    rng = np.random.default_rng(5)
    vectors = [np.frombuffer(INITIAL, "<f4").copy() for _ in range(2)]
    for vector in vectors:
        vector[FIXED:] = 0.05 * rng.normal(size=len(vector) - FIXED)
    return TrainedVector(*vectors, np.array(strengths), np.array(alone), FIRST + upto)


def online(forgetting=1.0, capacity=10_000):
    return OnlineVector(MODEL, forgetting=forgetting, capacity=capacity)


def run(one, start, windows, counts):
    return [one.updated(start, windows.until(count)) for count in counts]


def batch(start, windows, count, cut):
    """Solve all windows at once; weights have mean 1 over those up to ``cut``."""
    here, some = windows.until(count).named(FIRST + np.arange(count))
    (design,) = MODEL.design(start.fleet, some.x)
    missed = MODEL.missed(start.own, design, some.y)
    before = int(here[: cut + 1].sum())
    found = []
    for o, rows, target, kind in MODEL.outputs(design, some.y):
        raw = kind.weights(missed[:, o : o + 1], is_normalised=False)
        weights = raw / raw[:before].mean()
        centre = MODEL.parts(start.fleet)[1][o : o + 1] * (not start.is_alone[o])
        penalty = start.strengths[o] * before
        found.append(ridge(gather(rows, target, weights), penalty, centre)[0])
    return np.stack(found)


@pytest.mark.parametrize("missing", [(), (7, 203, 204, 211)])
def test_windows_taken_one_by_one_give_the_solution_of_all_at_once(missing):
    windows, start, one = record(missing=missing), trained(upto=200), online()
    for count in range(202, 230):
        one.updated(start, windows.until(count))
        newest = FIRST + count - 1
        cut = max(newest // MODEL.day * MODEL.day - 1, start.upto) - FIRST
        found = np.stack([model.coefficients[0] for model in one._state.models])
        np.testing.assert_allclose(found, batch(start, windows, count, cut), rtol=0, atol=1e-8)


@pytest.mark.parametrize("forgetting", [1.0, 0.97])
def test_a_restart_at_any_window_changes_no_bit(forgetting):
    windows, start = record(1), trained(upto=150)
    calm = run(online(forgetting), start, windows, range(160, 190))
    for at in range(160, 190, 3):
        again = online(forgetting).updated(start, windows.until(at))
        assert again.tobytes() == calm[at - 160].tobytes()


def test_a_device_that_keeps_little_computes_the_same_after_a_restart_too():
    """Between two starts of a day the oldest windows leave memory; they are in no solution."""
    windows, start = record(2), trained(upto=150)
    one = online(capacity=60)
    kept = replace(windows, missing=frozenset(range(200 - 60)))
    found = run(one, start, windows, range(196, 201))[-1]
    assert online(capacity=60).updated(start, kept.until(200)).tobytes() == found.tobytes()


def test_an_output_that_chose_the_fleets_coefficients_keeps_them():
    start = trained(upto=100, strengths=(math.inf, 0.1, 0.1))
    start = replace(start, own=start.own.copy())
    start.own[FIXED : FIXED + WIDTH] = start.fleet[FIXED : FIXED + WIDTH]
    found = MODEL.parts(online().updated(start, record()))[1]
    np.testing.assert_array_equal(found[0], MODEL.parts(start.fleet)[1][0])
    assert (found[1:] != MODEL.parts(start.own)[1][1:]).any(axis=1).all()


def test_forgetting_follows_a_load_that_has_changed():
    changed = record(3, 600)
    changed.y[300:] += 0.4
    start = trained(upto=200, strengths=(0.01,) * 3, alone=(True,) * 3)
    errors = []
    for forgetting in (1.0, 0.98):
        one = online(forgetting)
        told = one.updated(start, changed.until(420))
        (yhat,) = MODEL.forecast(told, changed.x[420:440])
        errors.append(float(np.abs(yhat[:, 0, 1] - changed.y[420:440, 0]).mean()))
    assert errors[1] < 0.6 * errors[0]


def test_without_a_known_training_or_a_window_the_trained_vector_is_served():
    start, windows = trained(upto=100), record()
    assert online().updated(replace(start, upto=-1), windows) is start.own

    class Empty(Record):
        def span(self):
            return None

    assert online().updated(start, Empty(windows.x[:0], windows.y[:0])) is start.own
    assert TrainedVector.of({"p": start.own}) is None


def test_a_vector_that_is_not_finite_is_not_served():
    start, windows, one = trained(upto=100), record(), online()
    one.updated(start, windows.until(300))
    broken = tuple(replace(m, coefficients=m.coefficients * np.nan) for m in one._state.models)
    one._state = replace(one._state, models=broken)
    assert one.updated(start, windows.until(300)) is start.own


def test_a_squared_error_weighs_all_windows_alike():
    manifest, initial = made(
        AnalyticRecipe(step_seconds=21_600, lookback=4, days=(1,), units=3, loss=Loss("mse")),
        name="squared", version=1,
    )  # fmt: skip
    model, windows = AnalyticModel(manifest), record(4)
    vector = np.frombuffer(initial, "<f4").copy()
    start = TrainedVector(vector, vector, np.array([0.01]), np.array([True]), FIRST + 100)
    one = OnlineVector(model, forgetting=1.0, capacity=10_000)
    one.updated(start, windows)
    (design,) = model.design(vector, windows.x)
    cut = (FIRST + 399) // 4 * 4 - FIRST
    wanted = ridge(gather(design[:, 0], windows.y.astype(float)), 0.01 * cut)
    np.testing.assert_allclose(one._state.models[0].coefficients, wanted, rtol=0, atol=1e-8)
