"""Whatever the readings do, few enough of them miss the interval, and little is remembered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.intervals.calibrated_forecaster import moved_by
from edge_sdk.extensions.intervals.conformal import ConformalCalibration, CoverageTarget, rolled
from edge_sdk.forecasting.forecast import predict
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from tests.edge_sdk.forecasting.test_forecast import LEVELS, frame_of, quantiles

AIM = CoverageTarget(0.1, 0.1)


def told_of(ends, n):
    """The same quantiles from every row, one step ahead."""
    low, high = ends
    return np.tile(np.array([low, (low + high) / 2, high]), (n, 1, 1))


def misses(y, low, high):
    """Return the shares of values below and above the interval."""
    return float((y < low).mean()), float((y > high).mean())


def run(values, ends=(0.0, 1.0), aim=AIM, compared=None):
    rows = np.arange(len(values))
    compared = told_of(ends, len(values)) if compared is None else compared
    return rolled(
        ConformalCalibration.new(compared.shape[1]), rows, np.asarray(values, float), compared, aim
    )


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=30, max_size=400),
    st.floats(0.02, 0.4),
    st.floats(0.05, 1.0),
)
@settings(max_examples=80)
def test_misses_stay_within_the_proven_bound_for_any_sequence(values, share, gain):
    """Against an adversary: what the ends moved accounts for every miss beyond the share."""
    aim = CoverageTarget(share, share, gain)
    after, _ = run(values, aim=aim)
    allowed = share * after.compared[:, None] + after.moved / gain
    assert (after.missed <= allowed + 1e-9).all()


def test_misses_converge_to_the_target_after_the_scale_has_grown():
    rng = np.random.default_rng(1)
    values = np.r_[rng.uniform(0, 1, 500), rng.uniform(0, 3, 4000)]
    after, ends = run(values)
    later = slice(2000, -1)
    below, above = misses(values[1:][later], ends[:-1, 0, 0][later], ends[:-1, 0, 1][later])
    assert 0.08 <= above <= 0.12
    assert below < 0.12
    assert misses(values[501:], np.zeros(3999), np.ones(3999))[1] > 0.6  # not calibrated
    assert after.misses[1] < 0.16  # all in all, the drift itself included


def test_each_side_is_calibrated_separately():
    rng = np.random.default_rng(2)
    values = rng.normal(2.0, 1.0, 6000)  # a model that is too high below, and far too low above
    after, ends = run(values, ends=(1.5, 2.0))
    below, above = misses(values[2001:], ends[2000:-1, 0, 0], ends[2000:-1, 0, 1])
    assert (below, above) == pytest.approx((0.1, 0.1), abs=0.02)
    assert after.moved[0, 1] > after.moved[0, 0] > 0


def test_an_interval_within_its_target_is_served_unchanged():
    values = np.random.default_rng(3).uniform(0.4, 0.6, 1000)
    after, ends = run(values)
    assert np.isclose(ends, [0.0, 1.0]).all()
    assert (after.moved == 0).all()


def test_no_interval_end_is_below_the_lower_bound():
    aim = CoverageTarget(0.1, 0.1, least=0.0)
    values = np.tile([0.0, 5.0], 300)
    _, ends = run(values, ends=(1.0, 2.0), aim=aim)
    assert ends.min() == 0.0


def test_an_interval_without_width_can_be_moved():
    after, ends = run(
        np.full(2000, 3.0), ends=(0.0, 0.0), aim=CoverageTarget(0.1, 0.1, narrowest=0.5)
    )
    assert ends[-1, 0, 1] == pytest.approx(3.0, abs=0.1)
    assert after.moved[0, 0] == 0


def test_an_interval_is_scored_as_served_when_its_reading_arrives():
    """Three steps ahead: the first reading settles one step, and the last one three."""
    compared = np.tile(np.array([0.0, 0.5, 1.0]), (5, 3, 1))
    after, ends = run([0.5, 9.0, 9.0, 9.0, 9.0], compared=compared)
    assert after.compared.tolist() == [4, 3, 2]
    assert after.missed.tolist() == [[0, 4], [0, 3], [0, 2]]
    assert ends[0].tolist() == [[0.0, 1.0]] * 3
    assert ends[1, 0, 1] > 1.0
    assert ends[1, 1, 1] == 1.0  # nobody has seen two steps ahead yet
    assert len(after.rows) == 3


def test_gaps_and_rows_without_a_window_change_no_calibration():
    compared = told_of((0.0, 1.0), 4)
    compared[1] = np.nan
    after, ends = run([9.0, np.nan, 9.0, 9.0], compared=compared)
    assert after.compared.tolist() == [1]  # the reading of row 3, told from row 2
    assert np.isnan(ends[1]).all()


def test_rolling_in_parts_equals_rolling_at_once():
    rng = np.random.default_rng(4)
    values, compared = rng.exponential(size=200), np.sort(rng.exponential(size=(200, 2, 3)), axis=2)
    rows = np.arange(200)
    whole, ends = rolled(ConformalCalibration.new(2), rows, values, compared, AIM)
    part = ConformalCalibration.new(2)
    for cut in np.split(rows, [1, 2, 50, 51, 130]):
        kept = unpack_leaves(pack_leaves(part.arrays()))  # a restart between any two rows
        part, some = rolled(
            ConformalCalibration.from_arrays(kept), cut, values[cut], compared[cut], AIM
        )
        assert np.array_equal(some, ends[cut])
    assert all(np.array_equal(v, part.arrays()[k]) for k, v in whole.arrays().items())


@pytest.mark.parametrize(("horizon", "most"), [(1, 1000), (6, 2048), (24, 8192)])
def test_the_saved_calibration_is_small(horizon, most):
    compared = np.tile(np.array([0.0, 0.5, 1.0]), (400, horizon, 1))
    after, _ = run(np.ones(400), compared=compared)
    assert len(pack_leaves(after.arrays())) < most


def test_a_coverage_is_split_evenly_between_both_sides():
    assert CoverageTarget.of((0.1, 0.5, 0.9)).coverage == pytest.approx(0.8)
    assert CoverageTarget.of((0.1, 0.5, 0.9), coverage=0.9).misses == pytest.approx([0.05, 0.05])


@pytest.mark.parametrize("wrong", [(0.0, 0.1), (0.1, 0.5), (0.1, 0.1, 0.0)])
def test_an_invalid_coverage_target_is_refused(wrong):
    with pytest.raises(ValueError, match="expected above 0"):
        CoverageTarget(*wrong)


def test_misses_before_any_reading_are_nan():
    assert np.isnan(ConformalCalibration.new(2).misses).all()
    assert ConformalCalibration.new(2).tried == 0


def test_a_calibration_moves_only_the_interval():
    frame = frame_of(np.arange(50.0) % 7)
    graph = quantiles(-0.1, 0.0, 0.2)
    calibration = replace(ConformalCalibration.new(2), moved=np.array([[0.0, 1.0], [0.5, 0.0]]))
    aim = CoverageTarget(0.05, 0.05)
    plain = predict(graph, np.zeros(1), frame, LEVELS)
    moved = predict(graph, np.zeros(1), frame, LEVELS, moved_by(calibration, aim))
    wide = np.diff(plain.interval, axis=1)[:, 0]
    assert moved.interval - plain.interval == pytest.approx(
        np.array([[0.0, wide[0]], [-0.5 * wide[1], 0.0]])
    )
    assert moved.coverage == pytest.approx(0.9)
    assert np.array_equal(moved.quantiles, plain.quantiles)
    assert np.array_equal(moved.values, plain.values)
