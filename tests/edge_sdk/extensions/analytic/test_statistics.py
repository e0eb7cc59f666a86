"""Statistics and their solutions against numpy, scikit-learn and pooled data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.online_vector import OnlineModel
from edge_sdk.extensions.analytic.personal import (
    drawn,
    fit_personal,
    held_back,
    own_variance,
    relative_penalty,
)
from edge_sdk.extensions.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.extensions.analytic.solve import (
    RidgePath,
    fleet_solution,
    leave_one_out,
    predicted,
    ridge,
)
from edge_sdk.extensions.analytic.statistics import (
    Statistic,
    gather,
    packed,
    payload_bytes,
    total,
    triangle_width,
    unpacked,
)

seeds = st.integers(0, 2**32 - 1)


def rows(seed, n=60, width=5, outputs=2):
    draw = np.random.default_rng(seed)
    design = np.concatenate([draw.normal(size=(n, width - 1)), np.ones((n, 1))], 1)
    truth = draw.normal(size=(outputs, width))
    return design, design @ truth.T + draw.standard_t(3, size=(n, outputs))


def same_bits(one: Statistic, other: Statistic) -> bool:
    pairs = [(getattr(one, f), getattr(other, f)) for f in Statistic.__slots__]
    return all(np.array_equal(a, b) for a, b in pairs)


# --- oracles ------------------------------------------------------------------------------------


@given(seeds)
def test_one_device_without_penalty_is_ordinary_least_squares(seed):
    design, targets = rows(seed)
    expected = np.linalg.lstsq(design, targets, rcond=None)[0].T
    assert ridge(gather(design, targets)) == pytest.approx(expected, rel=1e-8, abs=1e-8)
    vanishing = drawn(gather(design, targets), np.zeros_like(expected), 1e-13)
    assert vanishing == pytest.approx(expected, rel=1e-8, abs=1e-8)


@given(seeds)
def test_one_reweighted_pass_with_a_large_floor_is_ordinary_least_squares(seed):
    design, targets = rows(seed)
    loss = QuantileLoss(floor=1e9)
    found = reweighted(design, targets, loss, np.zeros((2, 5)), penalty=0.0, passes=1)
    expected = np.linalg.lstsq(design, targets, rcond=None)[0].T
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-8)


@settings(max_examples=30)
@given(seeds, st.permutations(["d", "a", "c", "b"]), st.data())
def test_a_fleet_is_pooled_ridge_in_any_order_with_duplicates_and_replacements(seed, order, data):
    own = {name: rows(seed + i, n=10 + 7 * i) for i, name in enumerate("abcd")}
    older = gather(*rows(seed + 99))
    arrived: dict[str, Statistic] = {}
    repeated = data.draw(st.sampled_from("abcd"))
    arrived[repeated] = older  # this device sends again: the newest counts
    for name in [*order, repeated]:
        arrived[name] = gather(*own[name])
    pooled = [np.concatenate(parts) for parts in zip(*own.values(), strict=True)]
    n = len(pooled[0])
    left = pooled[0].T @ pooled[0] + 0.01 * n * np.eye(5)
    expected = np.linalg.solve(left, pooled[0].T @ pooled[1]).T
    assert fleet_solution(total(arrived), 0.01) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_the_sum_has_the_same_bits_in_every_order_of_arrival():
    own = {name: gather(*rows(i)) for i, name in enumerate("abcd")}
    sums = [total({n: own[n] for n in order}) for order in itertools.permutations("abcd")]
    assert all(same_bits(sums[0], one) for one in sums)


@given(seeds, st.sampled_from("abcd"))
def test_a_fleet_that_unlearnt_a_device_is_one_that_never_knew_it_bit_for_bit(seed, leaver):
    known = {name: gather(*rows(seed + i)) for i, name in enumerate("abcd")}
    never = {name: gather(*rows(seed + i)) for i, name in enumerate("abcd") if name != leaver}
    whole = total(known)
    own = known.pop(leaver)
    assert same_bits(total(known), total(never))
    assert same_bits(
        total(known), total(dict(reversed(known.items())))
    )  # whatever the map's own order
    quick = whole - own  # one subtraction is the same to rounding
    assert quick.gram == pytest.approx(total(never).gram, rel=1e-9, abs=1e-9)
    assert quick.count == total(never).count
    assert fleet_solution(quick) == pytest.approx(fleet_solution(total(never)), abs=1e-8)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_reweighting_reaches_the_objective_of_an_exact_solver(level):
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is in the dev extra")
    design, targets = rows(5, n=300, outputs=1)
    exact = linear.QuantileRegressor(quantile=level, alpha=0.0, solver="highs", fit_intercept=False)
    exact.fit(design, targets[:, 0])
    loss = QuantileLoss((level,))
    best = loss.objective(targets - exact.predict(design)[:, None])[0]
    start = ridge(gather(design, targets))
    found = reweighted(design, targets, loss, start, penalty=1e-6, passes=30)
    reached = loss.objective(targets - predicted(design, found))[0]
    assert best <= reached * (1 + 1e-9)
    assert reached <= 1.01 * best


def test_five_passes_nearly_reach_the_least_absolute_error():
    design, targets = rows(5, n=300, outputs=1)
    start = ridge(gather(design, targets))
    reached = [
        QuantileLoss().objective(
            targets
            - predicted(
                design,
                reweighted(design, targets, QuantileLoss(), start, penalty=1e-6, passes=passes),
            )
        )[0]
        for passes in (5, 40)
    ]
    assert reached[0] <= 1.01 * reached[1]


@settings(max_examples=25)
@given(seeds, st.floats(0.01, 10.0))
def test_online_updates_reach_the_batch_solution(seed, penalty):
    design, targets = rows(seed, n=80)
    weights = np.random.default_rng(seed).uniform(0.2, 3.0, size=(80, 1))
    centre = np.ones((2, 5))
    state = OnlineModel.of(gather(design[:30], targets[:30], weights[:30]), penalty, centre)
    for row, target, weight in zip(design[30:], targets[30:], weights[30:, 0], strict=True):
        state = state.updated(row, target, weight=float(weight))
    batch = gather(design, targets, weights)
    assert state.coefficients == pytest.approx(ridge(batch, penalty, centre), rel=1e-8, abs=1e-8)
    inverse = np.linalg.inv(batch.matrix(0) + penalty * np.eye(5))
    assert state.inverse == pytest.approx(inverse, rel=1e-8, abs=1e-8)


def test_online_updates_forget_what_has_changed():
    design, before = rows(1, n=400, outputs=1)
    after = before + 5.0
    state = OnlineModel.of(gather(design[:200], before[:200]), 1.0)
    errors = {}
    for forgetting in (1.0, 0.97):
        now = state
        for row, target in zip(design[200:], after[200:], strict=True):
            now = now.updated(row, target, forgetting=forgetting)
        errors[forgetting] = np.abs(after[300:] - predicted(design[300:], now.coefficients)).mean()
    assert errors[0.97] < 0.7 * errors[1.0]


def test_forgetting_does_not_wind_up_where_no_window_excites():
    design, targets = rows(2, n=50, outputs=1)
    state = OnlineModel.of(gather(design, targets), 0.5)
    quiet = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    for _ in range(5000):
        state = state.updated(quiet, np.array([1.0]), forgetting=0.9)
    assert np.trace(state.inverse) <= state.bound / 0.9
    assert np.isfinite(state.coefficients).all()


def test_online_updates_refuse_weights_per_output_and_no_penalty():
    design, targets = rows(2)
    with pytest.raises(ValueError, match="2 groups"):
        OnlineModel.of(gather(design, targets, np.ones((60, 2))), 1.0)
    with pytest.raises(ValueError, match="penalty above 0"):
        OnlineModel.of(gather(design, targets), 0.0)


@given(seeds)
def test_a_device_is_given_the_fleet_of_all_others(seed):
    own = {name: gather(*rows(seed + i)) for i, name in enumerate("abc")}
    found = leave_one_out(own, 0.01)
    others = fleet_solution(total({"a": own["a"], "c": own["c"]}), 0.01)
    assert found["b"] == pytest.approx(others, rel=1e-8, abs=1e-8)
    assert not leave_one_out({"a": own["a"]})["a"].any()


# --- personal models ----------------------------------------------------------------------------


@given(seeds, st.floats(1e-3, 10.0))
def test_a_drawn_model_is_ridge_on_what_the_fleet_left_over(seed, strength):
    design, targets = rows(seed)
    fleet = np.random.default_rng(seed).normal(size=(2, 5))
    shape = np.array([1.0, 2.0, 0.5, 1.0, 0.1])
    found = drawn(gather(design, targets), fleet, strength, shape)
    left = design.T @ design + strength * 60 * np.diag(shape)
    rest = np.linalg.solve(left, design.T @ (targets - design @ fleet.T)).T
    assert found == pytest.approx(fleet + rest, rel=1e-7, abs=1e-7)


def test_the_choice_of_strength_follows_the_data():
    """A device like the fleet stays with it, an unlike one goes its own way; both per output."""
    draw = np.random.default_rng(4)
    fleet = draw.normal(size=(2, 5))
    design = np.concatenate([draw.normal(size=(400, 4)), np.ones((400, 1))], 1)
    own = fleet.copy()
    own[1] += 3.0
    targets = design @ own.T + draw.normal(size=(400, 2))
    found = fit_personal(design, targets, fleet, QuantileLoss())
    assert found.strengths[0] >= 0.1
    assert found.strengths[1] <= 0.01
    assert found.coefficients == pytest.approx(own, abs=0.3)
    assert found.losses == pytest.approx([0.4, 0.4], abs=0.15)  # half of E|N(0, 1)|


def test_an_unlike_device_is_served_as_if_it_were_alone():
    """The fleet's model is far away; few windows, many coefficients: λ = 0 alone would overfit."""
    draw = np.random.default_rng(9)
    design = np.concatenate([draw.normal(size=(60, 39)), np.ones((60, 1))], 1)
    truth = np.zeros((1, 40))
    truth[0, 0] = 0.3
    targets = design @ truth.T + draw.normal(size=(60, 1))
    fleet = 10.0 * draw.normal(size=(1, 40))
    found = fit_personal(design, targets, fleet, QuantileLoss())
    drawn_only = fit_personal(design, targets, fleet, QuantileLoss(), alone=())
    assert found.is_alone.all()
    assert not drawn_only.is_alone.any()
    error = [np.linalg.norm(one.coefficients - truth) for one in (found, drawn_only)]
    assert error[0] < 0.5 * error[1]


def test_a_short_record_is_judged_on_all_of_it_a_long_one_on_its_newest_windows():
    """The last sixth of the record goes by another rule than the rest."""
    draw = np.random.default_rng(11)
    fleet = np.ones((1, 3))
    for n, is_alone in ((600, True), (6000, False)):
        design = draw.normal(size=(n, 3))
        late = np.arange(n) >= n * 0.84
        truth = np.where(late[:, None], fleet, -fleet)
        targets = (design * truth).sum(1, keepdims=True) + draw.normal(size=(n, 1))
        found = fit_personal(design, targets, fleet, QuantileLoss())
        assert math.isinf(found.strengths[0]) != is_alone


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_record_too_short_to_hold_back_keeps_the_fleets_model(n):
    design, targets = rows(3, n=n)
    fleet = np.ones((2, 5))
    found = fit_personal(design, targets, fleet, QuantileLoss())
    assert np.array_equal(found.coefficients, fleet)
    assert found.strengths.tolist() == [math.inf, math.inf]


def test_devices_that_agree_in_a_coefficient_are_held_to_it():
    draw = np.random.default_rng(6)
    spread = np.array([2.0, 2.0, 0.0, 0.0])
    models, sampling = [], []
    for _ in range(40):
        truth = np.ones(4) + spread * draw.normal(size=4)
        design = draw.normal(size=(200, 4))
        own = gather(design, (design @ truth + draw.normal(size=200))[:, None])
        models.append(ridge(own, 1e-3))
        sampling.append(own_variance(own, 1e-3))
    shape = relative_penalty(np.stack(models), np.stack(sampling))
    assert shape[:2].max() * 20 < shape[2:].min()
    assert np.stack(models)[:, 0, 2].var() == pytest.approx(
        np.stack(sampling)[:, 0, 2].mean(), rel=1
    )


@given(seeds, st.sampled_from([1e-3, 0.1, 10.0]), st.booleans(), st.booleans())
def test_a_path_of_penalties_has_the_solutions_of_each(seed, penalty, shaped, own_weights):
    design, targets = rows(seed)
    draw = np.random.default_rng(seed)
    weights = draw.uniform(0.1, 2.0, size=(60, 2 if own_weights else 1))
    own, centre = gather(design, targets, weights), draw.normal(size=(2, 5))
    shape = draw.uniform(0.1, 10.0, size=5) if shaped else None
    expected = ridge(own, penalty * (np.ones(5) if shape is None else shape), centre)
    found = RidgePath.of(own, shape).solution(penalty, centre)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_directions_without_data_keep_the_fleets_value_on_a_path():
    design, targets = rows(1, outputs=1)
    design[:, 2] = 0.0
    found = RidgePath.of(gather(design, targets)).solution(0.0, np.full((1, 5), 7.0))
    assert found[0, 2] == pytest.approx(7.0)
    seen = np.linalg.lstsq(design[:, [0, 1, 3, 4]], targets, rcond=None)[0][:, 0]
    assert found[0, [0, 1, 3, 4]] == pytest.approx(seen)


# --- shapes -------------------------------------------------------------------------------------


@given(st.integers(1, 40))
def test_packing_is_undone_by_unpacking(width):
    matrix = np.random.default_rng(width).normal(size=(width, width))
    matrix = matrix + matrix.T
    assert np.array_equal(unpacked(packed(matrix)), matrix)
    assert triangle_width(len(packed(matrix))) == width


@given(seeds)
def test_statistics_add_and_weigh_like_repeated_windows(seed):
    design, targets = rows(seed, n=20)
    times = np.random.default_rng(seed).integers(1, 4, size=20)
    weighted = gather(design, targets, times[:, None].astype(float))
    repeated = gather(np.repeat(design, times, 0), np.repeat(targets, times, 0))
    assert weighted.gram == pytest.approx(repeated.gram)
    assert weighted.cross == pytest.approx(repeated.cross)
    assert weighted.squares == pytest.approx(repeated.squares)
    halves = gather(design[:9], targets[:9]) + gather(design[9:], targets[9:])
    assert halves.gram == pytest.approx(gather(design, targets).gram)
    assert halves.scaled(0.5).count == 10


@pytest.mark.parametrize(("kind", "error"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_sums_over_many_blocks_are_those_of_one_product(kind, error):
    design, targets = rows(7, n=5000)
    weights = np.random.default_rng(7).uniform(0.1, 9.0, size=(5000, 1))
    own = gather(design.astype(kind), targets, weights)
    gram, cross = (design * weights).T @ design, (weights * targets).T @ design
    assert own.gram.dtype == own.cross.dtype == np.float64
    scale = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    assert (np.abs(own.matrix(0) - gram) / scale).max() < error
    assert np.abs(own.cross - cross).max() < 100 * error * np.abs(cross).max()


def test_outputs_with_weights_of_their_own_are_solved_apart():
    design, targets = rows(8)
    weights = np.random.default_rng(8).uniform(0.1, 2.0, size=targets.shape)
    both = ridge(gather(design, targets, weights), 0.3)
    for o in range(2):
        alone = gather(design, targets[:, [o]], weights[:, [o]])
        assert both[o] == pytest.approx(ridge(alone, 0.3)[0])


def test_statistics_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="do not add up"):
        gather(*rows(1)) + gather(*rows(1, width=6))
    with pytest.raises(ValueError, match="0 devices"):
        total({})


def test_the_payload_is_counted_as_it_is():
    own = gather(*rows(1), np.ones((60, 2)))
    numbers = sum(np.size(getattr(own, f)) for f in Statistic.__slots__)
    assert payload_bytes(5, 2, 2, item=1) == numbers


@given(seeds, st.sampled_from([0.1, 0.5, 0.9]))
def test_unnormalised_weights_are_at_most_one_and_of_their_own_window(seed, level):
    residuals = np.random.default_rng(seed).normal(size=(30, 1))
    loss = QuantileLoss((level,))
    weights = loss.weights(residuals, is_normalised=False)
    assert weights.max() <= 1.0
    changed = residuals.copy()
    changed[7] += 100.0
    others = np.arange(30) != 7
    assert np.array_equal(weights[others], loss.weights(changed, is_normalised=False)[others])
    assert loss.weights(residuals).mean() == pytest.approx(1.0)


@given(st.integers(0, 20_000), st.floats(0.0, 800.0))
def test_held_back_parts_are_the_newest_windows_or_cut_the_whole_record(windows, days):
    parts = held_back(windows, days)
    if windows < 8:
        assert parts == []
        return
    rows = np.concatenate([np.arange(windows)[part] for part in parts])
    assert all(part.stop > part.start for part in parts)
    assert len(set(rows.tolist())) == len(rows)
    assert rows[-1] == windows - 1
    assert (len(rows) == windows) == (windows < 1000 or days >= 180.0)


def test_a_long_record_is_judged_on_all_its_seasons():
    """A heat pump that hardly runs in the newest part: by that part alone any model would do."""
    draw = np.random.default_rng(12)
    n, fleet = 6000, np.full((1, 3), 4.0)
    runs = np.arange(n) < 0.8 * n
    design = draw.normal(size=(n, 3)) * runs[:, None]
    targets = (design @ np.ones((3, 1))) + 0.1 * draw.normal(size=(n, 1)) * runs[:, None]
    newest, seasons = (
        fit_personal(design, targets, fleet, QuantileLoss(), days=days) for days in (0.0, 365.0)
    )
    assert math.isinf(newest.strengths[0])
    assert seasons.coefficients == pytest.approx(np.ones((1, 3)), abs=0.02)


def test_of_models_that_are_equally_good_the_strongest_penalty_is_chosen():
    """A record that repeats itself exactly: without a penalty the model is perfect, and fragile."""
    draw = np.random.default_rng(13)
    design, truth = draw.normal(size=(2000, 4)), np.ones((1, 4))
    found = fit_personal(design, design @ truth.T, truth + 1e-4, QuantileLoss())
    assert math.isinf(found.strengths[0])
