"""Validate a received statistic: reject one that clipped data cannot produce."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_sdk.extensions.analytic.statistics import Statistic, packed

SLACK = 1e-4
"""Relative tolerance of every bound: a statistic is sent in float32."""

NOISE_REACH = 10.0
"""Deviations of its noise that an entry of an honest statistic never exceeds: the largest number that
a device can draw is 9.4."""


@dataclass(frozen=True, slots=True)
class StatisticBounds:
    """Limits that the contract of a run sets for every statistic."""

    width: int  # length P of a design row
    outputs: int
    groups: int  # 1, or ``outputs`` if weights differ between outputs
    row: float  # bound C of a design row's norm. Clipped features give √(36 (P - 1) + 1).
    target: float  # bound B of a scaled target's modulus; residuals are clipped at 2 B
    windows: float  # largest count n; a device with more scales its statistic down


def statistic_fault(statistic: Statistic, bounds: StatisticBounds) -> str | None:
    """Return the first invalid property of a statistic, or None.

    Weights of a window have mean 1 or are at most 1, so Σ w ≤ n and with it trace Σ w φφᵀ ≤ n C²
    and Σ w y² ≤ n B². The matrix of (φ, y), that is [[A, b], [bᵀ, Σ w y²]], must be positive
    semidefinite; that covers A itself and the Cauchy-Schwarz bound of b.

    Args:
        statistic: As received; symmetric because only a triangle is sent.
        bounds: What the contract says.

    >>> from edge_sdk.extensions.analytic.statistics import gather
    >>> bounds = StatisticBounds(2, 1, 1, row=3.0, target=4.0, windows=1000.0)
    >>> honest = gather(np.array([[1.0, 2.0], [1.0, 0.0]]), np.array([[3.0], [1.0]]))
    >>> statistic_fault(honest, bounds)
    >>> statistic_fault(honest.scaled(1e6), bounds)
    'count 2e+06 is not in (0, 1000]'
    """
    return (
        _malformed(statistic, bounds)
        or _beyond_clipping(statistic, bounds)
        or _not_of_data(statistic)
    )


def noisy_statistic_fault(
    statistic: Statistic, bounds: StatisticBounds, sigma: float
) -> str | None:
    """Return the first invalid property of a statistic with noise, or None.

    A matrix with noise need not be semidefinite. What is checked instead: shapes, finite numbers,
    the count, no sum that noise does not cover, and that every entry lies within what clipped rows
    give and ``NOISE_REACH`` deviations of the noise, and the trace within the same for its sum. So a
    liar moves the fleet's sum by at most what n windows and an improbable draw would.

    Args:
        bounds: What the contract says; ``row`` is C, the bound of the devices' rows.
        sigma: Noise in units of C² in the matrix, and of C B beside it.

    >>> from edge_sdk.extensions.analytic.statistics import gather
    >>> bounds = StatisticBounds(2, 1, 1, row=1.0, target=4.0, windows=1000.0)
    >>> honest = gather(np.array([[0.6, 0.8]]), np.array([[3.0]])).scaled(1.0)
    >>> noisy_statistic_fault(honest, bounds, 2.0)
    'squares or residuals are sent without noise'
    """
    if found := _malformed(statistic, bounds):
        return found
    if statistic.squares.any() or statistic.residuals.any():
        return "squares or residuals are sent without noise"
    size, count = bounds.row**2, statistic.count
    most = size * (count * (1.0 + SLACK) + NOISE_REACH * sigma)
    if (np.abs(statistic.gram) > most).any():
        return (
            f"gram has an entry of {np.abs(statistic.gram).max():g}, above n C² + noise = {most:g}"
        )
    reach = bounds.row * bounds.target
    most = reach * (count * (1.0 + SLACK) + NOISE_REACH * sigma)
    if (np.abs(statistic.cross) > most).any():
        return f"cross has an entry of {np.abs(statistic.cross).max():g}, above n C B + noise = {most:g}"
    most = size * (count * (1.0 + SLACK) + NOISE_REACH * sigma * math.sqrt(bounds.width))
    traces = statistic.gram @ packed(np.eye(statistic.width))
    if (traces > most).any():
        return f"trace {traces.max():g} is above n C² + noise = {most:g}"
    return None


def _malformed(statistic: Statistic, bounds: StatisticBounds) -> str | None:
    shapes = (
        ("gram", statistic.gram.shape, (bounds.groups, bounds.width * (bounds.width + 1) // 2)),
        ("cross", statistic.cross.shape, (bounds.outputs, bounds.width)),
        ("squares", statistic.squares.shape, (bounds.outputs,)),
        ("residuals", statistic.residuals.shape, (bounds.outputs,)),
    )
    for name, found, wanted in shapes:
        if found != wanted:
            return f"{name} has shape {found}, the run's is {wanted}"
    sums = (statistic.gram, statistic.cross, statistic.squares, statistic.residuals)
    if not all(np.isfinite(one).all() for one in sums):
        return "a sum is not finite"
    if not 0.0 < statistic.count <= bounds.windows:
        return f"count {statistic.count:g} is not in (0, {bounds.windows:g}]"
    return None


def _beyond_clipping(statistic: Statistic, bounds: StatisticBounds) -> str | None:
    most = statistic.count * bounds.row**2 * (1.0 + SLACK)
    traces = statistic.gram @ packed(np.eye(statistic.width))
    if (traces > most).any():
        return f"trace {traces.max():g} is above n C² = {most:g}"
    most = statistic.count * bounds.target**2 * (1.0 + SLACK)
    if (statistic.squares > most).any():
        return f"squares {statistic.squares.max():g} are above n B² = {most:g}"
    if (statistic.squares < 0.0).any() or (statistic.residuals < 0.0).any():
        return "a sum of squares or of moduli is negative"
    most = 2.0 * statistic.count * bounds.target * (1.0 + SLACK)
    if (statistic.residuals > most).any():
        return f"residuals {statistic.residuals.max():g} are above 2 n B = {most:g}"
    return None


def _not_of_data(statistic: Statistic) -> str | None:
    """Return whether (φ, y) has a matrix that no rows can have."""
    for output, (cross, square) in enumerate(zip(statistic.cross, statistic.squares, strict=True)):
        gram = statistic.matrix(output)
        variances = np.append(np.diag(gram), square)
        if (variances < 0.0).any():
            return f"output {output}: the diagonal has a negative entry"
        # In correlations the tolerance is relative to each coordinate's own size.
        size = np.sqrt(variances + SLACK * variances.max() / len(variances) + 1e-300)
        joint = np.block([[gram, cross[:, None]], [cross[None, :], np.full((1, 1), square)]])
        joint = joint / size / size[:, None] + SLACK * np.eye(len(joint))
        try:
            np.linalg.cholesky(joint)
        except np.linalg.LinAlgError:
            return f"output {output}: the matrix of features and target is not semidefinite"
    return None
