"""The device's own linear model, and the forecasts of the seasons before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.extensions.choice.candidates import CandidateModels, ServedCandidate
from edge_sdk.extensions.choice.combination import (
    CANDIDATES,
    LAST_DAY,
    LAST_WEEK,
    MEAN,
    OWN,
    HeldBackErrors,
)
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice
from edge_sdk.extensions.choice.own_model import (
    FEWEST,
    OwnModel,
    fit,
    outputs_of,
    product,
    ridge_solution,
    seasonal_naive,
)
from edge_sdk.forecasting.forecast import FLEET, TUNED
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.manifest import Window
from tests.edge_sdk.conftest import MANIFEST

STREAM, BEGUN = "elec.import.energy", 1_700_006_400 // 3600
HORIZON = 3


def frame_of(values, horizon=HORIZON):
    golden = replace(MANIFEST.golden, yhat=(0.0,) * horizon)
    manifest = replace(MANIFEST, window=Window(4, horizon, 3600), golden=golden)
    series = Series(3600, [STREAM])
    rows = enumerate(np.asarray(values, float).tolist())
    series.load(SeriesRow(STREAM, BEGUN + at, value) for at, value in rows if value == value)  # noqa: PLR0124 - NaN
    return ChannelFrame.of(series, manifest)


def waves(hours=24 * 30, seed=0):
    hour = np.arange(hours)
    noise = np.random.default_rng(seed).normal(0, 0.05, hours)
    return 3 + np.sin(2 * np.pi * hour / 24) + 0.3 * np.cos(2 * np.pi * hour / 168) + noise


def test_it_learns_what_repeats_and_beats_both_seasons():
    frame = frame_of(waves())
    origins = frame.origins()
    early, late = origins[:-168], origins[-168:]
    model = fit(frame, early)
    truth = frame.truth(late)
    error = np.abs(model.forecast(frame, late) - truth).mean()
    for period in (24, 168):
        naive = seasonal_naive(frame.last, late, HORIZON, period)
        assert error < np.abs(naive - truth).mean()
    assert error < 0.06


def test_it_uses_only_what_is_known_at_the_origin():
    values = waves()
    frame = frame_of(values)
    model = fit(frame, frame.origins())
    origin = np.array([400])
    changed = frame_of(np.where(np.arange(len(values)) > 400, 99.0, values))
    other = replace(changed, scale=frame.scale, channels=frame.channels)
    assert np.array_equal(model.forecast(frame, origin), model.forecast(other, origin))


def test_a_short_record_gives_no_model():
    frame = frame_of(waves(24 * 8))
    assert len(frame.origins()) >= FEWEST
    assert fit(frame, frame.origins()) is None  # a week of lags leaves a day of windows
    assert fit(frame, np.zeros(0, np.int64)) is None


def test_a_constant_series_is_forecast_as_it_is():
    frame = frame_of(np.full(24 * 30, 2.5))
    model = fit(frame, frame.origins())
    assert model.forecast(frame, frame.origins()[-5:]) == pytest.approx(2.5)


def test_its_products_and_solutions_are_those_of_linear_algebra():
    rng = np.random.default_rng(1)
    design, goals = rng.normal(size=(50, 7)), rng.normal(size=(50, 3))
    gram, cross = product(design, design), product(goals, design)
    assert np.allclose(gram, design.T @ design)
    wanted = np.linalg.solve(gram + 0.5 * np.eye(7), cross.T).T
    assert np.allclose(ridge_solution(gram, cross, 0.5), wanted)
    assert np.allclose(outputs_of(design, wanted), design @ wanted.T)


def test_it_survives_being_saved_and_ignores_other_windows():
    frame = frame_of(waves())
    model = fit(frame, frame.origins())
    again = OwnModel.from_arrays(unpack_leaves(pack_leaves(model.arrays())))
    late = frame.origins()[-5:]
    assert np.allclose(again.forecast(frame, late), model.forecast(frame, late), rtol=1e-12)
    assert np.isnan(again.forecast(frame_of(waves(), horizon=2), late)).all()


def graph(**feeds):
    newest = feeds["x"][:, -1:, 0] + feeds["p"][0]
    return (np.repeat(newest, HORIZON, axis=1).astype(np.float32),)


ZERO = np.zeros(5, np.float32)


def models(**changes):
    return CandidateModels(graph, (0.5,), **changes)


def test_every_candidate_forecasts_where_it_can():
    frame = frame_of(waves())
    own = fit(frame, frame.origins())
    late = np.array([23, 30, 200])
    fans = models(tuned=ZERO + np.float32(0.5), is_tuned=True, own=own).fans(ZERO, frame, late)
    known = dict(zip(CANDIDATES, np.isfinite(fans).all(axis=(2, 3)).tolist(), strict=True))
    assert known[FLEET] == known[TUNED] == known[LAST_DAY] == [True] * 3
    assert known[OWN] == known[LAST_WEEK] == [False, False, True]
    assert not np.array_equal(fans[0], fans[CANDIDATES.index(TUNED)])


def test_the_fleets_model_stands_for_a_copy_that_did_not_help():
    frame, late = frame_of(waves()), np.array([200])
    fans = models(is_tuned=True).fans(ZERO, frame, late)
    assert np.array_equal(fans[0], fans[CANDIDATES.index(TUNED)])
    assert np.isnan(models().fans(ZERO, frame, late)[CANDIDATES.index(TUNED)]).all()


def test_a_candidate_without_quantiles_has_those_of_the_fleet_around_its_median():
    def quantiles(**feeds):
        return (graph(**feeds)[0][:, :, None] + np.array([-0.1, 0.0, 0.3], np.float32),)

    frame, late = frame_of(waves()), np.array([200])
    fans = CandidateModels(quantiles, (0.1, 0.5, 0.9)).fans(ZERO, frame, late)
    naive = fans[CANDIDATES.index(LAST_DAY)]
    assert np.allclose(naive[:, :, 1], seasonal_naive(frame.last, late, HORIZON, 24))
    assert np.allclose(np.diff(naive, axis=2), np.diff(fans[0], axis=2))


def test_every_value_is_compared_once_for_every_step_ahead():
    frame = frame_of(waves(24 * 10))
    upto = BEGUN + 24 * 5 - 1
    whole = models().compared_since(HeldBackErrors.empty(), upto, ZERO, frame)
    assert whole.counts.sum() == 24 * 5 * HORIZON
    parts = HeldBackErrors.empty()
    for hours in range(24 * 5, 24 * 10 + 1, 5):
        early = frame_of(waves(24 * 10)[:hours])
        early = replace(early, scale=frame.scale, channels=frame.channels[:hours])
        parts = models().compared_since(parts, upto, ZERO, early)
        upto = BEGUN + hours - 1
    assert parts.counts.tolist() == whole.counts.tolist()
    assert np.allclose(parts.sums, whole.sums, equal_nan=True)


def test_what_cannot_be_forecast_is_served_by_the_fleet():
    frame, late = frame_of(waves()), np.array([30, 200])
    served = ServedCandidate(models(), ForecastChoice(LAST_WEEK, {LAST_WEEK: 1.0}))
    found = served.quantiles(ZERO, frame, late)
    fleet, *_, week = models().fans(ZERO, frame, late)
    assert np.array_equal(found[0], fleet[0])
    assert np.array_equal(found[1], week[1])


def test_a_weighted_mean_names_its_weights():
    choice = ForecastChoice(MEAN, {FLEET: 0.25, LAST_DAY: 0.75})
    served, frame, late = ServedCandidate(models(), choice), frame_of(waves()), np.array([200])
    fans = models().fans(ZERO, frame, late)
    wanted = 0.25 * fans[0] + 0.75 * fans[CANDIDATES.index(LAST_DAY)]
    assert np.allclose(served.quantiles(ZERO, frame, late), wanted)
    assert served.weights == {FLEET: 0.25, LAST_DAY: 0.75}
    assert served.source == "weighted mean"
