"""Choose the forecast that a device serves: one of several candidates, or their weighted mean.

Candidates are compared on held-back values only: on values that none of the models had learned when
it forecast them. Errors are averaged within a day first and then over days, so that one long stretch
of readings is not decisive; days older than ``LONGEST`` are forgotten. The present choice stays
until another candidate is better by more than ``MARGIN``.

The weighted mean has weights proportional to the inverse squared errors of its members (Bates and
Granger 1969, doi:10.1057/jors.1969.103, without covariances: Timmermann 2006,
doi:10.1016/S1574-0706(05)01004-9, section 3.2); a member that is much worse than the best has none. Its
own error on a day is that of the weights of the days before, so it is judged as it would have been
served, and only from the day on which there are weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.wire.contract.method import Array

FLEET: Final = "fleet"
"""The model of the run's method, as the device adopted it last."""
TUNED: Final = "tuned"
"""A copy of that model, tuned on this device's windows; never sent."""
OWN: Final = "own"
"""A linear model of this device alone, in closed form; never sent."""
LAST_DAY: Final = "last day"
"""The same slots of the last known day."""
LAST_WEEK: Final = "last week"
"""The same slots of the last known week."""
MEAN: Final = "weighted mean"
"""The weighted mean of the candidates."""

CANDIDATES: Final = (FLEET, TUNED, OWN, LAST_DAY, LAST_WEEK)
"""The candidates in order: where two are equally good, the earlier one is preferred."""
COLUMNS: Final = (*CANDIDATES, MEAN)
"""The names of an error table's columns."""

LEAST: Final = 7
"""Number of held-back days below which a candidate is not compared."""
LONGEST: Final = 56
"""Number of newest held-back days that are kept."""
CLOSE: Final = 1.25
"""Largest ratio of a member's error to the least one in the weighted mean."""
MARGIN: Final = 0.01
"""Share of its error by which the present choice must be beaten."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldBackErrors:
    """Errors of the candidates on held-back values, by day.

    Attributes:
        days: Numbers of the days since 1970, rising, ``(n,)``.
        sums: Sum of the absolute errors, or pinball losses, of each column of ``COLUMNS``,
            ``(n, 6)``; NaN where a candidate had no forecast of some value of that day.
        counts: Number of values of each day, ``(n,)``.
    """

    days: Ints
    sums: Floats
    counts: Ints

    @classmethod
    def empty(cls) -> HeldBackErrors:
        """Return a table without a day."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, np.zeros((0, len(COLUMNS))), nothing)

    @property
    def errors(self) -> Floats:
        """Return the mean error of each column on each day, ``(n, 6)``; NaN where unknown."""
        return np.asarray(self.sums / np.maximum(self.counts, 1)[:, None])

    def arrays(self) -> dict[str, Array]:
        """Return the table as named arrays, to be saved; ``from_arrays`` is the inverse."""
        return {"days": self.days, "sums": self.sums, "counts": self.counts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> HeldBackErrors:
        """Rebuild from what ``arrays`` returned.

        Raises:
            KeyError: An array is missing.
            ValueError: The arrays do not fit each other.
        """
        days, sums, counts = arrays["days"], arrays["sums"], arrays["counts"]
        if days.ndim != 1 or counts.shape != days.shape or sums.shape != (len(days), len(COLUMNS)):
            raise ValueError("held-back errors: the arrays do not fit each other")
        return cls(days, sums, counts)

    def extended(
        self, forecasts: Floats, truth: Floats, days: Ints, levels: Sequence[float] = (0.5,)
    ) -> HeldBackErrors:
        """Add the errors of forecasts.

        Args:
            forecasts: Quantiles of every candidate, ``(5, n, horizon, levels)``; NaN for none.
            truth: Observed values, ``(n, horizon)``; NaN where none counts.
            days: Day of every value, ``(n, horizon)``.
            levels: Levels of the quantiles.

        Example:
            >>> truth, day = np.array([[1.0], [2.0]]), np.array([[7], [8]])
            >>> seen = np.full((5, 2, 1, 1), np.nan)
            >>> seen[0], seen[3] = 1.5, truth[:, :, None]
            >>> HeldBackErrors.empty().extended(seen, truth, day).errors[:, [0, 1, 3]].tolist()
            [[0.5, nan, 0.0], [0.5, nan, 0.0]]
        """
        table = self
        losses = _losses(forecasts, truth, levels)
        for day in np.unique(days[np.isfinite(truth)]).tolist():
            here = np.isfinite(truth) & (days == day)
            mean = blended(table.before(day).inverse_weights(), forecasts)
            own = [column[here].sum() for column in losses]
            own.append(_losses(mean[None], truth, levels)[0][here].sum())
            table = table._with_day(day, np.array(own), int(here.sum()))
        return table

    def before(self, day: int) -> HeldBackErrors:
        """Return the days before one."""
        return self._rows(self.days < day)

    def compared(self) -> dict[str, float]:
        """Return the mean error of each comparable column, over the days that all of them know.

        A column is compared if it knows at least ``LEAST`` days. While the comparable columns have
        fewer days than that in common, the one that knows the fewest is left out.
        """
        known = np.isfinite(self.sums)
        columns = [c for c in range(len(COLUMNS)) if known[:, c].sum() >= LEAST]
        while columns:
            common = known[:, columns].all(axis=1)
            if common.sum() >= LEAST:
                means = self.errors[common][:, columns].mean(axis=0).tolist()
                return {COLUMNS[c]: mean for c, mean in zip(columns, means, strict=True)}
            columns.remove(min(reversed(columns), key=lambda c: known[:, c].sum()))
        return {}

    def inverse_weights(self) -> dict[str, float]:
        """Return the weights of the mean, with sum 1; empty without comparable candidates.

        Candidates whose error exceeds the least one by more than the factor ``CLOSE`` have none.
        """
        errors = {name: error for name, error in self.compared().items() if name != MEAN}
        if not errors:
            return {}
        smallest = min(errors.values())
        close = {name: error for name, error in errors.items() if error <= CLOSE * smallest}
        shares = {n: 1.0 if e <= smallest else (smallest / e) ** 2 for n, e in close.items()}
        return {name: share / sum(shares.values()) for name, share in shares.items()}

    def _rows(self, which: NDArray[np.bool_]) -> HeldBackErrors:
        return HeldBackErrors(self.days[which], self.sums[which], self.counts[which])

    def _with_day(self, day: int, sums: Floats, count: int) -> HeldBackErrors:
        at = int(np.searchsorted(self.days, day))
        if at < len(self.days) and self.days[at] == day:
            total, counts = self.sums.copy(), self.counts.copy()
            total[at] += sums
            counts[at] += count
            return replace(self, sums=total, counts=counts)
        days = np.insert(self.days, at, day)
        grown = np.insert(self.sums, at, sums, axis=0)
        counts = np.insert(self.counts, at, count)
        return HeldBackErrors(days[-LONGEST:], grown[-LONGEST:], counts[-LONGEST:])


@dataclass(frozen=True, slots=True)
class ForecastChoice:
    """A choice between the candidates.

    Attributes:
        name: One of ``COLUMNS``.
        weights: Weight of each candidate used; at least 0, with sum 1.
        errors: Held-back error of each compared column; empty without enough days.
        days: Number of held-back days.
    """

    name: str = FLEET
    weights: Mapping[str, float] = field(default_factory=lambda: {FLEET: 1.0})
    errors: Mapping[str, float] = field(default_factory=dict)
    days: int = 0


def choose(
    table: HeldBackErrors, present: str = FLEET, available: Collection[str] = COLUMNS
) -> ForecastChoice:
    """Choose the candidate, or the weighted mean, with the least held-back error.

    A choice is beaten only by more than ``MARGIN``. A present choice that cannot be compared is
    replaced by the fleet's model; that too is beaten only by the margin. Without comparable
    candidates the fleet's model is chosen.

    Args:
        table: Held-back errors.
        present: Name of the present choice.
        available: Names that may be chosen now.

    Example:
        >>> seen = np.full((5, 7, 1, 1), np.nan)
        >>> seen[0], seen[3] = 2.0, 1.1
        >>> table = HeldBackErrors.empty().extended(seen, np.ones((7, 1)), np.arange(7)[:, None])
        >>> choose(table).name, choose(table.before(6)).name
        ('last day', 'fleet')
    """
    errors, days = table.compared(), len(table.days)
    rivals = {name: error for name, error in errors.items() if name in available}
    incumbent = present if present in rivals else FLEET
    if not rivals:
        return ForecastChoice(errors=errors, days=days)
    best = min(rivals, key=lambda name: rivals[name])
    is_beaten = incumbent not in rivals or rivals[best] < (1.0 - MARGIN) * rivals[incumbent]
    name = best if is_beaten else incumbent
    weights = table.inverse_weights() if name == MEAN else {name: 1.0}
    return ForecastChoice(name, weights, errors, days)


def blended(weights: Mapping[str, float], forecasts: Floats) -> Floats:
    """Return the weighted mean of the candidates that have a forecast, window by window.

    Args:
        weights: Weights by candidate, at least 0.
        forecasts: Quantiles of every candidate, ``(5, n, horizon, levels)``; NaN for none.

    Returns:
        Quantiles, ``(n, horizon, levels)``; NaN where no weighted candidate has a forecast.

    Example:
        >>> both = np.array([1.0, np.nan, 3.0, np.nan, np.nan]).reshape(5, 1, 1, 1)
        >>> blended({"fleet": 0.5, "own": 0.5}, both).item(), blended({"own": 0.2}, both).item()
        (2.0, 3.0)
    """
    shares = np.array([weights.get(name, 0.0) for name in CANDIDATES])
    known = np.asarray(np.isfinite(forecasts).all(axis=(2, 3)))
    used = shares[:, None] * known
    total = used.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        used = np.where(total > 0.0, used / total, np.nan)
    values = np.where(known[:, :, None, None], forecasts, 0.0)
    return np.asarray((used[:, :, None, None] * values).sum(axis=0))


def mean_loss(forecasts: Floats, truth: Floats, levels: Sequence[float] = (0.5,)) -> float:
    """Return the mean loss of one model's quantiles, ``(n, horizon, levels)``; NaN without values.

    >>> mean_loss(np.array([[[1.0]], [[4.0]]]), np.array([[2.0], [np.nan]]))
    1.0
    """
    known = np.isfinite(truth)
    losses = _losses(forecasts[None], truth, levels)[0][known]
    return float(losses.mean()) if losses.size else float("nan")


def _losses(forecasts: Floats, truth: Floats, levels: Sequence[float]) -> Floats:
    """Return the loss of every value, ``(candidates, n, horizon)``: absolute for one level.

    For several levels it is twice the mean pinball loss, which for the median alone is the absolute
    error.
    """
    error = truth[None, :, :, None] - forecasts
    q = np.asarray(levels, np.float64)
    return np.asarray(2.0 * np.maximum(q * error, (q - 1.0) * error).mean(axis=-1))
