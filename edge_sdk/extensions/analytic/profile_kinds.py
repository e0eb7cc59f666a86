"""Tell homes from other buildings by the known days: a prior has coefficients for both.

A home's load is rough: appliances switch. That of an office or a shop is smooth and repeats itself.
One linear model for both lost up to 10 % on homes, and one of homes 20 % on offices. So a window's
base is moved by a second vector of coefficients, times the probability that it is a home's; all that
learns (a fleet, a part of the device's own) learns what is left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.profile_features import ProfileRows
from edge_sdk.forecasting.calendar_features import Floats

SIGNS = 10
"""Columns of ``home_signs``."""

LEAST_SIGN = 1e-3
"""Least modulus, in levels, of what the logarithm is taken of."""


def home_signs(rows: ProfileRows, day: int) -> Floats:
    """Return the features of a home, shape ``(n, SIGNS)``; the first column is 1.

    Of the mean profile of hours and of the last day: what an hour differs from the one before, and how
    that changes; least and largest hour; what the last day missed; and the spreads of the days.

    Args:
        day: Rows of a day.
    """

    def column(name: str) -> Floats:
        found = rows.design[:, :day, rows.names.index(name)].astype(np.float64)
        return np.asarray(found.reshape(len(found), 24, -1).mean(axis=2))

    def size(values: Floats) -> Floats:
        return np.asarray(np.log(np.maximum(np.abs(values).mean(axis=1), LEAST_SIGN)))

    base = rows.base[:, :day].reshape(len(rows.base), 24, -1).mean(axis=2)
    last = base + column("S0")
    signs = (
        np.ones(len(base)),
        size(np.diff(last, axis=1)),
        size(np.diff(base, axis=1)),
        size(np.diff(base, n=2, axis=1)),
        size(np.diff(last, n=2, axis=1)),
        size(column("sp")),
        size(column("sksd")),
        size(column("a28:0.9") - column("a28:0.1")),
        base.min(axis=1),
        base.max(axis=1),
    )
    return np.stack(signs, axis=1)


def home_share(signs: Floats, weights: Floats) -> Floats:
    """Return the probability of a home, by the logistic function, shape ``(...)``.

    Args:
        signs: As ``home_signs`` returns them, shape ``(..., SIGNS)``.
        weights: The last axis as that of ``signs``; zeros give one half.

    >>> home_share(np.eye(1, SIGNS), np.zeros((1, SIGNS))).tolist()
    [0.5]
    """
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip((signs * weights).sum(axis=-1), -30.0, 30.0))))


def fitted_weights(signs: Floats, is_home: NDArray[np.bool_], penalty: float = 0.01) -> Floats:
    """Return the weights of ``home_share`` by penalised logistic regression, shape ``(SIGNS,)``.

    Args:
        signs: Shape ``(n, SIGNS)``.
        is_home: Shape ``(n,)``.
        penalty: Of every weight but that of the first sign, in units of the signs' deviations.

    >>> signs = np.tile(np.array([[1.0], [-1.0]]), (20, SIGNS))
    >>> signs[:, 0] = 1.0
    >>> home_share(signs, fitted_weights(signs, signs[:, 1] > 0.0))[:2].round(1).tolist()
    [1.0, 0.0]
    """
    middle, wide = signs.mean(axis=0), np.maximum(signs.std(axis=0), 1e-6)
    middle[0], wide[0] = 0.0, 1.0
    scaled, found = (signs - middle) / wide, np.zeros(SIGNS)
    ridge = np.diag(np.append(1e-6, np.full(SIGNS - 1, penalty)))
    for _ in range(30):
        share = home_share(scaled, found)
        gradient = scaled.T @ (share - is_home) / len(scaled) + ridge @ found
        curve = (scaled.T * (share * (1.0 - share))) @ scaled / len(scaled) + ridge
        found = found - np.linalg.solve(curve, gradient)
    found = found / wide
    found[0] -= found[1:] @ middle[1:]
    return np.asarray(found)
