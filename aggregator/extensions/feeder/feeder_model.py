"""Forecast the load of a feeder from sums alone: past load, and the devices' expected load.

Three forecasts are combined: the closed form of a profile on the feeder's own history, which the sum of many
devices makes regular; the sum of what the devices expect, for which each sends its expected value, because
medians do not add up; and the mean of the newest days of the same kind. None is the best one on every feeder:
their shares come from days that were forecast by coefficients of the days before them. A part of what the
newest week missed in the middle is added, none if that was no help on these days. The interval is that of the
errors on these days, by lead, and wider where those of the newest two weeks were larger, or where more came to
lie outside than was meant to: intervals of devices do not add up either.
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
PENALTY = 110.0
"""Ridge penalty of the coefficients, as a share of the mean diagonal; it is divided by the number of origins."""
PASSES = 5
BLOCKS = 8
"""Parts of the history; each of the newer half is forecast by coefficients of those before it."""
FOLLOW = (0.0, 0.25, 0.5)
"""Candidate shares of the newest week's residual that correct a forecast."""
ADAPTED = 0.08
"""Change of the width's logarithm for each share of an origin's steps outside the interval above the nominal one."""
FEW = 60
"""Held-back origins below which hours beside each other count together."""
LEAST_ORIGINS = 14
"""Origins with a known day after them that the closed form needs."""
_EQUAL = 10.0  # origins with equal shares, which are added to those that choose the shares
_SHARES = 16  # steps of a share
_MOST_ROWS = 60_000  # rows of the design at once: 90 MB
_LOSS = QuantileLoss()


@dataclass(frozen=True, slots=True, eq=False)
class FeederModel:
    """Coefficients, shares and errors of one feeder."""

    scale: Floats  # of the columns, shape ``(P,)``
    coefficients: Floats  # of the closed form, shape ``(1, W)``
    shares: Floats  # of closed form, sum of the devices and mean of the newest days, shape ``(3,)``
    residuals: Floats  # residuals of held-back forecasts, in levels, oldest first, shape ``(m, H)``
    follow: float  # share of the newest week's median residual that corrects a forecast
    a_day: int  # origins a day
    lag: int  # origins after which all that a forecast missed is known


@dataclass(frozen=True, slots=True, eq=False)
class FeederIssues:
    """Features, outcomes and the devices' sums of some origins."""

    rows: ProfileRows  # of the steps that are forecast
    load: Floats  # load of the feeder, NaN where unknown, shape ``(n, H)``
    expected: Floats  # sums of the devices' expected values, NaN where unknown, shape ``(n, H)``

    def __len__(self) -> int:
        return len(self.load)


def issues(
    record: ProfileRecord, origins: Ints, horizon: int, expected: Floats, skip: int = 0
) -> FeederIssues:
    """Return features and outcomes of past and of pending forecasts.

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


def fitted(
    past: FeederIssues, *, a_day: int = 4, lag: int = 4, blocks: int = BLOCKS
) -> FeederModel:
    """Return the model of a feeder.

    Args:
        past: Oldest first. An origin whose load is unknown teaches nothing.
        a_day: Origins a day.
        lag: Origins after which all that a forecast missed is known.
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
    whole, before = _coefficients(past, scale, parts)
    judged = parts >= blocks - len(before)
    newer = FeederIssues(_chosen(past.rows, judged), past.load[judged], past.expected[judged])
    own = np.concatenate(
        [
            own_forecast(_chosen(past.rows, parts == blocks - len(before) + at), scale, found)
            for at, found in enumerate(before)
        ]
    )
    found = _shares(own, newer)
    missed = newer.load - combined(own, newer, found)
    seen = np.isfinite(missed).any(axis=1)
    left = missed[seen] / newer.rows.level[seen, None]
    made = FeederModel(scale, whole, found, left, 0.0, a_day, lag)
    middle = _recent_middle(made, left)[: -made.lag, None]
    errors = [float(np.nanmean(np.abs(left - part * middle))) for part in FOLLOW]
    return replace(made, follow=FOLLOW[int(np.argmin(errors))])


def own_forecast(rows: ProfileRows, scale: Floats, coefficients: Floats) -> Floats:
    """Return the forecasts of the closed form in the load's unit, shape ``(n, H)``."""
    design, base = scaled_design(rows, scale), rows.base.ravel()
    found = prior_forecast(design, base, np.zeros(len(base), np.int64), coefficients)
    return np.asarray(found.reshape(rows.base.shape) * rows.level[:, None])


def combined(own: Floats, issued: FeederIssues, shares: Floats) -> Floats:
    """Return the forecast, shape ``(n, H)``; without a sum of the devices its share goes to the other parts.

    Args:
        own: Forecasts of the closed form.
        shares: Of the closed form, the devices and the mean of the newest days.
    """
    mean = issued.rows.base * issued.rows.level[:, None]
    rest = shares[0] + shares[2]
    alone = (shares[0] * own + shares[2] * mean) / rest if rest > 0.0 else own
    is_known = np.isfinite(issued.expected)
    expected = np.where(is_known, issued.expected, 0.0)
    return np.where(is_known, rest * alone + shares[1] * expected, alone)


def fan(
    model: FeederModel,
    now: FeederIssues,
    levels: Sequence[float] = LEVELS,
    recent: tuple[Floats, Floats] | None = None,
) -> Floats:
    """Return forecast and quantiles of every step in the load's unit, shape ``(n, H, 1 + levels)``.

    Args:
        recent: Shift and width of every origin, as ``recent_errors`` returns them; those after the
            model's newest residuals if left out.
    """
    own = own_forecast(now.rows, model.scale, model.coefficients)
    level = now.rows.level[:, None]
    if recent is None:
        shift, width = recent_errors(model, model.residuals)
        recent = shift[-1:], width[-1:]
    centre = combined(own, now, model.shares) + level * recent[0][:, None]
    spread = np.broadcast_to(level * recent[1][:, None], centre.shape)
    ends = profile_fan(centre, np.asarray(spread), _quantiles(model, levels))
    return np.concatenate([centre[:, :, None], ends], axis=2)


def recent_errors(model: FeederModel, residuals: Floats) -> tuple[Floats, Floats]:
    """Return the correction by the newest errors and the width of the interval, as known at each origin.

    Args:
        residuals: Of consecutive origins, in levels, those of the model first, shape ``(m, H)``.

    Returns:
        Shift in levels, and width: the root of the newest two weeks' mean error over that of all days
        of the model, and wider after origins of which more was outside the interval than was meant to be,
        narrower after others. Both of shape ``(m + lag,)``: the last are those of the origins that follow.
    """
    shift, width = _recent(model, residuals)
    ends = _quantiles(model, (LEVELS[0], LEVELS[-1]))
    meant, step = 1.0 - (LEVELS[-1] - LEVELS[0]), 0.0
    outside = np.full(len(residuals), meant)
    for at in range(len(width)):
        if at >= model.lag:
            step = float(np.clip(step + ADAPTED * (outside[at - model.lag] - meant), -1.5, 1.5))
        width[at] *= np.exp(step)
        if at < len(residuals) and (seen := np.isfinite(residuals[at])).any():
            missed = (residuals[at] - shift[at])[seen]
            low, high = (width[at] * ends[seen]).T
            outside[at] = np.mean((missed < low) | (missed > high))
    return shift, width


def _quantiles(model: FeederModel, levels: Sequence[float]) -> Floats:
    """Return the quantiles of the errors of held-back forecasts, in widths, shape ``(H, levels)``.

    Where few days were held back, hours beside each other count together.
    """
    shift, width = (one[: -model.lag, None] for one in _recent(model, model.residuals))
    around = min(3, FEW // len(model.residuals))
    return lead_quantiles((model.residuals - shift) / width, levels, around=around)


def _recent(model: FeederModel, residuals: Floats) -> tuple[Floats, Floats]:
    count, days = len(residuals) + model.lag, 14 * model.a_day
    width = np.ones(count)
    typical = max(float(np.nanmean(np.abs(model.residuals))), 1e-9)
    for at in range(2 * model.a_day + model.lag - 1, count):
        known = residuals[max(0, at + 1 - model.lag - days) : at + 1 - model.lag]
        width[at] = np.sqrt(np.nanmean(np.abs(known)) / typical)
    return model.follow * _recent_middle(model, residuals), np.clip(width, 0.5, 2.0)


def _recent_middle(model: FeederModel, residuals: Floats) -> Floats:
    """Return the median residual of the newest known week at each origin, shape ``(m + lag,)``."""
    found = np.zeros(len(residuals) + model.lag)
    for at in range(2 * model.a_day + model.lag - 1, len(found)):
        end = at + 1 - model.lag
        found[at] = np.nanmedian(residuals[max(0, end - 7 * model.a_day) : end])
    return found


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
    """Return the coefficients of the whole history, and for each newer part those of the parts before it.

    The weights of a pass are those of the whole history; only the last solution leaves parts out.
    """
    found: Floats | None = None
    statistics: list[Statistic | None] = []
    count = int(parts.max()) + 1
    for number in range(PASSES):
        statistics = [_statistic(past, scale, parts == part, found) for part in range(count)]
        step = RELAXATION if 1 < number < PASSES - 1 else 1.0
        found = _solved(statistics, found, step, past.load.shape[1])
    assert found is not None
    newer = range(count - count // 2, count)
    begun = [part for part in newer if any(one is not None for one in statistics[:part])]
    return found, [_solved(statistics[:part], None, 1.0, past.load.shape[1]) for part in begun]


def _statistic(
    past: FeederIssues, scale: Floats, mine: NDArray[np.bool_], found: Floats | None
) -> Statistic | None:
    rows = _chosen(past.rows, mine)
    targets = (past.load[mine] / rows.level[:, None] - rows.base).ravel()
    design, stages = scaled_design(rows, scale), np.zeros(len(targets), np.int64)
    made = stage_statistics(design, targets, stages, found, _LOSS).get(0)
    # a part counts by its rows
    return None if made is None else made.scaled(float(np.isfinite(targets).sum()))


def _solved(
    statistics: Sequence[Statistic | None], previous: Floats | None, step: float, horizon: int
) -> Floats:
    known = [one for one in statistics if one is not None]
    total = sum(known[1:], known[0])
    penalty = PENALTY * horizon / total.count
    return next_coefficients(previous, {0: total}, penalty, stages=1, step=step)


def _chosen(rows: ProfileRows, mine: NDArray[np.bool_]) -> ProfileRows:
    return ProfileRows(
        rows.design[mine], rows.names, rows.base[mine], rows.level[mine], rows.known[mine]
    )


def _shares(own: Floats, issued: FeederIssues) -> Floats:
    """Return the shares with the least mean absolute error; the devices get half if none of their sums is known."""
    level = issued.rows.level[:, None]
    mean = issued.rows.base * level
    paired = np.isfinite(issued.load) & np.isfinite(issued.expected)
    has_devices = bool(paired.any())
    seen = paired if has_devices else np.isfinite(issued.load)
    left = [((issued.load - one) / level)[seen] for one in (own, issued.expected, mean)]
    if not seen.any():
        return np.array([0.25, 0.5, 0.25])
    if not has_devices:
        left[1] = np.zeros_like(left[0])
    typical = float(np.abs(np.stack(left)).mean()) * issued.load.shape[1]

    def loss(shares: Floats) -> float:
        missed = np.abs(shares[0] * left[0] + shares[1] * left[1] + shares[2] * left[2]).sum()
        return float(missed + _EQUAL * typical * ((shares - 1.0 / 3.0) ** 2).sum())

    marks = np.arange(_SHARES + 1) / _SHARES
    tried = [np.array([a, b, max(1.0 - a - b, 0.0)]) for a in marks for b in marks if a + b <= 1.0]
    best: Floats = min((one for one in tried if has_devices or one[1] == 0.0), key=loss)
    return best if has_devices else 0.5 * best + np.array([0.0, 0.5, 0.0])
