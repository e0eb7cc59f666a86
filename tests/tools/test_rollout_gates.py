"""Rollouts judged by forecasts: devices compare two models on their readings, and the gate decides."""

import numpy as np
import pytest

from aggregator.extensions.rollouts.rollout_control import RolloutGate
from edge_sdk.extensions.rollouts.trial_record import TrialRecord
from edge_sdk.forecasting.calendar_features import DAY
from tools.experiments.rollout_gates import (
    BEFORE,
    LONGEST,
    MONDAY,
    Experiment,
    JudgedWindows,
    Parts,
    rollout,
    simulated,
    summary,
    table,
    trained,
    turned,
    versions,
)

DEVICES, RUNS = 60, 3
GATE = RolloutGate(waves=(0.1, 1.0), shadow=1.0)


@pytest.fixture(scope="module")
def parts():
    return Parts.load()


@pytest.fixture(scope="module")
def experiment(parts):
    return Experiment(lambda seed: simulated(DEVICES, seed, parts), GATE, steps=150)


def test_the_new_version_is_worse_by_the_stated_share_on_the_days_of_the_rollout(parts):
    meters = simulated(12, 0, parts)
    model = trained(meters, 0, steps=150)
    windows = JudgedWindows(meters)
    assert np.mean(windows.errors(model)) < np.mean(windows.errors(parts.shipped.initial))
    served, new = versions(meters, model, 0, 1.1)
    ratio = np.mean(windows.errors(new) / windows.errors(served))
    assert ratio == pytest.approx(1.1, abs=0.01)
    sums = [one.compared(served, new, LONGEST).sums.sum(axis=0) for one in meters]
    assert 1.05 < np.mean([b / a for a, b in sums]) < 1.15  # every hour, not every fourth


def test_comparing_all_days_at_once_is_comparing_them_day_by_day(parts):
    (meter,) = simulated(1, 0, parts)
    rng = np.random.default_rng(0)
    served = parts.shipped.initial
    new = (served + 0.01 * rng.standard_normal(len(served))).astype(np.float32)
    whole = meter.compared(served, new, 3)
    record, upto = TrialRecord.empty(), MONDAY // 3600 + 24 * BEFORE - 1
    for day in range(1, 4):
        version = meter.version(served, new, day)
        record = version.compared(record, upto, served)
        upto = version.present.series.newest
    assert (
        record.days.tolist()
        == whole.days.tolist()
        == [MONDAY // DAY + BEFORE + i for i in range(3)]
    )
    np.testing.assert_allclose(record.sums, whole.sums, rtol=1e-5)


def test_comparisons_that_are_kept_give_the_same_rollouts(parts, tmp_path):
    made = []

    def fleet(seed):
        made.append(seed)
        return simulated(8, seed, parts)

    gate = RolloutGate(waves=(1.0,), least=1)
    first = list(Experiment(fleet, gate, steps=20, kept=tmp_path).ends(1.0, range(1)))
    assert made == [0, 0]  # the model's fleet, and the rollout's
    assert list(Experiment(fleet, gate, steps=20, kept=tmp_path).ends(1.0, range(1))) == first
    assert made == [0, 0]
    assert len(first) == 2
    assert first[0].multiple == pytest.approx(1.0, abs=0.05)


def test_either_of_two_equal_versions_can_be_the_served_one(parts):
    days = np.arange(10) + MONDAY // DAY + BEFORE
    worse = {f"meter-{i:03}": TrialRecord(days, np.full((10, 2), [1.0, 1.3])) for i in range(20)}
    gate = RolloutGate(waves=(1.0,), least=1, days=1)
    assert rollout(worse, seed=0, gate=gate).why == "harm"
    assert rollout(turned(worse), seed=0, gate=gate).phase == "done"


@pytest.mark.soak
def test_a_version_with_a_tenth_more_error_is_stopped_before_a_device_serves_it(experiment):
    ends = list(experiment.ends(1.1, range(RUNS)))
    assert [(one.phase, one.why, one.stage, one.served) for one in ends] == [
        ("return", "harm", 0, 0)
    ] * RUNS, ends
    assert max(one.day for one in ends) <= 3


@pytest.mark.soak
def test_a_version_with_the_same_error_reaches_the_whole_fleet(experiment):
    ends = list(experiment.ends(1.0, range(RUNS)))
    assert [(one.phase, one.stage, one.served) for one in ends] == [("done", 2, DEVICES)] * 2 * RUNS
    row = summary("equal", GATE, ends)
    assert (row["stopped"], row["reached the whole fleet"]) == ("0", "6")
    assert table([row, row]).count("| 100 %, 1.5 % | 6 | 0 |") == 2
    assert table([row]).count("\n") == 2
