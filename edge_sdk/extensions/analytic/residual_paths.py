"""Turn the forecast of a profile into quantiles of every step and into equally likely paths.

A *residual day* is what a forecast of H steps missed, divided by the spread that it announced, shape
``(H,)``. Residual days come from windows that the model has not learned from. A new device has
none: it takes those of its bundle, and its own replace them one by one.

The quantiles of a step are those of its residuals, at the ranks of split conformal prediction. A
path has the same values, in the order of a residual day: each step of the paths has the distribution
of the quantiles, and the steps of one path belong together as they did on that day. So sums over
hours have an honest spread too.

Reference:
    Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005 (ranks); Clark et al.,
    "The Schaake shuffle", 2004, and Schefzik, Thorarinsdottir and Gneiting, "Uncertainty
    quantification in complex simulation models using ensemble copula coupling", 2013 (paths).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sdk.forecasting.calendar_features import Floats


def joined_residuals(own: Floats, prior: Floats, most: int) -> Floats:
    """Return the residual days that a device uses: its newest own ones, filled up with the prior's.

    Args:
        own: Residual days of this device, oldest first, shape ``(m, H)``.
        prior: Residual days of other devices, for example of the bundle, shape ``(k, H)``.
        most: Largest number of days that are used, at least 1. Days of the prior are taken evenly.

    >>> own, prior = np.array([[1.0], [2.0]]), np.arange(10.0, 50.0, 10.0)[:, None]
    >>> joined_residuals(own, prior, 4).ravel().tolist(), joined_residuals(own, prior, 1).tolist()
    ([10.0, 30.0, 1.0, 2.0], [[2.0]])
    """
    newest = own[max(0, len(own) - most) :]
    room = min(most - len(newest), len(prior))
    taken = np.arange(room) * len(prior) // max(room, 1)
    return np.concatenate([prior[taken], newest])


def lead_quantiles(residuals: Floats, levels: Sequence[float], *, around: int = 0) -> Floats:
    """Return the quantiles of the residuals of each step, shape ``(H, len(levels))``.

    A level below one half takes the value of rank ⌊(m + 1) level⌋, any other that of rank
    ⌈(m + 1) level⌉: an interval between two levels covers at least their difference, if the
    residuals and the next one are exchangeable.

    Args:
        residuals: Residual days, shape ``(m, H)``; NaN where nothing was observed.
        levels: Between 0 and 1, ascending.
        around: Steps before and after whose residuals count too; a circle.

    Returns:
        NaN for a step without residuals.

    >>> lead_quantiles(np.arange(1.0, 10.0)[:, None], [0.1, 0.5, 0.85]).tolist()
    [[1.0, 5.0, 9.0]]
    """
    steps = residuals.shape[1]
    found = np.full((steps, len(levels)), np.nan)
    pooled = np.concatenate([np.roll(residuals, j, axis=1) for j in range(-around, around + 1)])
    ordered = np.sort(pooled, axis=0)  # NaN last
    counts = np.isfinite(pooled).sum(axis=0)
    for number, level in enumerate(levels):
        exact = np.round((counts + 1) * level, 9)
        rank = np.floor(exact) if level < 0.5 else np.ceil(exact)
        place = np.clip(rank.astype(np.int64) - 1, 0, np.maximum(counts - 1, 0))
        chosen = np.take_along_axis(ordered, place[None, :], axis=0)[0] if len(ordered) else np.nan
        found[:, number] = np.where(counts > 0, chosen, np.nan)
    return found


def profile_fan(centre: Floats, spread: Floats, quantiles: Floats) -> Floats:
    """Return the quantiles of every step in the series' unit, shape ``(n, H, levels)``, ascending.

    Args:
        centre: Forecasts, shape ``(n, H)``.
        spread: Announced spreads, in the same unit, shape ``(n, H)``.
        quantiles: As ``lead_quantiles`` returns them.
    """
    return np.sort(centre[:, :, None] + spread[:, :, None] * quantiles, axis=-1)


def profile_paths(
    centre: Floats, spread: Floats, residuals: Floats, paths: int, *, around: int = 0, seed: int = 0
) -> Floats:
    """Return equally likely paths, shape ``(n, paths, H)``.

    Path k orders its values as one residual day does: where that day's residual is the third
    smallest of the drawn days, the path has the third smallest value. The values of a step are at
    levels (k + ½) / paths of its residuals.

    Args:
        centre: Forecasts, shape ``(n, H)``.
        spread: Announced spreads, in the same unit, shape ``(n, H)``.
        residuals: Residual days, shape ``(m, H)``, m at least 1. An unobserved residual counts as
            the step's median.
        paths: Number of paths, at least 1.
        around: As for ``lead_quantiles``, for the values alone.
        seed: Of the choice of days: each is drawn as often as any other, or once more.

    Raises:
        ValueError: No residual days, or a step that none of them has observed.

    >>> days = np.array([[-1.0, -2.0], [0.0, 0.0], [1.0, 2.0]])
    >>> made = profile_paths(np.zeros((1, 2)), np.ones((1, 2)), days, 3)
    >>> sorted(made[0].tolist())
    [[-1.0, -2.0], [0.0, 0.0], [1.0, 2.0]]
    """
    observed = np.isfinite(residuals)
    if not observed.any(axis=0).all():
        raise ValueError(f"{len(residuals)} residual days leave a step without a residual")
    draw = np.random.Generator(np.random.Philox(seed))
    rounds = -(-paths // len(residuals))
    days = np.concatenate([draw.permutation(len(residuals)) for _ in range(rounds)])[:paths]
    drawn = np.where(observed, residuals, np.nanmedian(residuals, axis=0))[days]
    ranks = np.argsort(np.argsort(drawn, axis=0, kind="stable"), axis=0, kind="stable")
    pooled = np.concatenate([np.roll(residuals, j, axis=1) for j in range(-around, around + 1)])
    levels = (np.arange(paths) + 0.5) / paths
    values = np.nanquantile(pooled, levels, axis=0, method="hazen")
    shapes = np.take_along_axis(values, ranks, axis=0)
    return np.asarray(centre[:, None, :] + spread[:, None, :] * shapes)


def fitted_paths(paths: Floats, median: Floats, ends: Floats, share: float) -> Floats:
    """Return paths that have a given median and given ends of an interval at every step.

    What lies above a step's median is stretched by one factor, what lies below by another: so the
    order of the paths stays, and their sums are those of the distribution that is served.

    Args:
        paths: Shape ``(..., paths, H)``.
        median: Shape ``(..., H)``.
        ends: Lower and upper ends, shape ``(..., H, 2)``.
        share: Of the values that shall lie between them.

    >>> made = fitted_paths(np.arange(5.0)[:, None], np.array([4.0]), np.array([[3.0, 8.0]]), 0.5)
    >>> made.ravel().tolist()
    [2.0, 3.0, 4.0, 8.0, 12.0]
    """
    at = (0.5 - share / 2.0, 0.5, 0.5 + share / 2.0)
    low, middle, high = np.quantile(paths, at, axis=-2)[..., None, :]
    away, centre = paths - middle, median[..., None, :]
    wide = [np.where(side > 0.0, side, 1.0) for side in (middle - low, high - middle)]
    below, above = (np.abs(ends[..., None, :, i] - centre) / wide[i] for i in (0, 1))
    return np.asarray(centre + away * np.where(away < 0.0, below, above))


def energy_scores(paths: Floats, truth: Floats) -> Floats:
    """Return the energy score of each day: how far its paths are from it, less half their own spread.

    Args:
        paths: Shape ``(n, paths, H)``.
        truth: Shape ``(n, H)``.

    Reference:
        Gneiting and Raftery, "Strictly proper scoring rules", 2007.

    >>> energy_scores(np.array([[[0.0], [2.0]]]), np.array([[1.0]])).tolist()
    [0.5]
    """
    found = []
    for some, seen in zip(paths, truth, strict=True):
        away = np.linalg.norm(some - seen, axis=1).mean()
        apart = np.linalg.norm(some[:, None] - some[None], axis=2).mean()
        found.append(away - apart / 2.0)
    return np.array(found)


def share_covered(paths: Floats, truth: Floats, share: float = 0.8) -> float:
    """Return how often the sum of a day lies in the paths' central interval of ``share``.

    Args:
        paths: Shape ``(n, paths, H)``.
        truth: What was observed, shape ``(n, H)``; days with NaN do not count.

    >>> share_covered(np.arange(9.0)[None, :, None], np.array([[7.0]]))
    1.0
    """
    sums, seen = paths.sum(axis=2), truth.sum(axis=1)
    low, high = np.quantile(sums, [(1.0 - share) / 2.0, (1.0 + share) / 2.0], axis=1)
    known = np.isfinite(seen)
    return float(((low <= seen) & (seen <= high))[known].mean())
