"""Choose the forecast that a device serves: one of several candidates, or their weighted mean.

Candidates are compared on held-back values only: on values that none of the models had learned when
it forecast them. Errors are averaged within a day first and then over days, so that one long stretch
of readings is not decisive; days older than ``LONGEST`` are forgotten. The present choice stays
until another candidate is better by more than ``MARGIN``. Over a long horizon every block of steps has
a table and a choice of its own: the newest value matters for the next hour, and hardly for tomorrow.

The weighted mean has weights proportional to the inverse squared errors of its members (Bates and
Granger 1969, doi:10.1057/jors.1969.103, without covariances: Timmermann 2006,
doi:10.1016/S1574-0706(05)01004-9, section 3.2); a member that is much worse than the best has none. Its
own error on a day is that of the weights of the days before, so it is judged as it would have been
served, and only from the day on which there are weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import COMMON, FLEET, TUNED
from edge_sdk.protocol.contract.method import Array

LAST_GOOD: Final = "last good"
"""The fleet's model of an earlier day on which it was good; a choice only after an alarm."""
OWN: Final = "own"
"""A linear model of this device alone, in closed form; never sent."""
TREES: Final = "trees"
"""A wider model of this device alone, and trees fitted to its residuals; never sent."""
FLEET_TREES: Final = "fleet and trees"
"""The model of the run's method, and trees of this device fitted to its residuals; never sent."""
BLEND: Final = "blend"
"""The mean of models, trees and seasons with the least loss on blocks of the whole record."""
LAST_DAY: Final = "last day"
"""The same slots of the last known day."""
LAST_WEEK: Final = "last week"
"""The same slots of the last known week."""
MEAN: Final = "weighted mean"
"""The weighted mean of the candidates."""

BY_STEP: Final = "by step"
"""Not a candidate: different choices for the blocks of steps."""

CANDIDATES: Final = (
    FLEET,
    COMMON,
    TUNED,
    LAST_GOOD,
    OWN,
    TREES,
    FLEET_TREES,
    BLEND,
    LAST_DAY,
    LAST_WEEK,
)
"""The candidates in order: where two are equally good, the earlier one is preferred."""
COLUMNS: Final = (*CANDIDATES, MEAN)
"""The names of an error table's columns."""
USUAL: Final = tuple(name for name in COLUMNS if name != LAST_GOOD)
"""The columns that are compared before the first alarm."""

LEAST: Final = 7
"""Number of held-back days below which a candidate is not compared."""
PROFILES: Final = 21
"""``LEAST`` for profiles: their prior is good from the first day, so a week or two decides nothing."""
LONGEST: Final = 56
"""Number of newest held-back days that are kept."""
CLOSE: Final = 1.25
"""Largest ratio of a member's error to the least one in the weighted mean."""
MARGIN: Final = 0.01
"""Share of its error by which the present choice must be beaten."""
ONE_BLOCK: Final = 6
"""Number of steps below which a horizon has one choice for all of them."""


def blocks_of(horizon: int) -> tuple[slice, ...]:
    """Return the blocks of steps with a choice of their own, each twice as long as those before it.

    >>> blocks_of(4), [block.stop for block in blocks_of(24)], [b.stop for b in blocks_of(96)]
    ((slice(0, 4, None),), [1, 3, 7, 24], [1, 3, 7, 15, 31, 96])
    """
    if horizon < ONE_BLOCK:
        return (slice(0, horizon),)
    edges = [0, 1]
    while 2 * edges[-1] + 1 <= horizon // 2:
        edges.append(2 * edges[-1] + 1)
    return tuple(slice(a, b) for a, b in pairwise((*edges, horizon)))


@dataclass(frozen=True, slots=True, eq=False)
class HeldBackErrors:
    """Errors of the candidates on held-back values, by day."""

    days: Ints  # numbers of the days since 1970, rising, ``(n,)``
    # sum of the absolute errors, or pinball losses, of each column of ``COLUMNS`` in each block of
    # steps, ``(n, blocks, columns)``; NaN where a candidate had no forecast of some value of that
    # day
    sums: Floats
    counts: Ints  # number of values of each day and block, ``(n, blocks)``

    @classmethod
    def empty(cls, blocks: int = 1) -> HeldBackErrors:
        """Return a table without a day."""
        days, counts = np.zeros(0, np.int64), np.zeros((0, blocks), np.int64)
        return cls(days, np.zeros((0, blocks, len(COLUMNS))), counts)

    @property
    def blocks(self) -> int:
        return int(self.counts.shape[1])

    @property
    def errors(self) -> Floats:
        """Return the mean error of each column on each day, ``(n, columns)``; NaN where unknown."""
        known = self.counts.sum(axis=1)
        return np.asarray(self.sums.sum(axis=1) / np.maximum(known, 1)[:, None])

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns to be saved: the last good model's if there was one."""
        is_known = np.isfinite(self.sums[:, :, COLUMNS.index(LAST_GOOD)]).any()
        return COLUMNS if is_known else USUAL

    def arrays(self) -> dict[str, Array]:
        """Return the table as named arrays, to be saved; ``from_arrays`` is the inverse."""
        which = [COLUMNS.index(name) for name in self.columns]
        return {"days": self.days, "sums": self.sums[:, :, which], "counts": self.counts}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], columns: Sequence[str] = COLUMNS
    ) -> HeldBackErrors:
        """Rebuild from the result of ``arrays``.

        Args:
            arrays: Saved arrays; those from before there were blocks have one.
            columns: Names of the saved columns; candidates that are not among them are unknown.
        """
        days, sums, counts = arrays["days"], arrays["sums"], arrays["counts"]
        if counts.ndim == 1:
            sums, counts = sums[:, None], counts[:, None]
        shape = (len(days), counts.shape[-1], len(columns))
        if days.ndim != 1 or counts.ndim != 2 or not counts.shape[1] or sums.shape != shape:
            raise ValueError("held-back errors: the arrays do not fit each other")
        if len(days) != len(counts) or {days.dtype.kind, counts.dtype.kind} != {"i"}:
            raise ValueError(
                "held-back errors: days and counts are not whole numbers of one length"
            )
        if (np.diff(days) <= 0).any() or (counts < 0).any() or (sums < 0.0).any():
            raise ValueError("held-back errors: days fall, or a sum or count is below 0")
        if set(columns) - set(COLUMNS) or np.isinf(sums).any():
            raise ValueError("held-back errors: an unknown candidate, or a sum that is infinite")
        found = np.full((*counts.shape, len(COLUMNS)), np.nan)
        found[:, :, [COLUMNS.index(name) for name in columns]] = sums
        return cls(days[-LONGEST:], found[-LONGEST:], counts[-LONGEST:])

    def extended(
        self, forecasts: Floats, truth: Floats, days: Ints, levels: Sequence[float] = (0.5,)
    ) -> HeldBackErrors:
        """Add the errors of forecasts.

        Args:
            forecasts: Quantiles of every candidate, ``(candidates, n, horizon, levels)``; NaN for
                none.
            truth: Observed values, ``(n, horizon)``; NaN where none counts.
            days: Day of every value, ``(n, horizon)``.

        Raises:
            ValueError: A horizon of another number of blocks.

        >>> truth, day = np.array([[1.0], [2.0]]), np.array([[7], [8]])
        >>> seen = np.full((len(CANDIDATES), 2, 1, 1), np.nan)
        >>> seen[0], seen[-2] = 1.5, truth[:, :, None]
        >>> HeldBackErrors.empty().extended(seen, truth, day).errors[:, [0, 1, -3]].tolist()
        [[0.5, nan, 0.0], [0.5, nan, 0.0]]
        """
        spans = blocks_of(truth.shape[1])
        if len(spans) != self.blocks:
            raise ValueError(f"a table of {self.blocks} blocks of steps, a horizon of {len(spans)}")
        table, known = self, np.isfinite(truth)
        losses = _losses(forecasts, truth, levels)
        for day in np.unique(days[known]).tolist():
            some = (known & (days == day)).any(axis=1)
            here = known[some] & (days[some] == day)
            before, sums, counts = table.before(day), [], []
            for number, span in enumerate(spans):
                mean = blended(before.block(number).inverse_weights(), forecasts[:, some, span])
                own = np.where(here[:, span], losses[:, some, span], 0.0).sum(axis=(1, 2))
                missed = _losses(mean[None], truth[some, span], levels)[0]
                sums.append([*own, missed[here[:, span]].sum()])
                counts.append(int(here[:, span].sum()))
            table = table._with_day(day, np.array(sums), np.array(counts))
        return table

    def before(self, day: int) -> HeldBackErrors:
        which = self.days < day
        return HeldBackErrors(self.days[which], self.sums[which], self.counts[which])

    def since(self, day: int) -> HeldBackErrors:
        which = self.days >= day
        return HeldBackErrors(self.days[which], self.sums[which], self.counts[which])

    def block(self, number: int) -> HeldBackErrors:
        """Return the table of one block of steps; only of days with a value in it."""
        some = self.counts[:, number] > 0
        one = slice(number, number + 1)
        return HeldBackErrors(self.days[some], self.sums[some, one], self.counts[some, one])

    def compared(self, least: int = LEAST, names: Collection[str] = USUAL) -> dict[str, float]:
        """Return the mean error of each comparable column, over the days that all of them know.

        A column is compared if it knows at least so many days. While the comparable columns have
        fewer days than that in common, the one that knows the fewest is left out.
        """
        errors = self.errors
        known = np.isfinite(errors)
        named = [c for c, name in enumerate(COLUMNS) if name in names]
        columns = [c for c in named if known[:, c].sum() >= least]
        while columns:
            common = known[:, columns].all(axis=1)
            if common.sum() >= least:
                means = errors[common][:, columns].mean(axis=0).tolist()
                return {COLUMNS[c]: mean for c, mean in zip(columns, means, strict=True)}
            columns.remove(min(reversed(columns), key=lambda c: known[:, c].sum()))
        return {}

    def inverse_weights(self, least: int = LEAST) -> dict[str, float]:
        """Return the weights of the mean, with sum 1; empty without comparable candidates.

        Candidates whose error exceeds the least one by more than the factor ``CLOSE`` have none, nor
        has the last good model.
        """
        errors = {name: error for name, error in self.compared(least).items() if name != MEAN}
        if not errors:
            return {}
        smallest = min(errors.values())
        close = {name: error for name, error in errors.items() if error <= CLOSE * smallest}
        shares = {n: 1.0 if e <= smallest else (smallest / e) ** 2 for n, e in close.items()}
        return {name: share / sum(shares.values()) for name, share in shares.items()}

    def _with_day(self, day: int, sums: Floats, counts: Ints) -> HeldBackErrors:
        at = int(np.searchsorted(self.days, day))
        if at < len(self.days) and self.days[at] == day:
            total, known = self.sums.copy(), self.counts.copy()
            total[at] += sums
            known[at] += counts
            return replace(self, sums=total, counts=known)
        days = np.insert(self.days, at, day)
        grown = np.insert(self.sums, at, sums, axis=0)
        known = np.insert(self.counts, at, counts, axis=0)
        return HeldBackErrors(days[-LONGEST:], grown[-LONGEST:], known[-LONGEST:])


def blended(weights: Mapping[str, float], forecasts: Floats) -> Floats:
    """Return the weighted mean of the candidates that have a forecast, window by window.

    Args:
        weights: Weights by candidate, at least 0.
        forecasts: Quantiles of every candidate, ``(candidates, n, horizon, levels)``; NaN for none.

    Returns:
        Quantiles, ``(n, horizon, levels)``; NaN where no weighted candidate has a forecast.

    >>> both = np.full((len(CANDIDATES), 1, 1, 1), np.nan)
    >>> both[CANDIDATES.index("fleet")], both[CANDIDATES.index("own")] = 1.0, 3.0
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
