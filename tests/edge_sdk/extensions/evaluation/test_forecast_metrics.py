"""The scores against numbers worked by hand, and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sdk.extensions.evaluation.forecast_metrics import (
    coverage,
    interval_length,
    mae,
    mase,
    mean_mase,
    naive_lag1,
    pinball,
    quantile_score,
    rmse,
)

Y = [1.0, 2.0, 3.0]
TOLD = {0.1: [0.5, 1.0, 2.5], 0.5: [1.0, 2.5, 2.5], 0.9: [2.0, 3.0, 2.8]}


def test_quantile_scores_of_the_worked_example():
    means = [pinball(Y, told, q).mean() for q, told in TOLD.items()]
    assert means == pytest.approx([0.0666667, 0.1666667, 0.1266667], abs=1e-7)
    assert quantile_score(Y, TOLD) == pytest.approx(0.36)
    assert quantile_score(Y, TOLD, "mean") == pytest.approx(0.12)
    assert interval_length(TOLD[0.1], TOLD[0.9]) == pytest.approx(1.2666667)
    assert coverage(Y, TOLD[0.1], TOLD[0.9]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_pinball_agrees_with_scikit_learn(q):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(2)
    y, told = rng.normal(size=(2, 500))
    peer = metrics.mean_pinball_loss(y, told, alpha=q)
    assert pinball(y, told, q).mean() == pytest.approx(peer, rel=1e-12)


def test_point_scores_of_the_worked_example():
    x, told = [1, 2, 4, 3], [1.5, 2, 3, 3]
    assert mae(x, told) == 0.375
    assert mase(x, told) == 0.28125
    assert rmse([0, 0], [3, 4]) == pytest.approx(math.sqrt(12.5))


def test_a_constant_series_has_no_mase_and_is_counted():
    assert mase([5, 5, 5], [4, 5, 6]) is None
    assert mean_mase([1.0, None, 3.0]) == (2.0, 1)


def test_gaps_are_neither_scored_nor_stepped_over():
    gap = [1.0, math.nan, 4.0, 5.0]
    assert naive_lag1(gap) == 1.0  # not the step of 3 across the gap
    assert mae(gap, [2.0, 9.0, 4.0, 5.0]) == pytest.approx(1 / 3)
    assert math.isnan(mae([math.nan], [1.0]))
