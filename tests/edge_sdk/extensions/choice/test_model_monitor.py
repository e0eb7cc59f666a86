"""The monitor: scores add up, bets are fair, and alarms come when they must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.choice.model_monitor import (
    BOUND,
    EARLIER,
    GROSS,
    LAG,
    LONGEST,
    LOST,
    MARGIN,
    UNUSUAL_SHARE,
    DailyScores,
    ModelMonitor,
    SequentialTest,
    usual_bound,
)


def after(days):
    test = SequentialTest()
    for is_lost in days:
        test = test.after(is_lost=is_lost)
    return test


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_sum_is_that_of_all_bets_that_began_on_any_day(days):
    """Oracle: the definition, one product of factors for each first day."""
    for p, found in zip(LOST, after(days).sums, strict=True):
        factors = [2 * p if is_lost else 2 * (1 - p) for is_lost in days]
        wanted = sum(np.prod(factors[first:]) for first in range(len(days)))
        assert found == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=12), st.floats(0.0, 0.5))
def test_no_bet_gains_while_at_most_half_of_the_days_are_lost(days, chance):
    """The sum less the number of days is a supermartingale: it grows by at most 1 a day."""
    test = after(days)
    lost, won = test.after(is_lost=True).sums, test.after(is_lost=False).sums
    for before, a, b in zip(test.sums, lost, won, strict=True):
        assert chance * a + (1 - chance) * b <= (before + 1.0) * (1 + 1e-12)


def test_a_model_as_good_as_the_naive_one_gives_about_one_alarm_in_a_hundred_years():
    """At the boundary of the claim: at most five are expected in five hundred years."""
    days, test, alarms = np.random.default_rng(3).random(5 * 36_500) < 0.5, SequentialTest(), 0
    for is_lost in days.tolist():
        test = test.after(is_lost=is_lost)
        if test.evidence >= 1.0:
            test, alarms = SequentialTest(), alarms + 1
    assert 1 <= alarms <= 8


def test_seventeen_lost_days_are_an_alarm_and_sixteen_are_not():
    assert after(16 * [True]).evidence < 1.0 <= after(17 * [True]).evidence
    assert BOUND == 100 * 365


def table(ratios, first=100):
    one = np.ones(len(ratios))
    sums = np.stack([np.array(ratios), one, one], axis=1)
    return DailyScores(first + np.arange(len(ratios)), sums, np.full((len(ratios), 3), 24))


def test_a_slow_alarm_names_its_fortnight():
    found = ModelMonitor(table(20 * [1.0 + 2 * MARGIN])).judged(120, 9)
    assert (found.alarms, found.alarmed_row, found.tested, found.lost) == (1, 9, 119, 20)
    assert found.since == 100 + 16 - 13
    assert found.test == after(3 * [True])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=12), st.floats(0.0, UNUSUAL_SHARE))
def test_no_bet_on_unusual_days_gains_while_at_most_a_fifth_are_unusual(days, chance):
    test = SequentialTest()
    for is_lost in days:
        test = test.after(is_lost=is_lost, null=UNUSUAL_SHARE)
    lost, won = (test.after(is_lost=one, null=UNUSUAL_SHARE).sums for one in (True, False))
    for before, a, b in zip(test.sums, lost, won, strict=True):
        assert chance * a + (1 - chance) * b <= (before + 1.0) * (1 + 1e-12)


def steady(days, worse_from, factor):
    """Ratios between 0.30 and 0.50, multiplied from a day on."""
    ratios = 0.3 + 0.2 * np.random.default_rng(5).random(days)
    return table(ratios * np.where(np.arange(days) < worse_from, 1.0, factor))


def test_days_that_are_worse_than_the_device_s_own_earlier_ones_are_an_alarm():
    """The error stays below the naive one; the eighth unusual day in succession is the alarm."""
    found = ModelMonitor(steady(90, 70, 1.8)).judged(100 + 78, 9)
    assert (found.alarms, found.lost, found.tested) == (1, 0, 177)
    assert found.since == 177 - 13
    assert found.unusual == SequentialTest()
    assert ModelMonitor(steady(90, 70, 1.8)).judged(100 + 77, 9).alarms == 0
    assert ModelMonitor(steady(90, 90, 1.8)).judged(190, 9).alarms == 0


def test_a_day_is_compared_with_days_from_before_a_lag():
    """Neither the fourteen days before it nor those older than 106 change the bound."""
    ratios = np.linspace(0.2, 0.9, 120)
    bound = usual_bound(table(ratios), 119)
    assert bound == np.quantile(ratios[119 - LAG - EARLIER[1] : 119 - LAG], 0.95)
    ratios[119 - LAG :] = ratios[: 119 - LAG - EARLIER[1]] = 5.0
    assert usual_bound(table(ratios), 119) == bound
    assert usual_bound(table(ratios), LAG + EARLIER[0] - 1) is None


def test_days_without_a_naive_error_are_not_compared_with():
    scores = table(np.linspace(0.2, 0.9, 60))
    scores.sums[:20, 2] = 0.0
    assert usual_bound(scores, 61 - 1) is None
    assert usual_bound(table(np.linspace(0.2, 0.9, 60)), 60 - 1) is not None


def test_a_day_within_the_margin_is_not_lost():
    found = ModelMonitor(table(40 * [1.0 + MARGIN / 2])).judged(140, 9)
    assert (found.alarms, found.lost) == (0, 0)


@pytest.mark.parametrize(
    ("ratios", "alarms"),
    [
        ([2.1, 2.1], 1),
        ([2.1, 1.9], 0),
        ([2.1, 0.5, 2.1], 0),
        ([2.1, 2.1, 2.1], 1),  # the day of the alarm counts for no second one
        ([2.1, 2.1, 2.1, 2.1], 2),
    ],
)
def test_two_gross_days_in_succession_are_a_fast_alarm(ratios, alarms):
    found = ModelMonitor(table(ratios)).judged(200, 9)
    assert found.alarms == alarms
    assert GROSS == 2.0


def test_a_small_naive_error_in_a_holiday_is_no_fast_alarm():
    """The served error is as ever; that of the naive forecast is a third of it for four days."""
    one = np.ones(30)
    naive = np.where(np.arange(30) < 26, 1.2, 0.33)
    scores = DailyScores(np.arange(30), np.stack([one, one, naive], 1), np.full((30, 3), 24))
    assert ModelMonitor(scores).judged(40, 9).alarms == 0
    broken = scores.sums * np.where(np.arange(30)[:, None] < 28, 1.0, [2.5, 1.0, 1.0])
    assert ModelMonitor(DailyScores(scores.days, broken, scores.counts)).judged(40, 9).alarms == 1


def test_days_that_are_not_neighbours_are_no_succession():
    scores = table([2.1, 2.1])
    apart = DailyScores(np.array([100, 102]), scores.sums, scores.counts)
    assert ModelMonitor(apart).judged(200, 9).alarms == 0


def test_the_present_day_waits_until_it_is_complete():
    monitor = ModelMonitor(table([2.1, 2.1]))
    assert monitor.judged(101, 9).tested == 100
    assert monitor.judged(101, 9).judged(102, 10).alarms == monitor.judged(102, 10).alarms == 1


def drawn(seed, n, horizon=3):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, horizon))
    truth[rng.random(truth.shape) < 0.2] = np.nan
    fan = np.sort(rng.normal(size=(n, horizon, 3)), axis=2)
    days = np.sort(rng.integers(50, 54, size=(n, horizon)), axis=None).reshape(n, horizon)
    return fan, fan + 0.1, rng.normal(size=(n, horizon)), truth, days


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.data())
def test_scores_do_not_depend_on_where_the_record_is_cut(seed, n, data):
    parts = drawn(seed, n)
    cut = data.draw(st.integers(0, n))
    whole = DailyScores.empty().extended(*parts)
    halves = DailyScores.empty().extended(*(part[:cut] for part in parts))
    halves = halves.extended(*(part[cut:] for part in parts))
    assert whole.days.tolist() == halves.days.tolist()
    assert whole.counts.tolist() == halves.counts.tolist()
    np.testing.assert_allclose(whole.sums, halves.sums, rtol=1e-12)
    assert (whole.counts[:, 1] + whole.counts[:, 2] <= whole.counts[:, 0]).all()


def test_only_the_newest_days_are_kept():
    n = LONGEST + 5
    truth, days = np.zeros((n, 1)), np.arange(n)[:, None]
    fan = np.ones((n, 1, 1))
    scores = DailyScores.empty().extended(fan, fan, 2.0 * truth + 2.0, truth, days)
    assert scores.days.tolist() == list(range(5, n))
    assert (scores.ratio(), scores.misses()) == (0.5, (1.0, 0.0))


def test_nothing_is_known_without_a_day():
    assert DailyScores.empty().ratio() is DailyScores.empty().misses() is None
    assert "below the interval" not in ModelMonitor().summary()
