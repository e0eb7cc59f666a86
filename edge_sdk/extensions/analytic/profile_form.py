"""Solve the profile of tomorrow in closed form: one prior for each number of known days, a part of the device's own.

A row is one step of one origin, and its target is the load in the device's level minus ``base``. The
fleet solves one vector for each *stage*, a range of numbers of known days, from the sums of
``statistics.gather``; all leads share it. The device adds a vector δ, the same for all stages, drawn
towards zero with a strength that the fleet finds for each stage: with few known days δ is nearly 0.

A pass of re-weighted least squares that goes 1.8 times as far as its solution needs half the passes
(over-relaxation, as for any linearly convergent majorisation); the last pass goes as far as it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.profile_features import ProfileRows, with_hinges
from edge_sdk.extensions.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.standardise import CLIP, CONSTANT
from edge_sdk.extensions.analytic.statistics import Statistic, gather
from edge_sdk.forecasting.calendar_features import Floats, Ints

STAGES = (1, 2, 3, 5, 7, 10, 14, 21, 28)
"""Least number of known days of each stage."""

RELAXATION = 1.8
"""Step of every pass but the first two and the last, in the distance to the pass's solution."""

LARGEST = 30.0
"""Largest modulus of a target minus base, in levels; a row beyond it does not count."""

LEAST_SPREAD = 0.02
"""Least announced spread, in levels."""

_OF_SPREAD = ("sksd", "sp", "k10n:0.1", "k10n:0.9", "a28:0.1", "a28:0.9")


def stage_of(known: Ints) -> Ints:
    """Return the number of the stage of each number of known days; 0 for none.

    >>> stage_of(np.array([0, 1, 4, 28, 99])).tolist()
    [0, 0, 2, 8, 8]
    """
    return np.maximum(np.searchsorted(STAGES, known, side="right") - 1, 0).astype(np.int64)


def fleet_scale(squares: Sequence[Floats]) -> Floats:
    """Return the scale of every column from the devices' mean squares, each of shape ``(P,)``."""
    root = np.sqrt(np.mean(squares, axis=0))
    return np.asarray(np.where(root > CONSTANT, root, 0.0))


def scaled_design(rows: ProfileRows, scale: Floats) -> NDArray[np.float32]:
    """Return design rows in fleet scales with hinges, shape ``(n · H, P + hinges)``."""
    wide = np.where(scale > 0.0, scale, np.inf).astype(np.float32)
    flat = np.clip(rows.design.reshape(-1, len(rows.names)) / wide, -CLIP, CLIP)
    return with_hinges(flat, rows.names)


def stage_statistics(
    design: NDArray[np.float32],
    targets: Floats,
    stages: Ints,
    coefficients: Floats | None,
    loss: QuantileLoss,
    *,
    noise: float = 1.0,
) -> dict[int, Statistic]:
    """Return the statistics that a device sends in a pass: one for each stage of its rows.

    Args:
        design: As ``scaled_design`` returns it, shape ``(N, P)``.
        targets: In levels, minus base; a row whose target is NaN does not count, shape ``(N,)``.
        stages: Stage of each row, shape ``(N,)``.
        coefficients: Of every stage, by whose residuals rows are weighted, shape ``(stages, P)``;
            None in the first pass.
        noise: Mean error of a naive forecast of this device, in levels. The fleet minimises the
            devices' mean losses divided by it, so one that is hard to foresee does not outweigh the others.
    """
    found = {}
    for stage in np.unique(stages[np.isfinite(targets)]):
        mine = np.isfinite(targets) & (stages == stage)
        rows, goals = design[mine], targets[mine, None]
        weights = np.full((len(rows), 1), noise**-2.0)
        if coefficients is not None:
            left = goals - (rows @ coefficients[stage].astype(np.float32))[:, None]
            # not normalised: with weights of mean 1 a device would count by its error squared
            weights *= loss.weights(left / noise, is_normalised=False) / loss.floor
        one = gather(rows, goals, weights)
        found[int(stage)] = one.scaled(1.0 / one.count)
    return found


def naive_noise(rows: ProfileRows, targets: Floats) -> Floats:
    """Return the error of last week's same slot in levels, shape ``(N,)``; its mean is the ``noise``.

    Args:
        targets: In levels, minus base, shape ``(N,)``; where they are NaN the result is.
    """
    return np.abs(targets - rows.design[:, :, rows.names.index("w1")].ravel())


def spread_columns(rows: ProfileRows) -> Floats:
    """Return the regressors of the announced spread, in levels, shape ``(n, H, 6)``.

    One, the modulus of base, the deviation of the newest days of the kind, the error of the last day
    on the average, and the ranges of ten days of the kind and of all days, all at the slot.
    """
    column = {name: rows.design[:, :, rows.names.index(name)] for name in _OF_SPREAD}
    near = column["k10n:0.9"] - column["k10n:0.1"]
    whole = column["a28:0.9"] - column["a28:0.1"]
    one = np.ones_like(near)
    parts = (one, np.abs(rows.base), column["sksd"], column["sp"], near, whole)
    return np.stack(parts, -1).astype(np.float64)


def announced_spread(columns: Floats, coefficients: Floats) -> Floats:
    """Return the spread in levels, at least ``LEAST_SPREAD``, shape ``(...)``.

    Args:
        columns: As ``spread_columns`` returns them, shape ``(..., 6)``.
        coefficients: Of each column, the last axis as that of ``columns``.
    """
    return np.asarray(np.maximum((columns * coefficients).sum(-1), LEAST_SPREAD))


def next_coefficients(
    previous: Floats | None,
    statistics: Mapping[int, Statistic],
    penalty: float,
    *,
    stages: int = len(STAGES),
    step: float = 1.0,
    towards: Floats | None = None,
) -> Floats:
    """Return the coefficients of every stage after a pass, shape ``(stages, P)``.

    Args:
        previous: Before the pass; None before the first.
        statistics: Sums over the devices, by stage. A stage that no device has takes the
            coefficients of the stage below it that has some, or else of the one above it.
        penalty: Of every coefficient, as a share of the mean diagonal of Σ w φφᵀ: so one number fits
            fleets of every noise.
        step: How far to go towards the solution; ``RELAXATION`` between the second pass and the last.
        towards: Coefficients of every stage that the penalty draws to; zero if left out.

    Raises:
        ValueError: No statistic at all.
    """
    if not statistics:
        raise ValueError("a pass without statistics has no solution; at least 1 stage is needed")
    solved = {
        stage: ridge(
            one,
            penalty * float(np.diag(one.matrix(0)).mean()),
            None if towards is None else towards[stage : stage + 1],
        )[0]
        for stage, one in statistics.items()
    }
    given = sorted(solved)
    nearest = [max((g for g in given if g <= stage), default=given[0]) for stage in range(stages)]
    found: Floats = np.stack([solved[stage] for stage in nearest])
    return found if previous is None else np.asarray(previous + step * (found - previous))


def prior_forecast(
    design: NDArray[np.float32], base: Floats, stages: Ints, coefficients: Floats
) -> Floats:
    """Return the forecasts of the stages' coefficients in levels, shape ``(N,)``."""
    found = np.array(base, np.float64)
    for stage in np.unique(stages):
        mine = stages == stage
        found[mine] += design[mine] @ coefficients[stage].astype(np.float32)
    return found


def own_part(
    design: NDArray[np.float32],
    missed: Floats,
    strength: float,
    loss: QuantileLoss,
    passes: int = 4,
) -> Floats:
    """Return δ, the device's own part: argmin Σ loss(missed - δᵀφ) + strength N ‖δ‖², shape ``(P,)``.

    Args:
        design: The device's rows.
        missed: Targets minus the prior's forecasts, in levels; NaN where unobserved, ``(N,)``.
        strength: Infinity returns zeros, and so do fewer than two rows.

    >>> rows, missed = np.ones((4, 1), np.float32), np.array([2.0, 2.0, 2.0, 2.0])
    >>> [own_part(rows, missed, s, QuantileLoss()).round(3).item() for s in (0.0, 1.0, math.inf)]
    [2.0, 1.0, 0.0]
    """
    seen = np.isfinite(missed)
    nothing = np.zeros((1, design.shape[1]))
    found = nothing
    if not math.isinf(strength) and seen.sum() >= 2:
        found = reweighted(
            design[seen],
            missed[seen, None],
            loss,
            nothing,
            penalty=strength * float(seen.sum()),
            towards=nothing,
            passes=passes,
        )
    return np.asarray(found[0])


def prior_share(
    prior_loss: Floats, own_loss: Floats, *, expected: float = -0.2, width: float = 0.08
) -> Floats:
    """Return the share of the prior's forecast in a blend with the device's own plain profile.

    Both losses are of issued forecasts of the known days. The logarithm of their ratio is shrunk half
    way to ``expected``, what the fleet's devices have seen; 0 there gives equal shares. On BDG2 after
    seven days, past and future ratios of the devices correlate by 0.89.

    Args:
        prior_loss: Sum over the known days, any shape.
        own_loss: Of the device's own profile, same shape.
        expected: Mean logarithm of the ratio over the fleet.
        width: Logarithm of the ratio, after shrinking, that moves the odds by a factor e.

    >>> prior_share(np.array([0.8, 1.0, 1.3]), np.ones(3)).round(2).tolist()
    [0.93, 0.78, 0.4]
    """
    ratio = np.log(np.maximum(prior_loss, 1e-12) / np.maximum(own_loss, 1e-12))
    return np.asarray(1.0 / (1.0 + np.exp(0.5 * (ratio + expected) / width)))
