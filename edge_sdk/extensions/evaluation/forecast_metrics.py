"""Score forecasts: point and quantile scores in the units of the series; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

QUANTILES = (0.1, 0.5, 0.9)
Floats = NDArray[np.float64]


def pinball(y: ArrayLike, yhat: ArrayLike, q: float) -> Floats:
    """Return the pinball loss of each value: ``q`` a unit below the observation, ``1 - q`` above.

    >>> pinball([1.0, 3.0], [2.0, 2.0], 0.9)
    array([0.1, 0.9])
    """
    error = np.asarray(y, np.float64) - np.asarray(yhat, np.float64)
    return np.asarray(np.maximum(q * error, (q - 1.0) * error))


def quantile_score(
    y: ArrayLike,
    yhat: Mapping[float, ArrayLike],
    reduce: Literal["sum", "mean"] = "sum",
) -> float:
    """Return QS: the mean pinball loss over windows and steps, summed (or averaged) over levels."""
    means = [float(pinball(y, forecasts, q).mean()) for q, forecasts in yhat.items()]
    return float(np.sum(means) if reduce == "sum" else np.mean(means))


def interval_length(low: ArrayLike, high: ArrayLike) -> float:
    return float(np.abs(np.asarray(high, np.float64) - np.asarray(low, np.float64)).mean())


def coverage(y: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return ICP: the share of values inside the interval, its ends included."""
    seen = np.asarray(y, np.float64)
    return float(((np.asarray(low) <= seen) & (seen <= np.asarray(high))).mean())


def misses(y: ArrayLike, low: ArrayLike, high: ArrayLike) -> tuple[float, float]:
    """Return the shares of values below and above the interval, unobserved ones left out.

    Where many values are zero, coverage alone is misleading: an interval from zero upwards covers
    all zeros, so that too few of the others may lie inside although the coverage is as intended.

    >>> misses([0.0, 0.0, 0.0, 5.0, np.nan], [0.0] * 5, [1.0] * 5)
    (0.0, 0.25)
    """
    seen = np.asarray(y, np.float64)
    known = np.isfinite(seen)
    if not known.any():
        return float("nan"), float("nan")
    below, above = (seen < np.asarray(low))[known], (seen > np.asarray(high))[known]
    return float(below.mean()), float(above.mean())


def mae(y: ArrayLike, yhat: ArrayLike) -> float:
    """Return the mean absolute error over all observed values; NaN without any."""
    error = _errors(y, yhat)
    return float(np.abs(error).mean()) if error.size else float("nan")


def rmse(y: ArrayLike, yhat: ArrayLike) -> float:
    """Return the root of the mean squared error over all observed values; NaN without any."""
    error = _errors(y, yhat)
    return float(np.sqrt(np.square(error).mean())) if error.size else float("nan")


def naive_lag1(x: ArrayLike) -> float:
    """Return the mean absolute step of a series between observed neighbours; 0 without any."""
    steps = np.abs(np.diff(np.asarray(x, np.float64)))
    steps = steps[np.isfinite(steps)]
    return float(steps.mean()) if steps.size else 0.0


def mase(y: ArrayLike, yhat: ArrayLike, naive: float | None = None) -> float | None:
    """Return MAE in units of the naive one-step error; None, undefined, for a constant series.

    Args:
        naive: Mean absolute step to divide by; that of ``y`` itself unless given.

    >>> mase([1, 2, 4, 3], [1.5, 2, 3, 3])
    0.28125
    """
    step = naive_lag1(y) if naive is None else naive
    return mae(y, yhat) / step if step > 1e-12 else None


def mean_mase(values: Sequence[float | None]) -> tuple[float, int]:
    """Return the average over devices, and the number left out for a constant series."""
    defined = [value for value in values if value is not None]
    mean = float(np.mean(defined)) if defined else float("nan")
    return mean, len(values) - len(defined)


def _errors(y: ArrayLike, yhat: ArrayLike) -> Floats:
    error = np.asarray(y, np.float64) - np.asarray(yhat, np.float64)
    return np.asarray(error[np.isfinite(error)])
