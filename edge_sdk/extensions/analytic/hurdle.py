"""Forecast quantiles of a value that is often exactly 0: its probability of 0, and quantiles of the rest.

A charging site is idle most of the time, so a quantile is 0 wherever its level is at most the
probability of 0. Above it, level q of the whole is level (q - p) / (1 - p) of the positive values
(Cragg, "Some statistical models for limited dependent variables", 1971). The probability is that of
boosted trees on the log-likelihood (Friedman, "Greedy function approximation: a gradient boosting
machine", 2001, section 4.5), the rest are trees of ``trees`` on the positive rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.trees import (
    BINS,
    DEEPEST,
    Bins,
    Floats,
    Ints,
    Rows,
    TreeForm,
    Trees,
    boosted,
    grown,
)

ZERO = TreeForm(200, 5, 0.1, 1.0, 20_000, 1.0, 5.0, is_capped=True)
"""Trees of the probability: of all rows and features, which lowered the loss most."""
POSITIVE = TreeForm(60, 5, 0.12, 1.0, 20_000, 1.0, 2.0, is_capped=True)
"""Trees of each level of the positive values."""


@dataclass(frozen=True, slots=True)
class HurdleForm:
    """Settings of the two parts."""

    zero: TreeForm = ZERO  # trees of the probability of 0; its ``ballast`` is in units of p (1 - p)
    positive: TreeForm = POSITIVE
    # levels of the positive values, rising; those between are interpolated
    levels: tuple[float, ...] = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)


@dataclass(frozen=True, slots=True, eq=False)
class Hurdle:
    """Two fitted parts."""

    start: float  # log odds of a positive value before the trees
    odds: Trees  # leaves, added to the log odds
    # trees of the positive values, one ensemble for each of ``levels``; none if no row was positive
    positive: tuple[Trees, ...]
    levels: tuple[float, ...]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parts as named arrays, to be saved; ``from_arrays`` is the inverse but for rounding.

        Thresholds and values are rounded to float32. There must be positive trees.
        """
        found: dict[str, NDArray[Any]] = {"numbers": np.array([self.start, *self.levels])}
        for name, trees in (("odds", (self.odds,)), ("positive", self.positive)):
            found |= {
                f"{name}_edges": np.stack([one.edges for one in trees]).astype(np.float32),
                f"{name}_asked": np.stack([one.asked for one in trees]).astype(np.uint16),
                f"{name}_above": np.stack([one.above for one in trees]).astype(np.uint8),
                f"{name}_values": np.stack([one.values for one in trees]).astype(np.float32),
            }
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Hurdle:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: The arrays do not fit each other, or have values that no fit gives.
        """
        numbers = arrays["numbers"]
        if numbers.ndim != 1 or len(numbers) < 3 or not np.isfinite(numbers).all():
            raise ValueError(
                "hurdle: the start and the levels are not three finite numbers or more"
            )
        start, *levels = numbers.tolist()
        if not 0.0 < levels[0] <= levels[-1] < 1.0 or (np.diff(levels) <= 0.0).any():
            raise ValueError(f"hurdle: levels {levels} do not rise between 0 and 1")
        (odds,), positive = (
            _trees_of(arrays, name, count)
            for name, count in (("odds", 1), ("positive", len(levels)))
        )
        if len({len(one.edges) for one in (odds, *positive)}) != 1:
            raise ValueError("hurdle: trees of different numbers of features")
        return cls(start, odds, positive, tuple(levels))

    def zero(self, rows: Rows) -> Floats:
        """Return the probability of 0 of each row, shape ``(n,)``."""
        if not self.positive:
            return np.ones(len(rows))
        return _zero(self.start + self.odds.predicted(rows))

    def quantiles(self, rows: Rows, levels: Sequence[float]) -> Floats:
        """Return quantiles of each row, not negative and not crossing, shape ``(n, levels)``.

        >>> rows = np.repeat([[0.0], [1.0]], 200, axis=0)
        >>> often = np.concatenate([np.tile([0.0, 0.0, 0.0, 2.0], 50), np.full(200, 3.0)])
        >>> form = HurdleForm(TreeForm(depth=1, rate=0.5), TreeForm(depth=1, ballast=0.0))
        >>> made = hurdle(rows, often, form)
        >>> made.quantiles(np.array([[0.0], [1.0]]), (0.5, 0.9)).round(1).tolist()
        [[0.0, 2.0], [3.0, 3.0]]
        """
        found = np.zeros((len(rows), len(levels)))
        if not self.positive:
            return found
        zero = self.zero(rows)
        fan = np.stack([one.predicted(rows) for one in self.positive], axis=1)
        fan = np.sort(np.maximum(fan, 0.0), axis=1)
        grid, every = np.asarray(self.levels), np.arange(len(rows))
        for number, level in enumerate(levels):
            within = np.clip((level - zero) / np.maximum(1.0 - zero, 1e-12), grid[0], grid[-1])
            low = np.clip(np.searchsorted(grid, within, side="right") - 1, 0, len(grid) - 2)
            part = (within - grid[low]) / (grid[low + 1] - grid[low])
            lower, upper = fan[every, low], fan[every, low + 1]
            value = np.minimum(lower + part * (upper - lower), upper)
            found[:, number] = np.where(level <= zero, 0.0, value)
        return found


def hurdle(
    rows: Rows,
    targets: Floats,
    form: HurdleForm | None = None,
    *,
    seed: int = 0,
    turn: Callable[[], None] | None = None,
) -> Hurdle:
    """Fit both parts.

    Args:
        rows: Features, shape ``(n, k)``; finite.
        targets: At least 0, shape ``(n,)``.
        seed: Of the rows and features that each tree sees.
        turn: Called after every tree of the probability and every level; may raise to stop.

    Raises:
        ValueError: A target below 0, or fewer than two levels, or levels that do not rise.
    """
    form = form or HurdleForm()
    if (targets < 0.0).any():
        raise ValueError(f"hurdle: a target of {targets.min():g}, at least 0 is needed")
    if len(form.levels) < 2 or (np.diff(form.levels) <= 0.0).any():
        raise ValueError(f"hurdle: levels {form.levels}, at least two that rise are needed")
    some = targets > 0.0
    start, odds = _odds(rows, some, form.zero, seed, turn)
    positive = []
    for level in form.levels if some.any() else ():
        made = boosted(rows[some], targets[some], form.positive, level=level, seed=seed)
        positive.append(made)
        if turn is not None:
            turn()
    return Hurdle(start, odds, tuple(positive), form.levels)


def _trees_of(arrays: Mapping[str, NDArray[Any]], name: str, count: int) -> tuple[Trees, ...]:
    """Return the ensembles of one part of a saved model, ``count`` of them.

    Raises:
        KeyError, ValueError: As ``Hurdle.from_arrays``.
    """
    edges, asked, above, values = (
        arrays[f"{name}_{part}"] for part in ("edges", "asked", "above", "values")
    )
    fits = edges.ndim == asked.ndim == values.ndim == 3 and asked.shape == above.shape
    if not fits or {len(edges), len(asked), len(values)} != {count}:
        raise ValueError(f"hurdle: the arrays of {name} do not fit each other")
    if asked.shape[2] > DEEPEST:  # before 2 to its power: the record must not choose that
        raise ValueError(f"hurdle: trees of depth {asked.shape[2]}, at most {DEEPEST}")
    if values.shape[1:] != (asked.shape[1], 2 ** asked.shape[2]):
        raise ValueError(f"hurdle: the leaves of {name} do not fit its questions")
    if {asked.dtype.kind, above.dtype.kind} - {"u", "i"} or (asked < 0).any() or (above < 0).any():
        raise ValueError(f"hurdle: questions of {name} are not whole numbers of at least 0")
    if asked.size and (asked.max() >= edges.shape[1] or above.max() >= edges.shape[2]):
        raise ValueError(f"hurdle: a question of {name} about an unknown feature or threshold")
    if not np.isfinite(values).all() or np.isnan(edges).any():
        raise ValueError(f"hurdle: a value of {name} is not finite, or a threshold not a number")
    wide = edges.astype(np.float64), asked.astype(np.int64), above.astype(np.int64)
    return tuple(Trees(*parts) for parts in zip(*wide, values.astype(np.float64), strict=True))


def _zero(log_odds: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(log_odds, -30.0, 30.0))))


def _odds(
    rows: Rows,
    some: NDArray[np.bool_],
    form: TreeForm,
    seed: int,
    turn: Callable[[], None] | None,
) -> tuple[float, Trees]:
    """Boost the log odds of ``some`` by Newton steps; return their start, and the trees."""
    positive = int(some.sum())
    start = float(np.log((positive + 0.5) / (len(rows) - positive + 0.5)))
    reached = np.full(len(rows), start)

    def derivatives() -> tuple[Floats, Floats]:
        zero = _zero(reached)
        return some - (1.0 - zero), zero * (1.0 - zero)

    def questions(seen: Bins, rows_seen: Ints) -> tuple[Ints, Ints]:
        slope, curve = derivatives()
        return _questions(seen, slope[rows_seen], curve[rows_seen], form)

    def values(leaves: Ints) -> Floats:
        up, size = (np.bincount(leaves, sums, 2**form.depth) for sums in derivatives())
        found: Floats = form.rate * up / np.maximum(size + form.ballast, 1e-12)
        np.add(reached, found[leaves], out=reached)
        if turn is not None:
            turn()
        return found

    return start, grown(rows, form, questions, values, seed=seed)


def _questions(seen: Bins, slope: Floats, curve: Floats, form: TreeForm) -> tuple[Ints, Ints]:
    leaves = np.zeros(seen.shape[1], np.int64)
    asked, above = np.zeros(form.depth, np.int64), np.zeros(form.depth, np.int64)
    for number in range(form.depth):
        shape, size = (1 << number, BINS), BINS << number
        gains = np.empty((len(seen), BINS - 1))
        for feature, column in enumerate(seen):  # one at a time: little memory
            places = column + leaves * BINS
            up, heavy = (
                np.bincount(places, values, size).reshape(shape).cumsum(axis=1)
                for values in (slope, curve)
            )
            gain = up**2 / (heavy + form.ballast + 1e-12)
            rest = heavy[:, -1:] - heavy
            gain += (up[:, -1:] - up) ** 2 / (rest + form.ballast + 1e-12)
            gains[feature] = gain.sum(axis=0)[:-1]
        asked[number], above[number] = divmod(int(np.argmax(gains)), BINS - 1)
        leaves = 2 * leaves + (seen[asked[number]] > above[number])
    return asked, above
