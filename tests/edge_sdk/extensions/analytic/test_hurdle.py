"""The hurdle model: its quantiles are those of a mixture of 0 and positive values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.extensions.analytic.hurdle import Hurdle, HurdleForm, hurdle
from edge_sdk.extensions.analytic.trees import TreeForm, thresholds

LEVELS = (0.1, 0.5, 0.9)
SMALL = HurdleForm(TreeForm(trees=15, depth=2), TreeForm(trees=15, depth=2))
DEMAND = st.just(0.0) | st.floats(0.125, 100.0)


def mixture(size: int = 20_000):
    """Return one yes-or-no feature and values: 0 with probability .8 or .3, else uniform."""
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 2, size=(size, 1)).astype(float)
    zero = np.where(rows[:, 0] > 0.0, 0.3, 0.8)
    return rows, np.where(draw.uniform(size=size) < zero, 0.0, draw.uniform(1.0, 2.0, size))


def test_quantiles_are_those_of_the_mixture():
    rows, values = mixture()
    levels = tuple(np.arange(0.05, 1.0, 0.05))
    trees = TreeForm(trees=60, depth=1, rate=0.2, rows=1.0, most=20_000, features=1.0, ballast=0.0)
    made = hurdle(rows, values, HurdleForm(trees, trees, levels))
    sides = np.array([[0.0], [1.0]])
    assert made.zero(sides) == pytest.approx([0.8, 0.3], abs=0.02)
    fan = made.quantiles(sides, (*LEVELS, 0.79, 0.29))
    # level q of the whole is level (q - p) / (1 - p) of uniform values between 1 and 2
    assert fan[0] == pytest.approx([0.0, 0.0, 1.5, 0.0, 0.0], abs=0.08)
    assert fan[1] == pytest.approx([0.0, 1.0 + 2 / 7, 1.0 + 6 / 7, 1.7, 0.0], abs=0.05)


def test_the_pinball_loss_is_below_that_of_the_best_constant_quantiles():
    rows, values = mixture()
    made = hurdle(rows[:10_000], values[:10_000], SMALL).quantiles(rows[10_000:], LEVELS)
    late = values[10_000:]

    def loss(level, forecast):
        missed = late - forecast
        return np.maximum(level * missed, (level - 1.0) * missed).mean()

    best = sum(loss(q, np.quantile(late, q)) for q in LEVELS)
    assert sum(loss(q, made[:, i]) for i, q in enumerate(LEVELS)) < 0.97 * best


def test_a_device_that_is_never_or_always_on():
    rows = np.arange(50.0)[:, None]
    off = hurdle(rows, np.zeros(50), SMALL)
    assert not off.quantiles(rows, LEVELS).any()
    assert (off.zero(rows) == 1.0).all()
    on = hurdle(rows, np.full(50, 3.0), replace(SMALL, positive=TreeForm(ballast=0.0)))
    assert (on.zero(rows) < 0.05).all()
    assert on.quantiles(rows, LEVELS) == pytest.approx(np.full((50, 3), 3.0), abs=1e-3)


def test_the_same_seed_gives_the_same_model():
    rows, values = mixture(500)
    rows = np.hstack([rows, np.random.default_rng(1).normal(size=(500, 3))])
    first, same, other = (hurdle(rows, values, SMALL, seed=s) for s in (3, 3, 4))
    assert np.array_equal(first.quantiles(rows, LEVELS), same.quantiles(rows, LEVELS))
    assert not np.array_equal(first.quantiles(rows, LEVELS), other.quantiles(rows, LEVELS))


@settings(max_examples=30, deadline=None)
@given(values=hnp.arrays(np.float64, st.integers(1, 40), elements=DEMAND), seed=st.integers(0, 99))
def test_quantiles_do_not_cross_and_are_not_negative(values, seed):
    rows = np.random.default_rng(seed).normal(size=(len(values), 3))
    fan = hurdle(rows, values, SMALL, seed=seed).quantiles(rows, LEVELS)
    assert np.isfinite(fan).all()
    assert (fan >= 0.0).all()
    assert (np.diff(fan, axis=1) >= 0.0).all()


def test_a_saved_model_is_the_same_and_a_damaged_record_is_refused():
    rows, values = mixture(500)
    once = Hurdle.from_arrays(hurdle(rows, values, SMALL).arrays())
    again = Hurdle.from_arrays(once.arrays())
    assert np.array_equal(once.quantiles(rows, LEVELS), again.quantiles(rows, LEVELS))
    whole = once.arrays()
    numbers, asked, values = whole["numbers"], whole["odds_asked"], whole["positive_values"]
    deep = np.zeros((1, 15, 60), np.uint16)
    for damage, match in (
        ({"numbers": numbers[:2]}, "three finite numbers"),
        ({"numbers": np.where(np.arange(8) == 0, np.nan, numbers)}, "three finite numbers"),
        ({"numbers": numbers[::-1]}, "do not rise"),
        ({"numbers": numbers[:-1]}, "do not fit each other"),
        ({"odds_asked": deep, "odds_above": deep}, "depth 60, at most 16"),
        ({"odds_asked": asked + 1}, "unknown feature"),
        ({"odds_asked": asked.astype(float)}, "not whole numbers"),
        ({"odds_asked": asked - 1.0 + 0 * asked}, "not whole numbers"),
        ({"positive_values": values[:, :, :2]}, "leaves of positive"),
        ({"positive_values": values * np.nan}, "not finite"),
        ({"odds_edges": np.repeat(whole["odds_edges"], 2, axis=1)}, "numbers of features"),
    ):
        with pytest.raises(ValueError, match=match):
            Hurdle.from_arrays({**whole, **damage})
    with pytest.raises(KeyError):
        Hurdle.from_arrays({n: one for n, one in whole.items() if n != "odds_edges"})


def test_it_asks_whether_to_go_on():
    rows, values = mixture(100)
    turns = []
    hurdle(rows, values, SMALL, turn=lambda: turns.append(1))
    assert len(turns) == 15 + 7  # trees of the probability, levels


def test_what_cannot_be_fitted_is_refused():
    rows = np.ones((2, 1))
    with pytest.raises(ValueError, match="a target of -1, at least 0"):
        hurdle(rows, np.array([1.0, -1.0]))
    for levels in ((0.5,), (0.5, 0.5)):
        with pytest.raises(ValueError, match="at least two that rise"):
            hurdle(rows, np.ones(2), replace(SMALL, levels=levels))


def test_a_frequent_value_takes_the_room_of_one_bin_only():
    """A reading that is 0 in 90 % of the rows has thresholds among the others."""
    column = np.concatenate([np.zeros(900), np.arange(1.0, 101.0)])[:, None]
    plain, capped = (thresholds(column, is_capped=some)[0] for some in (False, True))
    assert np.isfinite(plain).sum() == 4
    assert np.isfinite(capped).sum() > 20
    even = np.random.default_rng(0).permutation(6400.0 * np.arange(64))[:, None]
    plain, capped = (thresholds(even, is_capped=some)[0] for some in (False, True))
    assert np.abs(plain - capped).max() <= 6400.0  # nothing is frequent: the same quantiles
    assert isinstance(hurdle(column, column[:, 0], SMALL), Hurdle)
