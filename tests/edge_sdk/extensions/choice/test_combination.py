"""The choice between candidates: never worse than any of them on held-back data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.extensions.choice.candidates import chosen
from edge_sdk.extensions.choice.combination import (
    BY_STEP,
    CANDIDATES,
    COLUMNS,
    LAST_DAY,
    LAST_GOOD,
    LAST_WEEK,
    LEAST,
    LONGEST,
    MARGIN,
    MEAN,
    OWN,
    HeldBackErrors,
    blended,
    blocks_of,
    mean_loss,
)
from edge_sdk.extensions.choice.forecast_choice import (
    ForecastChoice,
    by_steps,
    choose,
    choose_by_step,
)
from edge_sdk.forecasting.forecast import FLEET, TUNED
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves

DAYS = np.arange(2 * LEAST + 2)


def table_of(**columns):
    """A table of one value a day, whose candidates miss it by a constant or by one error a day."""
    count = len(DAYS)
    forecasts = np.full((len(CANDIDATES), count, 1, 1), np.nan)
    for name, error in columns.items():
        forecasts[CANDIDATES.index(name.replace("_", " ")), :, 0, 0] = error
    return HeldBackErrors.empty().extended(forecasts, np.zeros((count, 1)), DAYS[:, None])


finite = st.floats(0.0, 1e6, allow_nan=False)
errors = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 20), st.just(len(COLUMNS))),
    elements=st.one_of(finite, finite, finite, st.just(float("nan"))),
)


def table_from(sums):
    return HeldBackErrors(np.arange(len(sums)), sums[:, None], np.ones((len(sums), 1), np.int64))


@settings(deadline=None)
@given(errors, st.sampled_from(COLUMNS))
def test_the_choice_is_no_worse_than_any_comparable_candidate(sums, present):
    table = table_from(sums)
    choice = choose(table, present)
    for error in choice.errors.values():
        assert (1.0 - MARGIN) * choice.errors[choice.name] <= error
    if choice.errors:
        assert choice.name in choice.errors


def test_a_mean_that_is_left_alone_is_not_chosen():
    """Days on which the mean is known, and each candidate on too few of them to be compared."""
    sums = np.zeros((LEAST, len(COLUMNS)))
    for column in range(len(COLUMNS)):
        if COLUMNS[column] != MEAN:
            sums[column % LEAST, column] = np.nan
    choice = choose(table_from(sums), MEAN)
    assert (choice.name, choice.weights, choice.errors) == (FLEET, {FLEET: 1.0}, {})


@settings(deadline=None)
@given(errors, st.sampled_from(COLUMNS))
def test_weights_are_a_convex_combination_of_candidates(sums, present):
    choice = choose(table_from(sums), present)
    assert set(choice.weights) <= set(CANDIDATES)
    assert all(weight >= 0.0 for weight in choice.weights.values())
    assert sum(choice.weights.values()) == pytest.approx(1.0)


@settings(deadline=None)
@given(errors, st.sampled_from(COLUMNS), st.sampled_from(CANDIDATES[1:]))
def test_a_candidate_without_forecasts_is_never_chosen(sums, present, missing):
    sums[:, COLUMNS.index(missing)] = np.nan
    choice = choose(table_from(sums), present)
    assert choice.name != missing
    assert missing not in choice.weights


@settings(deadline=None)
@given(errors, st.sampled_from(COLUMNS))
def test_choosing_again_from_the_same_errors_changes_nothing(sums, present):
    once = choose(table_from(sums), present)
    assert choose(table_from(sums), once.name) == once


@given(errors)
def test_without_enough_days_the_fleets_model_is_served(sums):
    choice = choose(table_from(sums[: LEAST - 1]))
    assert (choice.name, dict(choice.weights)) == (FLEET, {FLEET: 1.0})


def test_a_tie_leaves_the_present_choice():
    table = table_of(fleet=1.0, last_day=1.0 - MARGIN / 2, own=1.0)
    assert choose(table, FLEET).name == FLEET
    assert choose(table, OWN).name == OWN
    assert choose(table, TUNED).name == FLEET  # it cannot be compared


def test_a_clearly_better_candidate_replaces_the_present_one():
    assert choose(table_of(fleet=1.0, last_day=0.5, last_week=0.7)).name == LAST_DAY
    assert choose(table_of(fleet=0.4, last_day=0.5, last_week=0.7), LAST_WEEK).name == FLEET


def test_candidates_that_err_to_opposite_sides_are_served_as_their_weighted_mean():
    choice = choose(table_of(fleet=1.0, own=-1.0))
    assert choice.name == MEAN
    assert dict(choice.weights) == {FLEET: 0.5, OWN: 0.5}


def test_weights_are_those_of_inverse_squared_errors():
    weights = table_of(fleet=1.0, own=1.2).inverse_weights()
    assert weights == pytest.approx({FLEET: 1.44 / 2.44, OWN: 1.0 / 2.44})
    assert table_of(fleet=0.0, own=2.0).inverse_weights() == {FLEET: 1.0}


def test_a_candidate_that_is_much_worse_has_no_weight():
    assert set(table_of(fleet=1.0, own=1.2, last_day=1.3).inverse_weights()) == {FLEET, OWN}


def test_the_mean_is_not_judged_before_it_has_weights():
    table = table_of(fleet=1.0, own=-1.0)
    known = np.isfinite(table.errors[:, COLUMNS.index(MEAN)])
    assert known.tolist() == [day >= LEAST for day in DAYS.tolist()]


def test_the_error_of_the_mean_is_that_of_the_weights_of_earlier_days():
    """A candidate that is bad on the last day only has kept its weight there."""
    fleet = np.where(DAYS[-1] == DAYS, 9.0, 1.0)
    table = table_of(fleet=fleet, own=1.0)
    assert table.errors[-1, COLUMNS.index(MEAN)] == pytest.approx(5.0)


def test_one_long_day_is_not_decisive():
    days = np.repeat(DAYS, np.where(DAYS == 0, 500, 1))[:, None]
    forecasts = np.full((len(CANDIDATES), len(days), 1, 1), np.nan)
    forecasts[0, :, 0, 0] = np.where(days[:, 0] == 0, 3.0, 1.0)
    forecasts[CANDIDATES.index(LAST_DAY), :, 0, 0] = np.where(days[:, 0] == 0, 0.0, 2.0)
    table = HeldBackErrors.empty().extended(forecasts, np.zeros((len(days), 1)), days)
    count = len(DAYS)
    assert table.before(count).errors[:, 0].mean() == pytest.approx((3.0 + count - 1) / count)
    assert choose(table).name in {FLEET, MEAN}


def test_a_candidate_that_may_not_be_chosen_is_not():
    table = table_of(fleet=1.0, tuned=0.5)
    assert choose(table).name == TUNED
    assert choose(table, TUNED, (FLEET,)).name == FLEET


def test_a_day_that_arrives_in_parts_counts_as_one():
    whole, parts = HeldBackErrors.empty(), HeldBackErrors.empty()
    rng = np.random.default_rng(3)
    count = len(CANDIDATES)
    forecasts, truth = rng.normal(size=(count, 100, 2, 1)), rng.normal(size=(100, 2))
    days = np.repeat(np.arange(10), 20).reshape(100, 2)
    whole = whole.extended(forecasts, truth, days)
    for part in (slice(0, 33), slice(33, 85), slice(85, 100)):
        parts = parts.extended(forecasts[:, part], truth[part], days[part])
    assert parts.days.tolist() == whole.days.tolist()
    assert np.allclose(parts.sums, whole.sums, equal_nan=True)
    assert np.isfinite(whole.sums[LEAST:]).all()
    assert parts.counts.tolist() == whole.counts.tolist()


def test_old_days_are_forgotten():
    days = np.arange(LONGEST + 9)[:, None]
    found = HeldBackErrors.empty().extended(
        np.ones((len(CANDIDATES), len(days), 1, 1)), np.zeros_like(days) * 1.0, days
    )
    assert found.days.tolist() == list(range(9, LONGEST + 9))
    assert len(found.sums) == len(found.counts) == LONGEST


def test_a_table_survives_being_saved():
    table = table_of(fleet=1.0, own=2.0)
    again = HeldBackErrors.from_arrays(unpack_leaves(pack_leaves(table.arrays())), table.columns)
    assert choose(again) == choose(table)
    with pytest.raises(ValueError, match="fit"):
        HeldBackErrors.from_arrays({**table.arrays(), "days": np.zeros((2, 2))}, table.columns)


def test_the_last_good_model_is_compared_only_where_it_may_be_chosen():
    table = table_of(fleet=2.0, last_good=0.5, last_day=1.0)
    assert choose(table).name == LAST_DAY
    assert LAST_GOOD not in choose(table).errors
    assert choose(table, available=COLUMNS).name == LAST_GOOD
    assert LAST_GOOD not in table.inverse_weights()


def test_a_column_without_the_last_good_model_is_not_saved():
    """Records of devices without an alarm keep the bytes of earlier versions."""
    assert LAST_GOOD not in table_of(fleet=1.0, own=2.0).columns
    assert table_of(fleet=1.0, last_good=2.0).columns == COLUMNS


@given(
    st.lists(st.floats(0.0, 1.0), min_size=len(CANDIDATES), max_size=len(CANDIDATES)),
    hnp.arrays(np.float64, (len(CANDIDATES), 3, 2, 1), elements=st.floats(-1e6, 1e6)),
)
def test_a_mean_lies_between_its_candidates(weights, forecasts):
    shares = dict(zip(CANDIDATES, weights, strict=True))
    found = blended(shares, forecasts)
    used = forecasts[[weight > 0.0 for weight in weights]]
    if not len(used):
        assert np.isnan(found).all()
        return
    slack = 1e-9 * (1.0 + np.abs(used).max())
    assert (found >= used.min(axis=0) - slack).all()
    assert (found <= used.max(axis=0) + slack).all()


def test_the_loss_of_quantiles_is_twice_their_mean_pinball_loss():
    quantiles, truth = np.array([[[0.0, 1.0, 4.0]]]), np.array([[2.0]])
    expected = 2 * (0.1 * 2.0 + 0.5 * 1.0 + 0.1 * 2.0) / 3
    assert mean_loss(quantiles, truth, (0.1, 0.5, 0.9)) == pytest.approx(expected)


# --- blocks of steps ------------------------------------------------------------------------------

STEPS = 24
blocks = len(blocks_of(STEPS))
by_block = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.just(blocks), st.just(len(COLUMNS))),
    elements=st.one_of(finite, finite, finite, st.just(float("nan"))),
)


def far_and_near(count=2 * LEAST):
    """A table whose fleet's model is best for the first step, and yesterday for all later ones."""
    forecasts = np.full((len(CANDIDATES), count, STEPS, 1), np.nan)
    forecasts[CANDIDATES.index(FLEET), ..., 0] = np.arange(STEPS)
    forecasts[CANDIDATES.index(LAST_DAY)] = 2.5
    days = np.repeat(np.arange(count)[:, None], STEPS, axis=1)
    return HeldBackErrors.empty(blocks).extended(
        forecasts, np.zeros((count, STEPS)), days
    ), forecasts


def test_the_steps_of_a_day_have_a_choice_each():
    table, forecasts = far_and_near()
    choice = choose_by_step(table, ForecastChoice())
    assert choice.name == BY_STEP
    assert by_steps(choice, STEPS) == {
        "1": FLEET,
        "2-3": FLEET,
        "4-7": LAST_DAY,
        "8-24": LAST_DAY,
    }
    fans = forecasts[:, :1]
    assert chosen(choice, fans)[0, :, 0].tolist() == [0.0, 1.0, 2.0, *[2.5] * 21]
    alone = {name: choice.errors[name] for name in (FLEET, LAST_DAY)}
    assert choice.errors[BY_STEP] == pytest.approx((3.0 + 21 * 2.5) / STEPS)
    assert choice.errors[BY_STEP] < min(alone.values())


def test_one_choice_for_all_steps_is_named_as_such():
    table, _ = far_and_near()
    choice = choose_by_step(table, ForecastChoice(), (FLEET,))
    assert (choice.name, choice.parts, by_steps(choice, STEPS)) == (FLEET, (), {})
    assert choose_by_step(HeldBackErrors.empty(blocks), ForecastChoice()).name == FLEET


@settings(deadline=None)
@given(by_block, st.lists(st.sampled_from(COLUMNS), min_size=blocks, max_size=blocks))
def test_no_block_is_served_by_what_was_worse_on_it(sums, present):
    counts = np.ones(sums.shape[:2], np.int64)
    table = HeldBackErrors(np.arange(len(sums)), sums, counts)
    before = ForecastChoice(BY_STEP, {}, parts=tuple(ForecastChoice(name) for name in present))
    found = choose_by_step(table, before)
    for number, part in enumerate(found.by_block * (1 if found.parts else blocks)):
        held = table.block(number).compared()
        assert all((1.0 - MARGIN) * held[part.name] <= error for error in held.values())
        assert part.name == FLEET or held


@given(st.integers(1, 300))
def test_blocks_cover_every_step_once(horizon):
    spans = blocks_of(horizon)
    assert [step for span in spans for step in range(span.start, span.stop)] == list(range(horizon))


def test_a_table_from_before_there_were_blocks_is_read():
    old = {
        "days": np.array([3, 4]),
        "sums": np.array([[1.0, np.nan], [2.0, 5.0]]),
        "counts": np.array([24, 24]),
    }
    table = HeldBackErrors.from_arrays(old, [FLEET, LAST_DAY])
    assert table.blocks == 1
    assert table.errors[:, COLUMNS.index(LAST_DAY)].tolist()[1] == 5.0 / 24
    assert np.isnan(table.errors[:, COLUMNS.index(OWN)]).all()
