"""Forecast one hourly series alone, by closed forms: the entry beside published rows of M4 Hourly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.extensions.analytic.solve import predicted, ridge
from edge_sdk.extensions.analytic.statistics import Statistic, gather
from firmware_sim.evaluation.m4_hourly import HORIZON, LEVELS, SEASON

Floats = NDArray[np.float64]

FIRST = 8 * SEASON  # row of the first origin: two days of lead and the newest seven days before it
LEAST = FIRST + 2 * HORIZON  # hours, below which a series has too few origins for its spread
NEWEST = (24, 48)  # hours before the origin that each of the two maps sees; their forecasts' mean
PENALTY = 1e-3  # of the mean diagonal of the sums
FOLDS = 4
_SLOT = 0.1  # size of the one-hot slot: its penalty is a hundred times that of a reading
_WEEK = 7 * SEASON


def forecast(known: Floats) -> Floats:
    """Return the quantiles of the next 48 hours at ``LEVELS``, shape ``(48, 9)``.

    For each hour ahead one regression of the least absolute error on the same slot of the newest
    known days, the newest hours and the slot of the day, fitted to this series alone. The spread
    is that of the errors of the same hour ahead in blocks of the series that the fit had not seen.

    Args:
        known: Readings of at least 288 hours, shape ``(hours,)``.

    Raises:
        ValueError: Fewer readings.

    >>> flat = forecast(np.tile(np.arange(24.0), 15))
    >>> flat.shape, np.abs(flat[:, 4] - np.tile(np.arange(24.0), 2)).max().round(3).item()
    ((48, 9), 0.0)
    """
    if len(known) < LEAST:
        raise ValueError(f"{len(known)} hours are too few; at least {LEAST} are needed")
    size = float(np.abs(known).mean()) or 1.0
    rows = [_lead(known / size, ahead) for ahead in range(1, HORIZON + 1)]
    return np.sort(np.stack(rows), axis=1) * size


def design(readings: Floats, ahead: int, newest: int) -> tuple[Floats, Floats]:
    """Return the rows of every origin and the same slot's newest reading, which they start from.

    Args:
        readings: Shape ``(hours,)``.
        ahead: Hours from the origin's last reading to the hour forecast, 1 to 48.
        newest: Number of the last readings in a row.

    Returns:
        Rows, shape ``(origins, 32 + newest)``, and readings, shape ``(origins,)``. The last row is
        that of the end of the series, the only one without a reading to forecast.
    """
    origins = np.append(np.arange(FIRST, len(readings) - ahead + 1), len(readings))
    hours, days = origins + ahead - 1, -(-ahead // SEASON)
    places = [hours - SEASON * (days + i) for i in range(7)]
    places += [origins - 1 - i for i in range(newest)]
    lags = readings[np.stack([*places, hours - _WEEK], axis=1)]
    slots = _SLOT * np.eye(SEASON)[hours % SEASON]
    return np.concatenate([lags - lags.mean(axis=1, keepdims=True), slots], axis=1), lags[:, 0]


def _lead(readings: Floats, ahead: int) -> Floats:
    """Return the quantiles of one hour ahead, shape ``(9,)``."""
    middles = []
    for newest in NEWEST:
        rows, start = design(readings, ahead, newest)
        goals = (readings[FIRST + ahead - 1 :] - start[:-1])[:, None]
        sums = gather(rows[:-1], goals)
        penalty = _penalty(sums)
        loss = QuantileLoss(floor=0.02 * float(np.abs(goals).mean()) + 1e-9)
        first = ridge(sums, penalty)
        found = reweighted(rows[:-1], goals, loss, first, penalty=penalty)
        middles.append(start[-1] + float(predicted(rows[-1:], found)[0, 0]))
        if newest == NEWEST[0]:
            errors = _unseen(rows[:-1], goals)
    return float(np.mean(middles)) + np.quantile(errors, LEVELS)


def _unseen(rows: Floats, goals: Floats) -> Floats:
    """Return the errors of each block by a fit to the others, two days on both sides left out."""
    origins, errors = np.arange(len(rows)), []
    for block in np.array_split(origins, FOLDS):
        others = (origins < block[0] - HORIZON) | (origins > block[-1] + HORIZON)
        sums = gather(rows[others], goals[others])
        errors.append(goals[block] - predicted(rows[block], ridge(sums, _penalty(sums))))
    return np.concatenate(errors)[:, 0]


def _penalty(sums: Statistic) -> float:
    """Return the penalty of a fit; above 0 also for a series of zeros."""
    return PENALTY * max(float(np.trace(sums.matrix(0))) / sums.width, 1e-12)
