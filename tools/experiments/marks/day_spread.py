"""Score the intervals and paths of tomorrow as an agent serves them: coverage, sums, energy score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edge_sdk.extensions.analytic.residual_paths import (
    energy_scores,
    fitted_paths,
    share_covered,
)
from edge_sdk.extensions.intervals.conformal import ConformalCalibration, CoverageTarget, rolled
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import least
from edge_sdk.forecasting.windows import ChannelFrame

LEVELS = (0.1, 0.5, 0.9)
WARM = 28
"""Days of forecasts before the scored ones on which intervals are calibrated."""
ISSUES = 4
"""Forecasts of a day."""
MOST_SCORED = 100
"""Days of a device whose paths have an energy score."""
PARTS = 8
"""Parts of the day ahead whose coverage is told apart."""

Scores = Mapping[str, Any]


def served(
    frame: ChannelFrame, origins: Ints, told: Floats, forecast: Callable[[Ints], Floats], day: int
) -> Floats:
    """Return the intervals of forecasts as an agent serves them, shape ``(n, H, 2)``.

    They are calibrated on the forecasts issued before: those of ``WARM`` days, then the scored ones.

    Args:
        told: Quantiles of the forecasts after ``origins``, shape ``(n, H, levels)``.
        forecast: Function from origins to quantiles.
        day: Rows of a day.
    """
    aim = CoverageTarget.of(LEVELS, least=least(frame), narrowest=0.01 * frame.scale.width)
    before = origins[0] - np.arange(ISSUES * WARM, 0, -1) * day // ISSUES
    before = before[before > 14 * day]
    rows = np.arange(np.append(before, origins)[0], origins[-1] + 1)
    predicted = np.full((len(rows), *told.shape[1:]), np.nan)
    predicted[origins - rows[0]] = told
    if len(before):
        predicted[before - rows[0]] = forecast(before)
    _, ends = rolled(ConformalCalibration.new(day), rows, frame.raw[rows], predicted, aim)
    return np.asarray(ends[origins - rows[0]])


def spread_scores(paths: Floats, median: Floats, ends: Floats, truth: Floats) -> Scores:
    """Return the scores of one device.

    Args:
        paths: As the bundle forecasts them, shape ``(n, paths, H)``.
        median: Shape ``(n, H)``.
        ends: As ``served`` returns them.
        truth: NaN where unobserved, shape ``(n, H)``.
    """
    inside = np.where(np.isfinite(truth), (ends[..., 0] <= truth) & (truth <= ends[..., 1]), np.nan)
    whole = np.flatnonzero(np.isfinite(truth).all(axis=1))
    lowest = 0.0 if np.nanmin(truth) >= 0.0 else -np.inf
    drawn = np.maximum(fitted_paths(paths, median, ends, LEVELS[-1] - LEVELS[0]), lowest)[whole]
    scored = slice(None, None, max(1, len(whole) // MOST_SCORED))
    chance = np.random.default_rng(0).permuted(drawn[scored], axis=1)
    energy = [energy_scores(x, truth[whole][scored]).sum() for x in (drawn[scored], chance)]
    parts = inside.reshape(len(inside), PARTS, -1)
    return {
        "by lead": np.nanmean(parts, axis=(0, 2)),
        "sums": share_covered(drawn, truth[whole]) if len(whole) else np.nan,
        "energy": energy[0] / energy[1] if len(whole) else np.nan,
    }


def joined(scores: Sequence[Scores]) -> dict[str, float]:
    """Return the means over devices: coverage, with the least and the largest of a lead, and so on."""
    means = {key: np.nanmean([one[key] for one in scores], axis=0) for key in scores[0]}
    leads = means["by lead"]
    return {
        "served": float(leads.mean()),
        "least": float(leads.min()),
        "most": float(leads.max()),
        "sums": float(means["sums"]),
        "energy": float(means["energy"]),
    }
