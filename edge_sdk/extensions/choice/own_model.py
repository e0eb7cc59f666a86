"""Fit a linear model on one device's own windows, in closed form, independent of the fleet.

Inputs are the changes of the window to its newest value, that value, the other channels' newest
values, the change since the same slots a day and a week before the target, and the time of day and
week of the origin. The model is ridge regression of the target's change, re-weighted towards the least
absolute error; the penalty is the one with the least absolute error on the newest windows, which the
trial solutions did not use. A fit takes a few passes over the windows and no training steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.forecast import WEEK, rows_of, seasonal_naive
from edge_sdk.forecasting.ridge import outputs_of, product, ridge_solution
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.method import Array

WINDOWS = 2048
"""Most windows of a fit: the newest ones."""
STEPS = 48
"""Steps of the horizon above which no model is fitted: every step is solved apart."""
FEWEST = 96
"""Windows below which no model is fitted."""
ROWS = 168
"""Most rows of the window that are inputs: the newest ones."""
PENALTIES = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridge penalties per window that are tried."""
PASSES = 3
"""Re-weighted solutions after the first, towards the least absolute error."""
TAIL = 0.2
"""Share of the windows, the newest ones, that choose the penalty."""
BLOCK = 64
"""Windows whose inputs are in memory at once in float64."""
FLOOR = 0.02
"""Error below which a window's weight no longer rises, in units of the scale."""
REACH = 6.0
"""Bound of a standardised input."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnModel:
    """A fitted model."""

    centre: Floats  # mean of each input, ``(P,)``
    spread: Floats  # standard deviation of each input, ``(P,)``
    coefficients: Floats  # of the standardised inputs and a constant, ``(horizon, P + 1)``
    penalty: float  # chosen penalty per window

    def arrays(self) -> dict[str, Array]:
        """Return the model as named arrays, to be saved; ``from_arrays`` is the inverse."""
        penalty = np.array(self.penalty)
        names = {"centre": self.centre, "spread": self.spread, "coefficients": self.coefficients}
        return {**names, "penalty": penalty}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> OwnModel:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: The arrays do not fit each other, or have values that no fit gives.
        """
        centre, spread, found = (arrays[name] for name in ("centre", "spread", "coefficients"))
        penalty = float(arrays["penalty"])
        if centre.ndim != 1 or spread.shape != centre.shape or found.ndim != 2:
            raise ValueError("own model: the arrays do not fit each other")
        if found.shape[1] != len(centre) + 1:
            raise ValueError(f"own model: {found.shape[1]} coefficients of {len(centre)} inputs")
        if not all(np.isfinite(one).all() for one in (centre, spread, found, penalty)):
            raise ValueError("own model: a number is not finite")
        if not (spread > 0.0).all():
            raise ValueError("own model: a deviation is not above 0")
        return cls(centre, spread, found, penalty)

    def forecast(self, frame: ChannelFrame, origins: Ints) -> Floats:
        """Forecast from origins, in the series' unit, ``(n, horizon)``; NaN where an input is.

        A model of another bundle, whose inputs differ in number, forecasts NaN.
        """
        raw = inputs(frame, origins)
        shape = (frame.window.horizon, raw.shape[1] + 1)
        if self.coefficients.shape != shape or len(self.centre) != raw.shape[1]:
            return np.full((len(origins), frame.window.horizon), np.nan)
        change = outputs_of(self.design(raw), self.coefficients)
        return np.asarray(frame.last[origins, None] + frame.scale.width * change)

    def design(self, raw: Floats) -> Floats:
        """Return the standardised inputs and a constant, ``(n, P + 1)``."""
        standard = np.clip((raw - self.centre) / self.spread, -REACH, REACH)
        return np.concatenate([standard, np.ones((len(raw), 1))], axis=1)


def fit(frame: ChannelFrame, origins: Ints) -> OwnModel | None:
    """Fit a model on windows; None if there are fewer than ``FEWEST``, or more steps than ``STEPS``.

    Args:
        origins: Windows with observed targets, oldest first.
    """
    if frame.window.horizon > STEPS:
        return None
    origins = origins[-WINDOWS:]
    design, change = _rows(frame, origins)
    if len(design) < FEWEST:
        return None
    raw = design[:, :-1]
    centre = raw.mean(axis=0, dtype=np.float64)
    spread = raw.std(axis=0, dtype=np.float64)
    spread = np.where(spread > 1e-9, spread, 1.0)
    for some in _blocks(len(design)):
        raw[some] = np.clip((raw[some] - centre) / spread, -REACH, REACH)
    early = len(design) - max(1, round(TAIL * len(design)))
    gram, cross = _sums(design[:early], change[:early])
    tried = {
        penalty: np.abs(
            change[early:] - _changes(design[early:], ridge_solution(gram, cross, penalty * early))
        ).mean()
        for penalty in PENALTIES
    }
    penalty = min(tried, key=lambda one: tried[one])
    weight = penalty * len(design)
    found = ridge_solution(*_sums(design, change), weight)
    for _ in range(PASSES):
        weights = _weights(change - _changes(design, found))
        for output in range(len(found)):
            sums = _sums(design, change[:, [output]], weights[:, [output]])
            found[output] = ridge_solution(*sums, weight)[0]
    return OwnModel(centre, spread, found, penalty)


def _weights(residuals: Floats) -> Floats:
    """Return weights of mean 1 under which least squares takes a step towards the absolute error."""
    weights = 0.5 / np.maximum(np.abs(residuals), FLOOR)
    return np.asarray(weights / np.maximum(weights.mean(axis=0), 1e-300))


def _rows(frame: ChannelFrame, origins: Ints) -> tuple[NDArray[np.float32], Floats]:
    change = (frame.truth(origins) - frame.last[origins, None]) / frame.scale.width
    known = np.asarray(np.isfinite(change).all(axis=1))
    design = np.ones((len(origins), inputs(frame, origins[:1]).shape[1] + 1), np.float32)
    for some in _blocks(len(origins)):
        raw = inputs(frame, origins[some])
        known[some] &= np.isfinite(raw).all(axis=1)
        design[some, :-1] = raw
    return (design, change) if known.all() else (design[known], change[known])


def _blocks(count: int) -> Iterator[slice]:
    """Yield slices of rows whose float64 copies are in memory at once."""
    for start in range(0, count, BLOCK):
        yield slice(start, start + BLOCK)


def _sums(
    design: NDArray[np.float32], goals: Floats, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return Σ w φφᵀ and Σ w φ y in float64."""
    wide = design.shape[1]
    gram, cross = np.zeros((wide, wide)), np.zeros((goals.shape[1], wide))
    for some in _blocks(len(design)):
        rows = design[some].astype(np.float64)
        heavy = rows if weights is None else rows * weights[some]
        gram += product(rows, heavy)
        cross += product(goals[some], heavy)
    return gram, cross


def _changes(design: NDArray[np.float32], coefficients: Floats) -> Floats:
    """Return the forecast changes of rows, ``(n, horizon)``."""
    parts = [outputs_of(design[b].astype(np.float64), coefficients) for b in _blocks(len(design))]
    return np.concatenate(parts)


def inputs(frame: ChannelFrame, origins: Ints) -> Floats:
    """Return the inputs of windows, not standardised, ``(n, P)``; NaN where unknown."""
    if not len(origins):
        return np.zeros((0, 1))
    horizon, step = frame.window.horizon, frame.window.step_seconds
    scaled = frame.scale.shrink(frame.last)
    newest = scaled[origins, None]
    back = np.arange(min(frame.window.lookback, ROWS) - 1, 0, -1)
    rows = origins[:, None] - back
    lags = np.where(rows >= 0, scaled[np.maximum(rows, 0)], np.nan) - newest
    seasons = [
        seasonal_naive(scaled, origins, horizon, rows_of(period, step)) - newest
        for period in (DAY, WEEK)
    ]
    others = frame.channels[origins].astype(np.float64)
    times = frame.times[origins]
    turn = 2.0 * np.pi * (times % DAY) / DAY
    waves = [wave(k * turn)[:, None] for k in (1, 2, 3) for wave in (np.sin, np.cos)]
    weekdays = ((times // DAY + 3) % 7)[:, None] == np.arange(6)
    columns = [lags, newest, others, *seasons, *waves, weekdays.astype(np.float64)]
    return np.concatenate(columns, axis=1)
