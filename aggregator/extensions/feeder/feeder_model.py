"""Forecast the load of a feeder from its sums alone: what it drew, and what its devices expect.

Two forecasts are combined. One is the closed form of a profile on the feeder's own history, which the sum of
many devices makes regular. The other is the sum of what the devices expect; each device sends its expected
value, because medians do not add up. Neither is the better one on every feeder: their shares come from days
that the first one has not learned from. The interval is that of the combination's own errors on these days, by
lead: intervals of devices do not add up either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.profile_features import ProfileRecord, ProfileRows, profile_rows
from edge_sdk.extensions.analytic.profile_form import (
    RELAXATION,
    fleet_scale,
    next_coefficients,
    prior_forecast,
    scaled_design,
    stage_statistics,
)
from edge_sdk.extensions.analytic.residual_paths import lead_quantiles, profile_fan
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.statistics import Statistic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Design = NDArray[np.float32]

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of a forecast; the interval is between the first and the last."""
PENALTY = 0.1
"""Of the coefficients, as a share of the mean diagonal: one feeder has a few hundred days, not a fleet's."""
PASSES = 5
BLOCKS = 8
"""Parts of the history; each is forecast by coefficients of the others."""
LEAST_ORIGINS = 14
"""Origins with a known day after them that the closed form needs."""
_EQUAL = 10.0  # origins with equal shares, which are added to those that choose the shares
_MOST_ROWS = 60_000  # rows of the design at once: 90 MB
_LOSS = QuantileLoss()


@dataclass(frozen=True, slots=True, eq=False)
class FeederModel:
    """Coefficients, shares and errors of one feeder."""

    scale: Floats  # of the columns, shape ``(P,)``
    coefficients: Floats  # of the closed form, shape ``(1, W)``
    share: float  # of the closed form in the forecast; the rest is the sum of the devices
    residuals: Floats  # what held-back forecasts missed, in levels, shape ``(m, H)``
    paired: int  # origins with a sum of the devices, by which the share was chosen


@dataclass(frozen=True, slots=True, eq=False)
class FeederIssues:
    """Features, outcomes and the devices' sums of some origins."""

    rows: ProfileRows  # of the steps that are forecast
    load: Floats  # what the feeder drew, NaN where unknown, shape ``(n, H)``
    expected: Floats  # sums of the devices' expected values, NaN where unknown, shape ``(n, H)``

    def __len__(self) -> int:
        return len(self.load)


def issues(
    record: ProfileRecord, origins: Ints, horizon: int, expected: Floats, skip: int = 0
) -> FeederIssues:
    """Return what is known about forecasts that were or are to be issued.

    Args:
        record: What the feeder drew, and the calendar until the last target.
        origins: Rows of the last known load, shape ``(n,)``.
        horizon: Steps of a forecast, H; at least a day.
        expected: Sums of the devices' expected values of the same steps, shape ``(n, H)``.
        skip: Steps between an origin and the first one that is forecast: sums arrive late.
    """
    parts = []
    size = max(1, _MOST_ROWS // (skip + horizon))
    for begin in range(0, len(origins), size):
        whole = profile_rows(record, origins[begin : begin + size], skip + horizon)
        parts.append(replace(whole, design=whole.design[:, skip:], base=whole.base[:, skip:]))
    rows = ProfileRows(
        np.concatenate([part.design for part in parts]),
        parts[0].names,
        np.concatenate([part.base for part in parts]),
        np.concatenate([part.level for part in parts]),
        np.concatenate([part.known for part in parts]),
    )
    targets = origins[:, None] + 1 + skip + np.arange(horizon)
    inside = targets < len(record.values)
    load = np.where(inside, record.values[np.where(inside, targets, 0)], np.nan)
    return FeederIssues(rows, load, expected)


def fitted(past: FeederIssues, blocks: int = BLOCKS) -> FeederModel:
    """Return the model of a feeder.

    Args:
        past: Oldest first. An origin whose load is unknown teaches nothing.
        blocks: Parts of the history, at least 2.

    Raises:
        ValueError: Fewer than ``LEAST_ORIGINS`` origins with a known load.
    """
    taught = np.isfinite(past.load).any(axis=1)
    if taught.sum() < LEAST_ORIGINS:
        raise ValueError(
            f"{taught.sum()} origins with a known load; a feeder's model needs {LEAST_ORIGINS}"
        )
    scale = _scale(past.rows)
    parts = np.minimum(np.arange(len(past)) * blocks // len(past), blocks - 1)
    whole, without = _coefficients(past, scale, parts)
    own = np.empty_like(past.load)
    for block, found in enumerate(without):
        mine = parts == block
        own[mine] = own_forecast(_chosen(past.rows, mine), scale, found)
    share, paired = _share(own, past)
    missed = past.load - combined(own, past.expected, share)
    return FeederModel(scale, whole, share, missed[taught] / past.rows.level[taught, None], paired)


def own_forecast(rows: ProfileRows, scale: Floats, coefficients: Floats) -> Floats:
    """Return the forecasts of the closed form in the load's unit, shape ``(n, H)``."""
    design, base = scaled_design(rows, scale), rows.base.ravel()
    found = prior_forecast(design, base, np.zeros(len(base), np.int64), coefficients)
    return np.asarray(found.reshape(rows.base.shape) * rows.level[:, None])


def combined(own: Floats, expected: Floats, share: float) -> Floats:
    """Return the forecast: without a sum of the devices the closed form alone.

    >>> combined(np.array([[1.0, 1.0]]), np.array([[3.0, np.nan]]), 0.25).tolist()
    [[2.5, 1.0]]
    """
    return np.where(np.isfinite(expected), share * own + (1.0 - share) * expected, own)


def fan(model: FeederModel, now: FeederIssues, levels: Sequence[float] = LEVELS) -> Floats:
    """Return the quantiles of every step in the load's unit, shape ``(n, H, 1 + levels)``.

    The first column is the forecast itself.
    """
    own = own_forecast(now.rows, model.scale, model.coefficients)
    centre = combined(own, now.expected, model.share)
    spread = np.broadcast_to(now.rows.level[:, None], centre.shape)
    quantiles = lead_quantiles(model.residuals, levels)
    ends = profile_fan(centre, np.asarray(spread), quantiles)
    return np.concatenate([centre[:, :, None], ends], axis=2)


def to_whole(total: Floats, members: float, expected: float) -> Floats:
    """Return a sum of some devices scaled to all of them, by their number or by their rated power.

    Args:
        total: Sum of the devices that took part.
        members: Their number, or the sum of their rated power.
        expected: That of all devices.

    >>> to_whole(np.array([9.0, 18.0]), 9, 10).tolist()
    [10.0, 20.0]
    """
    return np.asarray(total * (expected / members)) if members > 0 else np.full_like(total, np.nan)


def _scale(rows: ProfileRows) -> Floats:
    squares = [np.mean(one.astype(np.float64) ** 2, axis=0) for one in rows.design]
    return fleet_scale(squares)


def _coefficients(past: FeederIssues, scale: Floats, parts: Ints) -> tuple[Floats, list[Floats]]:
    """Return the coefficients of the whole history, and those without each of its parts.

    The weights of a pass are those of the whole history; only the last solution leaves a part out.
    """
    found: Floats | None = None
    statistics: list[Statistic | None] = []
    for number in range(PASSES):
        statistics = [
            _statistic(past, scale, parts == part, found) for part in range(parts.max() + 1)
        ]
        step = RELAXATION if 1 < number < PASSES - 1 else 1.0
        found = _solved(statistics, found, step)
    assert found is not None
    without = [
        _solved([*statistics[:part], *statistics[part + 1 :]], None, 1.0)
        for part in range(len(statistics))
    ]
    return found, without


def _statistic(
    past: FeederIssues, scale: Floats, mine: NDArray[np.bool_], found: Floats | None
) -> Statistic | None:
    rows = _chosen(past.rows, mine)
    targets = (past.load[mine] / rows.level[:, None] - rows.base).ravel()
    design, stages = scaled_design(rows, scale), np.zeros(len(targets), np.int64)
    made = stage_statistics(design, targets, stages, found, _LOSS).get(0)
    # a part counts by its rows
    return None if made is None else made.scaled(float(np.isfinite(targets).sum()))


def _solved(statistics: Sequence[Statistic | None], previous: Floats | None, step: float) -> Floats:
    known = [one for one in statistics if one is not None]
    total = {0: sum(known[1:], known[0])} if known else {}
    return next_coefficients(previous, total, PENALTY, stages=1, step=step)


def _chosen(rows: ProfileRows, mine: NDArray[np.bool_]) -> ProfileRows:
    return ProfileRows(
        rows.design[mine], rows.names, rows.base[mine], rows.level[mine], rows.known[mine]
    )


def _share(own: Floats, past: FeederIssues) -> tuple[float, int]:
    """Return the share of the closed form with the least mean absolute error, and the origins it is from."""
    unit = past.rows.level[:, None]
    seen = np.isfinite(past.load) & np.isfinite(past.expected)
    first, second = (np.where(seen, (past.load - one) / unit, 0.0) for one in (own, past.expected))
    paired = int(seen.any(axis=1).sum())
    if not paired:
        return 0.5, 0
    typical = float(np.abs(np.stack([first, second])).sum() / (2 * seen.sum())) * past.load.shape[1]
    shares = np.linspace(0.0, 1.0, 21)
    losses = [
        np.abs(share * first + (1.0 - share) * second).sum() + _EQUAL * typical * (share - 0.5) ** 2
        for share in shares
    ]
    return float(shares[int(np.argmin(losses))]), paired
