"""The part of a device's own, and how strongly the prior holds it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from firmware_sim.evaluation.own_strength import (
    OWN_STRENGTHS,
    best_strengths,
    strength_losses,
)

pytestmark = pytest.mark.extension
LOSS = QuantileLoss()


def device(seed, rows=200, width=6, stages=3):
    draw = np.random.default_rng(seed)
    design = draw.normal(size=(rows, width)).astype(np.float32)
    truth = np.arange(width) / width
    stage = draw.integers(0, stages, rows)
    targets = design @ truth + stage + 0.3 * draw.standard_t(3, rows)
    return np.concatenate([design, np.ones((rows, 1), np.float32)], 1), targets, stage


def test_strengths_are_judged_on_rows_that_were_not_learned_from():
    design, targets, _ = device(7, rows=400)
    known = np.arange(400) < 300
    own = strength_losses(design, targets, known, LOSS)
    assert own[-1] == 1.0
    assert own[0] < 0.7
    draw = np.random.default_rng(8)
    noise = strength_losses(design[:60], draw.normal(size=60), np.arange(60) < 20, LOSS)
    assert noise[0] > 1.0
    assert strength_losses(design, targets, np.ones(400, np.bool_), LOSS).tolist() == [1.0] * len(
        OWN_STRENGTHS
    )


def test_strengths_do_not_rise_with_the_number_of_known_days():
    losses = np.array([[[2.0, 1.0, 1.0], [0.5, 0.9, 1.0], [1.5, 0.9, 1.0]]])
    assert best_strengths(losses, (0.1, 1.0, math.inf)).tolist() == [1.0, 0.1, 0.1]
