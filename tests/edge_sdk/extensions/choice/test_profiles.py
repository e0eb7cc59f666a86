"""The choice between candidates of a device that forecasts profiles."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.extensions.analytic.boosting import fit_trees
from edge_sdk.extensions.choice.candidates import ISSUED, CandidateModels, judged
from edge_sdk.extensions.choice.combination import (
    LAST_DAY,
    OWN,
    PROFILES,
    HeldBackErrors,
    blocks_of,
)
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice, choose_by_step
from edge_sdk.extensions.choice.own_model import fit
from edge_sdk.extensions.choice.record_errors import record_errors
from edge_sdk.forecasting.forecast import FLEET
from tests.edge_sdk.extensions.analytic.day_fleet import START, load_of, runtime_of

pytestmark = pytest.mark.extension
LOAD = load_of(2, 60, gaps=0.0)


@pytest.fixture
def learner(tmp_path):
    return runtime_of(tmp_path, LOAD, 50 * 24)


def models_of(learner):
    frame = learner.frame()
    own = fit(frame, frame.origins())
    return CandidateModels(learner.bundle.graphs["forecast"], learner.levels, own=own)


def test_profiles_are_judged_as_they_are_issued(learner):
    frame = learner.frame()
    found = judged(frame, frame.origins())
    assert ((frame.times[found] + 3600) % ISSUED == 0).all()
    assert len(found) == pytest.approx(len(frame.origins()) / 6, abs=1)
    models, upto = models_of(learner), START // 3600 + 40 * 24 - 1
    table = HeldBackErrors.empty(len(blocks_of(24)))
    table = models.compared_since(table, upto, learner.bundle.initial, frame)
    assert len(table.days) == 10
    # a step of a block is judged once for each of the four issues whose block it lies in
    assert table.counts.sum(axis=1)[1:-1].tolist() == 8 * [4 * 24]


@pytest.mark.slow
def test_an_old_record_is_compared_with_own_parts_that_have_not_learned_it(learner):
    state, models = learner.first_state(), models_of(learner)
    table = record_errors(learner, state, models)
    assert len(table.days) >= 7
    errors = table.compared(names=(FLEET, OWN, LAST_DAY))
    assert np.isfinite([errors[name] for name in (FLEET, OWN, LAST_DAY)]).all()
    choice = choose_by_step(table, ForecastChoice(), models.available)
    assert choice.errors[choice.name] <= errors[LAST_DAY]


@pytest.mark.slow
def test_a_week_of_profiles_chooses_nothing(learner):
    table = record_errors(learner, learner.first_state(), models_of(learner))
    assert len(table.days) < PROFILES
    found = choose_by_step(table, ForecastChoice(), models_of(learner).available, least=PROFILES)
    assert found.name == FLEET


def test_trees_are_no_candidates(learner):
    assert fit_trees(learner, learner.first_state(), b"") is None
