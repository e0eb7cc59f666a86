"""Input and output of a rule: one row per client, sorted by id, and the verdict.

Rows keep their precision (a device sends float32); sums over many coordinates are taken in
float64. Every operation is a sum over rows, one matrix of inner products, or works block by block
over columns, so that a second implementation may split the columns over machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.rules import blocked_ops
from aggregator.rules.blocked_ops import SpooledVectors, StoredMatrix, Values
from aggregator.rules.row_maps import Grouped, Mix, Picked
from aggregator.rules.sorting_network import FEW

Matrix = NDArray[np.float64]
# state that a rule keeps from one round to the next, by name; saved with the half's state
Memory = Mapping[str, NDArray[Any]]
PAIRS = 2048  # row count up to which rules that have another way compare all pairs of rows
_READ = 1 << 21  # scalars of a file that a pass reads at a time

# reason to leave out a row with non-finite values, or longer than float64 can square
NOT_FINITE = "not_finite"


class TooFewRows(Exception):  # noqa: N818 - the word of the specification
    """Fewer clients sent an update than a rule needs for a trustworthy result."""

    def __init__(self, needed: int, got: int, why: str = "") -> None:
        super().__init__(why or f"needs at least {needed} rows, got {got}")
        self.needed = needed
        self.got = got


@dataclass(frozen=True, eq=False)
class Rows:
    """One vector per client, as the rows of an ``(n, d)`` matrix in order of client id.

    A pre-aggregation replaces rows by linear combinations of rows. That is a small matrix, stored
    beside the values and applied on access: to inner products as a product of small matrices, to
    columns block by block. The mixed rows are never stored as a whole, except the means of groups of
    rows that are in a file: they are written beside it.
    """

    ids: tuple[str, ...]  # names of the rows, ascending: client ids, or buckets of them
    # vectors that the clients sent, shape ``(m, d)``, float32 or float64, finite; an array, or a
    # file of them
    values: Values | StoredMatrix
    # maps from values to rows, in order; empty if the rows are the values
    mixes: tuple[Mix, ...] = ()
    sent: Rows | None = None  # rows before any mix; None if there is no mix
    # clients whose vector is in no row, each with the reason
    refused: Mapping[str, str] = field(default_factory=dict)
    # rows after the first ``written`` mixes; None if nothing was written
    mixed_values: Values | StoredMatrix | None = None
    written: int = 0

    @classmethod
    def of(cls, vectors: Mapping[str, NDArray[np.floating]] | SpooledVectors) -> Rows:
        """Stack named vectors, or sort those of a file. Their order has no influence on any result.

        Vectors with a NaN or an infinity are left out and named in ``refused``: admission refuses
        them, and no rule could guarantee anything about them.

        Raises:
            ValueError: Vectors of different shapes; screening precedes rules.

        >>> Rows.of({"b": np.array([2.0]), "a": np.array([1.0])}).values.tolist()
        [[1.0], [2.0]]
        >>> rows = Rows.of({"a": np.array([1.0]), "liar": np.array([np.nan])})
        >>> rows.ids, rows.refused
        (('a',), {'liar': 'not_finite'})
        """
        if isinstance(vectors, SpooledVectors):
            names, matrix, left_out = vectors.sorted_matrix(_is_finite)
            return cls(names, matrix, refused=dict.fromkeys(left_out, NOT_FINITE))
        given = {name: _plain(vectors[name]) for name in sorted(vectors)}
        refused = {name: NOT_FINITE for name, vector in given.items() if not _is_finite(vector)}
        ids = tuple(name for name in given if name not in refused)
        if not ids:
            return cls((), np.zeros((0, 0)), refused=refused)
        return cls(ids, np.stack([given[name] for name in ids]), refused=refused)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def senders(self) -> tuple[str, ...]:
        return self.ids if self.sent is None else self.sent.ids

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def is_stored(self) -> bool:
        return not isinstance(self.values, np.ndarray)

    def mixed(self, mix: Mix, ids: tuple[str, ...] | None = None) -> Rows:
        """Return the rows that a pre-aggregation makes of these.

        Nothing is computed yet, except the means of groups of rows in a file.
        """
        names = self.ids if ids is None else ids
        after = replace(self, ids=names, mixes=(*self.mixes, mix), sent=self.sent or self)
        is_exact = all(one.is_rowwise for one in self.mixes[self.written :])
        if isinstance(self._base, np.ndarray) or not (is_exact and isinstance(mix, Grouped)):
            return after
        found = self._base.mapped(partial(_applied, after.mixes[self.written :]), len(names))
        return replace(after, mixed_values=found, written=len(after.mixes))

    def in_memory(self) -> Rows:
        """Return the same rows as an array."""
        if not self.is_stored:
            return self
        return Rows(self.ids, self.block(0, self.width), refused=self.refused)

    @property
    def _base(self) -> Values | StoredMatrix:
        return self.values if self.mixed_values is None else self.mixed_values

    def only(self, kept: NDArray[np.intp]) -> Rows:
        return self.mixed(Picked(kept, len(self)), tuple(self.ids[i] for i in kept))

    def without(self, name: str) -> Rows:
        return self.only(np.array([i for i, one in enumerate(self.ids) if one != name], np.intp))

    def row(self, i: int) -> Values:
        """Return one row, shape ``(d,)``, in the precision of the values."""
        if not self.mixes:
            found: Values = self.values[np.array([i]), 0 : self.width][0]
            return found
        one = np.zeros(len(self))
        one[i] = 1.0
        return self.combine(one).astype(self.values.dtype)

    def of_columns(self, chosen: NDArray[np.intp]) -> Values:
        """Return any columns of all rows, shape ``(n, len(chosen))``."""
        return self._mixed(self._base[:, chosen])

    def block(self, start: int, stop: int) -> Values:
        """Return some columns of all rows, shape ``(n, stop - start)``. Not to be written to."""
        return self._mixed(self._base[:, start:stop])

    def part(self, rows: slice, start: int, stop: int) -> Values:
        """Return some columns of some rows. Not to be written to."""
        later = self.mixes[self.written :]
        if not all(mix.is_rowwise for mix in later):
            return self.block(start, stop)[rows]
        if not later:
            return self._base[rows, start:stop]
        chosen, wanted = np.arange(len(self))[rows], []
        for mix in reversed(later):
            wanted.append((mix, chosen))
            chosen = mix.before(chosen)
        block = self._base[chosen, start:stop]
        for mix, after in reversed(wanted):
            block = mix.applied(block, after)
        return block

    @property
    def pieces(self) -> list[slice]:
        is_whole = not self.is_stored or not all(m.is_rowwise for m in self.mixes[self.written :])
        step = max(len(self), 1) if is_whole else max(_READ // max(self.width, 1) // 128, 1) * 128
        return [slice(*span) for span in blocked_ops.spans(len(self), step)]

    def _mixed(self, block: Values) -> Values:
        return _applied(self.mixes[self.written :], block)

    def shares_of_senders(self, weights: Matrix) -> Matrix:
        """Return the weights of the sent vectors for given weights of rows, shape ``(m,)``."""
        for mix in reversed(self.mixes):
            weights = mix.back(weights)
        return weights

    def combine(self, weights: Matrix) -> Matrix:
        """Return ``sum_i weights[i] * row_i``, shape ``(d,)``, added up in order of client id.

        Deliberately not a matrix product: a BLAS may add in another order on another day, and a
        journal that is replayed must give the same bits.
        """
        return blocked_ops.weighted_sum(self.values, self.shares_of_senders(weights))

    def named(self, weights: Matrix) -> dict[str, float]:
        counted = self.shares_of_senders(weights)
        return dict(zip(self.senders, map(float, counted), strict=True))

    @cached_property
    def products(self) -> Products:
        """Return the inner products of these rows, computed once for all mixes and rules."""
        return Products.of(self)

    def _known(self) -> tuple[Products, Matrix | None]:
        """Return products, and the map from the rows of the products to these rows.

        Mixed rows need no products of their own, unless they are many, fewer than the sent vectors,
        and the products of those are not computed yet.
        """
        sent = self.sent
        if sent is None:
            return self.products, None
        is_many = len(self) > FEW or len(sent) > PAIRS
        if "products" not in sent.__dict__ and is_many and len(self) < len(sent):
            return self.products, None
        return sent.products, self._mixing

    @cached_property
    def _mixing(self) -> Matrix:
        """Return all mixes as one ``(n, m)`` matrix."""
        return self.shares_of_senders(np.eye(len(self)))

    def gram(self) -> Matrix:
        """Return the ``(n, n)`` inner products of the rows, relative to a row of middling norm.

        Near convergence clients send almost equal rows; without a centre the differences that
        distances are made of are lost in the common part. The centre is one client's row and not
        the mean, which a single huge row would move, at the cost of the digits of all others.

        >>> rows = Rows.of({"a": np.array([1e8]), "b": np.array([1e8 + 1.0])})
        >>> rows.distances().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        products, mixing = self._known()
        return products.centred(mixing)

    def plain(self) -> Matrix:
        """Return the ``(n, n)`` inner products of the rows, relative to zero."""
        products, mixing = self._known()
        return products.plain(mixing)

    def along(self, point: Values) -> Matrix:
        """Return every row's inner product with a vector, shape ``(n,)``."""
        return blocked_ops.along(self.part, self.width, len(self), point)

    def distances(self) -> Matrix:
        """Return the squared Euclidean distances between rows, shape ``(n, n)``, never negative."""
        return apart(self.gram())

    def norms(self) -> Matrix:
        """Return the Euclidean norm of every row, shape ``(n,)``."""
        return np.sqrt(blocked_ops.squares(self.part, self.width, self.pieces, len(self)))

    def distances_to(self, point: Matrix) -> Matrix:
        """Return every row's Euclidean distance to a point, shape ``(n,)``."""
        return np.sqrt(blocked_ops.squares(self.part, self.width, self.pieces, len(self), point))

    def ordered(self, statistic: Callable[[Values], Values], cut: int = 0) -> Matrix:
        """Sort every column and apply a statistic.

        Args:
            statistic: Maps ``(n - 2 cut, k)``, columns ascending, to ``(k,)``.
            cut: Number left out at either end.

        >>> rows = Rows.of({"a": np.array([1.0]), "b": np.array([9.0]), "c": np.array([2.0])})
        >>> rows.ordered(lambda columns: columns[0], cut=1)
        array([2.])
        """
        return blocked_ops.ordered(self.block, self.width, len(self), statistic, cut)


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products of some rows, relative to one of them."""

    rows: Rows
    centre: Values  # row that is subtracted, shape ``(d,)``, in the precision of the rows
    about: Matrix  # inner products of ``x_i - centre``, shape ``(n, n)``

    @classmethod
    def of(cls, rows: Rows) -> Products:
        """Compute the products in two passes over the rows: norms, then products.

        The centre is the row of median norm. Less than half of the rows are Byzantine, so some
        honest row is at least as long: subtracting it costs honest rows at most a factor of two.
        """
        middling = np.argsort(rows.norms(), kind="stable")[(len(rows) - 1) // 2]
        centre = rows.row(int(middling))
        about = blocked_ops.products(rows.block, rows.width, len(rows), centre)
        return cls(rows, centre, about)

    @cached_property
    def _full(self) -> Matrix:
        centre = self.centre.astype(np.float64)
        cross, square = self.rows.along(centre), float(centre @ centre)
        return self.about + cross[:, None] + cross[None, :] - square

    def centred(self, mixing: Matrix | None) -> Matrix:
        """Return inner products of mixed rows about the centre if all share it, else about 0."""
        if mixing is None:
            return self.about
        sums = mixing.sum(axis=1)
        if np.ptp(sums) > 1e-12:  # clipped rows no longer share the centre
            return self.plain(mixing)
        return _symmetric(mixing @ self.about @ mixing.T)

    def plain(self, mixing: Matrix | None) -> Matrix:
        """Return inner products of mixed rows about zero."""
        full = self._full
        return full if mixing is None else _symmetric(mixing @ full @ mixing.T)


@dataclass(frozen=True, eq=False)
class RuleVerdict:
    """Decision of a rule."""

    value: Matrix  # the aggregate, shape ``(d,)``, float64
    # weight of every client, by id; empty if the rule has no weights
    weights: Mapping[str, float] = field(default_factory=dict)
    # ids that were left out, each with the reason in one word
    dropped: Mapping[str, str] = field(default_factory=dict)
    # further numbers for the round's report
    report: Mapping[str, float] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)  # state that the rule receives in the next round


def apart(gram: Matrix) -> Matrix:
    """Return squared distances from inner products, never negative, zero on the diagonal."""
    squares = np.diag(gram)
    out = np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)
    np.fill_diagonal(out, 0.0)
    return out


def _applied(mixes: tuple[Mix, ...], block: Values) -> Values:
    for mix in mixes:
        block = mix.applied(block)
    return block


def _symmetric(matrix: Matrix) -> Matrix:
    halves: Matrix = (matrix + matrix.T) / 2
    return halves


def _plain(vector: NDArray[np.floating]) -> Values:
    """Return float32 unchanged, other values as float64."""
    kept = np.asarray(vector)
    return kept if kept.dtype == np.float32 else kept.astype(np.float64, copy=False)


def _is_finite(vector: Values) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(vector @ vector):
            return True
        wide = vector.astype(np.float64, copy=False)
        return bool(np.isfinite(wide @ wide))
