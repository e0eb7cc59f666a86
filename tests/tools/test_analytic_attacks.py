"""The experiments on attacks and on noise, on a small invented fleet."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is in the dev extra")

from tools.experiments import analytic_attacks, analytic_privacy
from tools.experiments.analytic_attacks import Home, Run


@pytest.fixture(scope="module")
def known():
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(1, 5)) / 4
    found = {}
    for i in range(10):
        own = truth + 0.02 * draw.normal(size=truth.shape)
        design = np.clip(draw.normal(size=(460, 5)), -3, 3).astype(np.float32)
        design[:, -1] = 1.0
        targets = np.clip(design @ own.T + 0.05 * draw.normal(size=(460, 1)), -4, 4)
        parts = design[:400], targets[:400], design[400:], targets[400:]
        found[f"d{i}"] = Home(*parts, 1.0, 20.0)
    return found


BYZANTINE = ("d0", "d5")


def test_invented_data_moves_the_sum_more_than_the_votes(known):
    calm = Run(known, BYZANTINE, "none", None).scored()
    errors = {
        rule: Run(known, BYZANTINE, "invented", rule).scored() for rule in (None, "trimmed_mean")
    }
    assert errors[None][0] > 1.3 * calm[0]
    assert errors["trimmed_mean"][0] < 1.1 * calm[0]
    assert errors[None][1] < 1.02 * calm[1]  # what a device forecasts with is its own


@pytest.mark.parametrize("attack", analytic_attacks.MODEL_ATTACKS)
def test_every_model_attack_is_refused_or_bounded(known, attack):
    run = Run(known, BYZANTINE, attack, "trimmed_mean")
    fleet, own = run.scored()
    assert math.isfinite(fleet)
    assert own < 0.5
    assert 0 <= run.refused <= analytic_attacks.PASSES * len(BYZANTINE)


def test_a_negated_statistic_is_refused_in_every_pass(known):
    run = Run(known, BYZANTINE, "flipping", None)
    run.fit()
    assert run.refused == analytic_attacks.PASSES * len(BYZANTINE)


@pytest.mark.parametrize("attack", analytic_attacks.DATA_ATTACKS)
def test_an_attack_on_data_changes_the_targets_of_a_device(known, attack):
    told = analytic_attacks.poisoned(known["d0"], attack, 1)
    assert not np.array_equal(told.targets, known["d0"].targets)
    assert np.abs(told.targets).max() <= analytic_attacks.CLIPPED


def test_less_noise_is_a_better_model_and_an_easier_attack(known):
    rows = analytic_privacy.clipped(known, 4.0)
    errors, right = [], []
    for epsilon in (0.05, math.inf):
        rng = np.random.default_rng(1)
        model = analytic_privacy.closed(rows, 4.0, 1, epsilon, rng)
        errors.append(analytic_privacy.error(known, 4.0, model))
        right.append(analytic_privacy.attack(rows, 4.0, 1, epsilon, rng))
    assert errors[0] > 2 * errors[1]
    assert 0.45 < right[0] < 0.55
    assert right[1] == 1.0


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_attack_is_never_right_more_often_than_promised(known, epsilon):
    rows = analytic_privacy.clipped(known, 4.0)
    found = analytic_privacy.attack(rows, 4.0, 3, epsilon, np.random.default_rng(2))
    assert found <= analytic_privacy.promised(epsilon) + 0.02


def test_gradients_without_noise_descend(known):
    rows = analytic_privacy.clipped(known, 4.0)
    rng = np.random.default_rng(3)
    model = analytic_privacy.descended(rows, 4.0, 30, 1.0, math.inf, rng)
    zero = analytic_privacy.error(known, 4.0, np.zeros_like(model))
    assert analytic_privacy.error(known, 4.0, model) < 0.5 * zero
