"""Boost symmetric regression trees on the residuals of a model that is linear in its features.

Every tree asks the same question at all nodes of a level ("is feature f above its threshold?"), so a
tree of depth D is D questions and 2^D values (Prokhorenkova et al., "CatBoost", 2018, section 4).
Questions are chosen by the signs of the residuals, values are quantiles of the residuals in a leaf
(Friedman, "Greedy function approximation: a gradient boosting machine", 2001, algorithm 3), so the
loss is the pinball loss, or the absolute error at one half. Numpy alone; nothing is transmitted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.float64] | NDArray[np.float32]
Bins = NDArray[np.uint8]

BINS = 32
"""Largest number of bins of a feature; thresholds are quantiles of the rows that are learnt from."""

DEEPEST = 16
"""Depth of the deepest tree that a saved record may contain."""


@dataclass(frozen=True, slots=True)
class TreeForm:
    """Settings of the boosting."""

    trees: int = 120
    depth: int = 4
    rate: float = 0.08  # share of a leaf's quantile that is added
    rows: float = 0.4  # share of the rows that a tree's questions are chosen on
    most: int = 4000  # largest number of them; leaf values are of all rows
    features: float = 0.4  # share of the features that a tree may ask about
    # windows without a sign that each leaf is thought to hold; bounds small leaves
    ballast: float = 10.0
    # whether a value that more than one bin's share of the rows have counts as one bin's share;
    # otherwise a feature that is 0 in most rows has few thresholds above 0
    is_capped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A boosted ensemble."""

    edges: Floats  # thresholds of every feature, shape ``(k, BINS - 1)``, padded with infinity
    asked: Ints  # feature of every question, shape ``(trees, depth)``
    above: Ints  # threshold of every question, by its place in ``edges``, shape ``(trees, depth)``
    values: Floats  # value of every leaf, shape ``(trees, 2 ** depth)``

    def predicted(self, rows: Rows) -> Floats:
        """Return the sum of the trees' leaves for each row, shape ``(n,)``."""
        return self.of_bins(binned(rows, self.edges))

    def of_bins(self, bins: Bins) -> Floats:
        """Return the sum of the trees' leaves for binned rows, shape ``(n,)``."""
        found = np.zeros(len(bins))
        columns = np.ascontiguousarray(bins.T)
        for asked, above, values in zip(self.asked, self.above, self.values, strict=True):
            found += values[leaves_of(columns, asked, above)]
        return found


def boosted(
    rows: Rows, targets: Floats, form: TreeForm, *, level: float = 0.5, seed: int = 0
) -> Trees:
    """Grow trees on targets, by convention the residuals of another model.

    Args:
        rows: Features, shape ``(n, k)``; finite.
        targets: Shape ``(n,)``.
        level: Quantile level; one half is the absolute error.
        seed: Of the rows and features that each tree sees.

    >>> rows = np.linspace(-1.0, 1.0, 200)[:, None]
    >>> form = TreeForm(depth=1, features=1.0, ballast=0.0)
    >>> made = boosted(rows, np.sign(rows[:, 0]), form)
    >>> made.predicted(np.array([[-0.5], [0.5]])).round(2).tolist()
    [-1.0, 1.0]
    """
    left = np.array(targets, np.float64)

    def questions(seen: Bins, rows_seen: Ints) -> tuple[Ints, Ints]:
        return _questions(seen, left[rows_seen] > 0.0, level, form)

    def values(leaves: Ints) -> Floats:
        found = form.rate * _quantiles(left, leaves, 2**form.depth, level, form.ballast)
        np.subtract(left, found[leaves], out=left)
        return found

    return grown(rows, form, questions, values, seed=seed)


def grown(
    rows: Rows,
    form: TreeForm,
    questions: Callable[[Bins, Ints], tuple[Ints, Ints]],
    values: Callable[[Ints], Floats],
    *,
    seed: int = 0,
) -> Trees:
    """Grow trees one after another, each on its own sample of rows and features.

    Args:
        rows: Features, shape ``(n, k)``; finite.
        questions: Chooses a tree's questions from the sampled columns, shape ``(features, rows)``,
            and the indices of the sampled rows; returns a place among the columns and a bin for each level.
        values: Returns what the tree adds to each of its ``2**depth`` leaves, from the leaf of every row.
    """
    edges = thresholds(rows, is_capped=form.is_capped)
    columns = np.ascontiguousarray(binned(rows, edges).T)
    features, count = columns.shape
    draw = np.random.Generator(np.random.Philox(seed))
    asked = np.zeros((form.trees, form.depth), np.int64)
    above = np.zeros((form.trees, form.depth), np.int64)
    added = np.zeros((form.trees, 2**form.depth))
    some_rows = max(1, min(form.most, round(form.rows * count)))
    some_features = max(1, round(form.features * features))
    for number in range(form.trees):
        rows_seen = np.sort(draw.choice(count, some_rows, replace=False))
        features_seen = np.sort(draw.choice(features, some_features, replace=False))
        seen = columns[np.ix_(features_seen, rows_seen)]
        places, above[number] = questions(seen, rows_seen)
        asked[number] = features_seen[places]
        added[number] = values(leaves_of(columns, asked[number], above[number]))
    return Trees(edges, asked, above, added)


def thresholds(rows: Rows, *, is_capped: bool = False) -> Floats:
    """Return up to ``BINS - 1`` different quantiles of every feature, padded with infinity.

    >>> rows = np.concatenate([np.zeros(96), np.arange(1.0, 33.0)])[:, None]
    >>> [int(np.isfinite(thresholds(rows, is_capped=some)).sum()) for some in (False, True)]
    [8, 29]
    """
    found = np.full((rows.shape[1], BINS - 1), np.inf)
    for number, single in enumerate(rows.T):  # one column at a time in float64
        column = np.asarray(single, np.float64)
        distinct = np.unique(_capped(column) if is_capped else _quantiles_of(column))
        distinct = distinct[distinct < column.max(initial=-np.inf)]
        found[number, : len(distinct)] = distinct
    return found


def _quantiles_of(column: Floats) -> Floats:
    return np.asarray(np.quantile(column, np.arange(1, BINS) / BINS, method="lower"))


def _capped(column: Floats) -> Floats:
    values, counts = np.unique(column, return_counts=True)
    below = np.cumsum(np.minimum(counts, len(column) / BINS))
    places = np.searchsorted(below, np.arange(1, BINS) / BINS * below[-1:].sum())
    return np.asarray(values[np.minimum(places, len(values) - 1)])


def binned(rows: Rows, edges: Floats) -> Bins:
    """Return the number of thresholds below each entry, shape ``(n, k)``."""
    found = np.empty(rows.shape, np.uint8)
    for number, (column, edge) in enumerate(zip(rows.T, edges, strict=True)):
        found[:, number] = np.searchsorted(edge, np.asarray(column, np.float64), side="left")
    return found


def leaves_of(columns: Bins, asked: Ints, above: Ints) -> Ints:
    """Return the leaf of every row of binned columns, ``(k, n)``."""
    leaves = np.zeros(columns.shape[1], np.int64)
    for feature, threshold in zip(asked, above, strict=True):
        leaves = 2 * leaves + (columns[feature] > threshold)
    return leaves


def _questions(
    seen: Bins, is_up: NDArray[np.bool_], level: float, form: TreeForm
) -> tuple[NDArray[np.int64], Ints]:
    features, count = seen.shape
    size = features * BINS
    keys = seen.astype(np.int32)
    keys += (np.arange(features, dtype=np.int32) * BINS)[:, None]
    keys *= 2
    keys += is_up.astype(np.int32)
    leaves = np.zeros(count, np.int32)
    asked, above = np.zeros(form.depth, np.int64), np.zeros(form.depth, np.int64)
    for number in range(form.depth):
        found = np.bincount(
            (keys + leaves * np.int32(2 * size)).ravel(), minlength=2 * size << number
        )
        table = found.reshape(1 << number, features, BINS, 2).cumsum(axis=2, dtype=np.float64)
        lower, upper = table, table[:, :, -1:] - table
        gain = _gain(lower, level, form.ballast) + _gain(upper, level, form.ballast)
        score = gain.sum(axis=0)[:, :-1]
        best = int(np.argmax(score))
        asked[number], above[number] = divmod(best, BINS - 1)
        leaves = 2 * leaves + (seen[asked[number]] > above[number])
    return asked, above


def _gain(table: Floats, level: float, ballast: float) -> Floats:
    counts = table.sum(axis=-1)
    slope = table[..., 1] - (1.0 - level) * counts
    return np.asarray(slope**2 / np.maximum(counts + ballast, 1e-300))


def _quantiles(left: Floats, leaves: Ints, count: int, level: float, ballast: float) -> Floats:
    order = np.lexsort((left, leaves))
    sizes = np.bincount(leaves, minlength=count)
    starts = np.cumsum(sizes) - sizes
    place = (sizes - 1) * level
    low = np.floor(place).astype(np.int64)
    part = place - low
    filled = sizes > 0
    first = np.where(filled, starts + low, 0)
    second = np.where(filled, np.minimum(first + 1, starts + sizes - 1), 0)
    ranked = left[order]
    found = (1.0 - part) * ranked[first] + part * ranked[np.maximum(second, 0)]
    return np.where(filled, found * sizes / np.maximum(sizes + ballast, 1.0), 0.0)
