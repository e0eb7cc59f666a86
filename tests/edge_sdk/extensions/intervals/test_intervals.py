"""A calibration follows a device: what it lived through stays, its beginning does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.extensions.intervals.conformal import CoverageTarget
from edge_sdk.extensions.intervals.interval_tracker import IntervalTracker, SavedCalibration
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Feature, Target, Window

LOAD = "ev.demand.energy"
FOLLOWER = IntervalTracker(
    CoverageTarget(0.1, 0.1, gain=0.05, least=0.0, narrowest=0.01), 40, b"b" * 32
)
OLD, NEW = np.zeros(3, np.float32), np.ones(3, np.float32)


def frame_of(values):
    series = Series(1800, [LOAD])
    series.load(SeriesRow(LOAD, 100 + i, v) for i, v in enumerate(values) if np.isfinite(v))
    manifest = SimpleNamespace(
        window=Window(3, 2, 1800),
        target=Target(LOAD, "kWh", "level", "device"),
        features=(Feature("energy", "target", "kWh"),),
    )
    return ChannelFrame.of(series, manifest)


class Telling:
    """Says 0 to ``high`` whatever came, and remembers from where it was asked."""

    def __init__(self, high=1.0):
        self.high, self.asked = high, []

    def __call__(self, origins):
        self.asked.append(origins.tolist())
        return np.tile(np.array([0.0, self.high / 2, self.high]), (len(origins), 2, 1))


def test_calibration_starts_on_the_newest_rows_and_continues():
    values = np.r_[np.full(60, 0.5), np.full(20, 3.0)]
    tell = Telling()
    kept = FOLLOWER.follow(None, frame_of(values[:70]), OLD, tell)
    assert tell.asked == [list(range(30, 70))]
    kept = FOLLOWER.follow(kept, frame_of(values), OLD, tell)
    assert tell.asked[-1] == list(range(70, 80))
    assert kept.calibration.upto == 100 + 79
    assert kept.calibration.moved[0, 1] > 0.8


def test_following_one_reading_at_a_time_equals_following_at_once():
    values = np.random.default_rng(1).exponential(size=90)
    one = several = FOLLOWER.follow(None, frame_of(values[:50]), OLD, Telling())
    one = FOLLOWER.follow(one, frame_of(values), OLD, Telling())
    for end in range(51, 91):
        restarted = SavedCalibration.from_arrays(several.arrays())
        several = FOLLOWER.follow(restarted, frame_of(values[:end]), OLD, Telling())
    assert np.array_equal(one.calibration.moved, several.calibration.moved)
    assert np.array_equal(one.calibration.ends, several.calibration.ends)


def test_following_the_same_rows_twice_changes_nothing():
    frame = frame_of(np.random.default_rng(2).exponential(size=60))
    kept = FOLLOWER.follow(None, frame, OLD, Telling())
    again = FOLLOWER.follow(kept, frame, OLD, Telling())
    assert np.array_equal(kept.calibration.moved, again.calibration.moved)
    assert kept.calibration.tried == again.calibration.tried


def test_a_new_model_restarts_a_young_calibration_only():
    values = np.full(130, 3.0)
    young = FOLLOWER.follow(None, frame_of(values[:80]), OLD, Telling(1.0))
    assert young.calibration.moved[0, 1] > 0.5
    better = FOLLOWER.follow(young, frame_of(values[:81]), NEW, Telling(4.0))
    assert better.calibration.moved[0, 1] == 0.0
    old = FOLLOWER.follow(young, frame_of(values[:125]), OLD, Telling(1.0))
    kept = FOLLOWER.follow(old, frame_of(values[:126]), NEW, Telling(4.0))
    assert kept.calibration.moved[0, 1] > 0.5


@pytest.mark.parametrize("change", ["bundle", "clock"])
def test_another_bundle_or_a_wrong_clock_restarts_the_calibration(change):
    frame = frame_of(np.full(80, 3.0))
    kept = FOLLOWER.follow(None, frame, OLD, Telling())
    if change == "bundle":
        kept = replace(kept, bundle=b"a" * 32)
    else:
        kept = replace(kept, calibration=replace(kept.calibration, upto=10**9))
    anew = FOLLOWER.follow(kept, frame, OLD, Telling(9.0))
    assert anew.bundle == FOLLOWER.bundle
    assert anew.calibration.moved[0, 1] == 0.0


def test_after_a_long_pause_only_the_newest_rows_are_followed():
    values = np.full(300, 0.5)
    kept = FOLLOWER.follow(None, frame_of(values[:80]), OLD, Telling())
    tell = Telling()
    kept = FOLLOWER.follow(kept, frame_of(values), OLD, tell)
    assert tell.asked == [list(range(260, 300))]


def test_rows_without_a_complete_window_are_not_predicted():
    values = np.full(60, 0.5)
    values[30:40] = np.nan
    frame = frame_of(values)
    whole = frame.complete
    assert not whole[:2].any()
    assert whole[2:30].all()
    assert not whole[32:42].any()  # two steps are carried forward, and a window is three
    assert whole[42:].all()
    assert not frame_of(values[:2]).complete.any()
    FOLLOWER.follow(None, frame_of([np.nan, 1.0]), OLD, Telling())


def test_a_past_interval_uses_no_later_reading():
    rng = np.random.default_rng(5)
    values = rng.exponential(size=150)
    other = np.r_[values[:101], 50 + rng.exponential(size=49)]
    origins = np.arange(80, 120)
    ends = FOLLOWER.served(frame_of(values), origins, Telling())
    changed = FOLLOWER.served(frame_of(other), origins, Telling())
    assert np.array_equal(ends[:21], changed[:21])
    assert (changed[22:, 0, 1] > ends[22:, 0, 1]).all()
    assert FOLLOWER.served(frame_of(values), origins[:0], Telling()).shape == (0, 2, 2)


class TestHelpedAndAlone:
    """Where a server is silent now and then, each kind of interval keeps its own promise."""

    ROWS = 700
    HELPED = np.array([[0.0, 0.2, 0.4], [0.0, 0.2, 0.4]])  # too narrow; alone: 0 to 1, too wide

    def lived(self, every):
        """Misses above, by kind, of a device that the server helps with that chance."""
        rng = np.random.default_rng(3)
        values, served = rng.exponential(0.3, self.ROWS), {"helped": [], "alone": []}
        kept, tell = FOLLOWER.follow(None, frame_of(values[:50]), OLD, Telling()), Telling()
        for end in range(51, self.ROWS - 2):
            kept = self.shifted(kept, values, end, tell)
            is_helped = rng.random() < every
            if is_helped:
                kept = FOLLOWER.aid(kept, self.frame, self.HELPED)
            ends = (kept.aided if is_helped else kept.calibration).ends[-1]
            served["helped" if is_helped else "alone"].append(values[end] > ends[0, 1])
        return {kind: float(np.mean(missed)) for kind, missed in served.items()}, kept

    def shifted(self, kept, values, end, tell):
        self.frame = frame_of(
            np.r_[np.full(max(0, end - 60), np.nan), values[max(0, end - 60) : end]]
        )
        kept = FOLLOWER.follow(kept, self.frame, OLD, tell)
        return kept if kept.aided is None else FOLLOWER.aid(kept, self.frame, None)

    @pytest.mark.parametrize("every", [0.2, 0.8])
    def test_plain_and_aided_intervals_keep_their_coverage(self, every):
        missed, kept = self.lived(every)
        assert missed["helped"] <= 0.12 + 0.02 / every
        assert missed["alone"] <= 0.12
        assert kept.aided.moved[0, 1] > kept.calibration.moved[0, 1] + 0.3

    def test_both_calibrations_survive_a_restart_and_the_aided_one_a_new_model(self):
        frame = frame_of(np.full(60, 0.5))
        kept = FOLLOWER.aid(FOLLOWER.follow(None, frame, OLD, Telling()), frame, self.HELPED)
        again = SavedCalibration.from_arrays(kept.arrays())
        assert again.aided.ends.tolist() == kept.aided.ends.tolist()
        anew = FOLLOWER.follow(again, frame, NEW, Telling())
        assert anew.model != kept.model
        assert anew.aided.ends.tolist() == kept.aided.ends.tolist()
        other = replace(FOLLOWER, bundle=b"c" * 32).follow(again, frame, OLD, Telling())
        assert other.aided is None

    def test_the_aided_calibration_starts_from_the_plain_one(self):
        frame = frame_of(np.full(60, 3.0))
        kept = FOLLOWER.follow(None, frame, OLD, Telling())
        helped = FOLLOWER.aid(kept, frame, self.HELPED).aided
        assert helped.moved.tolist() == kept.calibration.moved.tolist()
        assert helped.tried == 0
