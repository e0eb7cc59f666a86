"""Admission of statistics, votes for robust rules, and private release."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.bundle_section import statistic_layout
from edge_sdk.extensions.analytic.private_release import released, sensitivity, stable_penalty
from edge_sdk.extensions.analytic.solve import fleet_solution, ridge, votes
from edge_sdk.extensions.analytic.statistic_noise import StatisticNoise
from edge_sdk.extensions.analytic.statistics import from_vector, gather, packed, total
from edge_sdk.extensions.analytic.validation import (
    StatisticBounds,
    noisy_statistic_fault,
    statistic_fault,
)
from edge_sdk.privacy.noise import sigma_for

seeds = st.integers(0, 2**32 - 1)
BOUNDS = StatisticBounds(width=6, outputs=2, groups=2, row=5.0, target=3.0, windows=500.0)


def honest(seed, n=50, *, outputs=2, width=6, weighted=True):
    draw = np.random.default_rng(seed)
    design = np.concatenate([draw.normal(size=(n, width - 1)), np.ones((n, 1))], 1)
    design *= np.minimum(1.0, BOUNDS.row / np.linalg.norm(design, axis=1, keepdims=True))
    targets = np.clip(draw.normal(size=(n, outputs)), -BOUNDS.target, BOUNDS.target)
    weights = draw.uniform(0.05, 20.0, size=(n, outputs))
    weights = weights / weights.mean(0) if weighted else None
    return gather(design, targets, weights, np.abs(targets))


def as_sent(own):
    """The same numbers as float32, as they cross the link."""
    narrow = {
        f: getattr(own, f).astype(np.float32).astype(float)
        for f in ("gram", "cross", "squares", "residuals")
    }
    return replace(own, **narrow)


@given(seeds, st.integers(1, 200))
def test_an_honest_statistic_is_admitted_also_in_float32(seed, n):
    own = honest(seed, n)
    assert statistic_fault(own, BOUNDS) is None
    assert statistic_fault(as_sent(own), BOUNDS) is None


@given(seeds)
def test_an_honest_statistic_with_nearly_collinear_features_is_admitted_in_float32(seed):
    draw = np.random.default_rng(seed)
    base = draw.normal(size=(100, 1))
    scales = np.array([1.0, 1e-3, 1e-5, 1.0, 1.0])
    design = np.concatenate(
        [(base + 1e-4 * draw.normal(size=(100, 5))) * scales, np.ones((100, 1))], 1
    )
    targets = np.clip(np.concatenate([base, 1e-6 * base], 1), -3.0, 3.0)
    bounds = replace(BOUNDS, groups=1, row=50.0)
    assert statistic_fault(as_sent(gather(design, targets)), bounds) is None


def lie(own, **changes):
    return replace(own, **{k: change(getattr(own, k)) for k, change in changes.items()})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gram": lambda g: g[:1]}, r"gram has shape \(1, 21\), the run's is \(2, 21\)"),
        ({"cross": lambda c: c[:, :5]}, "cross has shape"),
        ({"squares": lambda s: s[:1]}, "squares has shape"),
        ({"residuals": lambda s: s[:1]}, "residuals has shape"),
        ({"gram": lambda g: g * np.nan}, "not finite"),
        ({"count": lambda _: float("nan")}, "count nan"),
        ({"count": lambda _: 0.0}, "count 0"),
        ({"count": lambda _: 501.0}, r"count 501 is not in \(0, 500\]"),
        ({"gram": lambda g: g * 100.0}, "trace"),
        ({"squares": lambda s: s * 100.0}, "squares"),
        ({"squares": lambda s: -s}, "negative"),
        ({"residuals": lambda s: s * 100.0}, "residuals"),
        ({"residuals": lambda s: -s}, "negative"),
        ({"gram": lambda g: -g}, "negative"),
        ({"cross": lambda c: c + 500.0}, "output 0: the matrix of features and target"),
        ({"gram": lambda g: g - 40.0 * (1 - packed(np.eye(6)))}, "not semidefinite"),
    ],
)
def test_an_impossible_statistic_is_refused_with_its_reason(changes, sentence):
    own = honest(3)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(statistic_fault(lie(own, **changes), BOUNDS))


@given(seeds, st.floats(1.1, 1e6))
def test_cross_sums_beyond_cauchy_schwarz_are_refused(seed, factor):
    """One coordinate of b just above √(A_jj Σ w y²)."""
    own = honest(seed)
    cross = own.cross.copy()
    cross[1, 2] = factor * np.sqrt(own.matrix(1)[2, 2] * own.squares[1])
    assert statistic_fault(replace(own, cross=cross), BOUNDS) is not None


# --- votes --------------------------------------------------------------------------------------


def test_votes_are_the_devices_own_solutions_in_order_of_name():
    fleet = {name: honest(i) for i, name in enumerate("cab")}
    names, rows = votes(fleet, 0.1)
    assert names == ["a", "b", "c"]
    assert rows.shape == (3, 12)
    assert rows[1] == pytest.approx(ridge(fleet["b"], 0.1 * 50).ravel())


def test_a_median_of_votes_withstands_what_moves_the_sum():
    fleet = {f"d{i}": honest(i, 200, outputs=1, weighted=False) for i in range(9)}
    truth = fleet_solution(total(fleet))[0]
    liar = lie(fleet["d0"], cross=lambda c: np.sign(c) * 80.0)
    attacked = {**fleet, "d0": liar, "d1": lie(liar, cross=lambda c: c)}
    summed = fleet_solution(total(attacked))[0]
    median = np.median(votes(attacked, 1e-3)[1], axis=0)
    assert np.abs(median - truth).max() < 0.5 * np.abs(summed - truth).max()


# --- private release ----------------------------------------------------------------------------


@settings(max_examples=200)
@given(seeds, st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 3), st.floats(-1.0, 1.0))
def test_no_replaced_window_moves_the_release_by_more_than_the_sensitivity(
    seed, short, light, outputs, lean
):
    draw = np.random.default_rng(seed)
    bound, target, n = 2.5, 3.0, 6

    def window():
        row = draw.normal(size=4)
        y = draw.normal(size=outputs)
        y = target * np.sqrt(outputs) * y / np.linalg.norm(y)
        return bound * row / np.linalg.norm(row), np.clip(y, -target, target)

    pairs = [window() for _ in range(n)]
    design, targets = (np.stack(part) for part in zip(*pairs, strict=True))
    row, y = window()
    row = lean * design[0] + (1 - abs(lean)) * row  # also rows at every angle to the old one
    design2, targets2 = design.copy(), targets.copy()
    design2[0] = short * bound * row / np.linalg.norm(row)
    targets2[0] = -targets[0] if seed % 2 else y
    weights, weights2 = np.ones((n, 1)), np.ones((n, 1))
    weights2[0] = light if seed % 3 == 0 else 1.0
    one, two = gather(design, targets, weights), gather(design2, targets2, weights2)
    gram = (one.gram - two.gram) / bound**2
    cross = (one.cross - two.cross) / (bound * target * np.sqrt(outputs))
    moved = np.sqrt((gram**2).sum() + (cross**2).sum())
    assert moved <= sensitivity() + 1e-9


def test_the_bound_is_reached_at_sixty_degrees():
    row, other = np.array([1.0, 0.0]), np.array([0.5, np.sqrt(0.75)])
    one = gather(row[None], np.array([[1.0]]))
    two = gather(other[None], np.array([[-1.0]]))
    moved = ((one.matrix(0) - two.matrix(0)) ** 2).sum() + ((one.cross - two.cross) ** 2).sum()
    assert moved == pytest.approx(4.5)


def test_the_release_has_the_noise_that_it_says():
    own = honest(1, 400, outputs=1, weighted=False)
    draw = np.random.default_rng(0)
    normal = draw.standard_normal
    sent = [released(own, 0.5, row=5.0, target=3.0, normal=normal) for _ in range(2000)]
    gram = np.stack([s.gram[0] for s in sent])
    cross = np.stack([s.cross[0] for s in sent])
    assert (gram - own.gram).std() == pytest.approx(0.5 * 25.0, rel=0.03)
    assert (cross - own.cross).std() == pytest.approx(0.5 * 15.0, rel=0.03)
    assert all(s.squares == 0.0 and s.residuals == 0.0 for s in sent)


def test_more_privacy_costs_accuracy_and_none_costs_nothing():
    draw = np.random.default_rng(2)
    design = np.concatenate([draw.normal(size=(20_000, 5)), np.ones((20_000, 1))], 1)
    design *= np.minimum(1.0, 4.0 / np.linalg.norm(design, axis=1, keepdims=True))
    truth = draw.normal(size=6) / 3.0
    targets = np.clip(design @ truth + 0.1 * draw.normal(size=20_000), -3.0, 3.0)[:, None]
    own = gather(design, targets)
    errors = []
    for epsilon in (0.05, 1.0, 50.0):
        sigma = sigma_for(epsilon, 1e-5, sensitivity())
        found = []
        for _ in range(20):
            sent = released(own, sigma, row=4.0, target=3.0, normal=draw.standard_normal)
            penalty = stable_penalty(sent, sigma * 4.0**2)
            found.append(ridge(sent, max(penalty, 1e-6))[0] - truth)
        errors.append(float(np.abs(found).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.05


@given(seeds, st.floats(0.0, 100.0), st.booleans())
def test_any_vector_of_the_layouts_size_is_judged_without_an_error(seed, sigma, is_wild):
    """Received numbers may be anything, also infinite and not a number."""
    draw = np.random.default_rng(seed)
    size = statistic_layout(2, 6).size
    vector = draw.normal(size=size) * 10.0 ** draw.integers(-30, 38)
    if is_wild:
        vector[draw.integers(0, size, 5)] = draw.choice([np.inf, -np.inf, np.nan, 0.0, 3e38], 5)
    statistic = from_vector(vector.astype(np.float32), 2, 6)
    with np.errstate(all="ignore"):
        for found in (
            statistic_fault(statistic, BOUNDS),
            noisy_statistic_fault(statistic, BOUNDS, sigma),
        ):
            assert found is None or isinstance(found, str)


@given(seeds, st.floats(0.1, 50.0))
def test_an_honest_statistic_with_noise_is_admitted_also_in_float32(seed, sigma):
    own = honest(seed, 60, weighted=False)
    own = replace(own, gram=np.repeat(own.gram, 2, axis=0))
    normal = np.random.default_rng(seed).standard_normal
    sent = released(own, sigma, row=BOUNDS.row, target=BOUNDS.target, normal=normal)
    assert noisy_statistic_fault(as_sent(sent), BOUNDS, sigma) is None


def test_noise_in_the_sums_covers_no_loss_on_held_back_windows():
    assert not StatisticNoise(None).may_select_by_loss
