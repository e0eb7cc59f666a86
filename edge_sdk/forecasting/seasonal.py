"""Forecast by the values of the season before."""

from __future__ import annotations

import numpy as np

from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints

WEEK = 7 * DAY


def seasonal_naive(values: Floats, origins: Ints, horizon: int, period: int) -> Floats:
    """Return for each origin the values of the newest season that lies wholly before it.

    Args:
        values: The series, ``(T,)``; NaN where unknown.
        origins: Rows after which the forecasts begin, ``(n,)``.

    Returns:
        Forecasts, ``(n, horizon)``; NaN where the season is not known.

    >>> seasonal_naive(np.arange(4.0), np.array([1, 3]), 3, 2)
    array([[0., 1., 0.],
           [2., 3., 2.]])
    >>> seasonal_naive(np.arange(2.0), np.array([0]), 1, 2)
    array([[nan]])
    """
    ahead = np.arange(horizon)
    rows = np.asarray(origins, np.int64)[:, None] + 1 + ahead - period * (ahead // period + 1)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], np.nan)


def rows_of(period: int, step: int) -> int:
    """Return the number of rows of a period in seconds; at least one.

    >>> rows_of(DAY, 900), rows_of(DAY, 604_800)
    (96, 1)
    """
    return max(1, period // step)
