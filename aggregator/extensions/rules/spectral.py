"""Rules that filter rows along the direction of their largest variance: DnC, CAF."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from aggregator.rules.factory import RuleSpec
from aggregator.rules.parameters import Count, Faulty, Seed
from aggregator.rules.rows import Matrix, Memory, Rows, RuleVerdict
from edge_sdk.app.schema import Between

Times = Annotated[int, Between(1, 100)]
Factor = Annotated[float, Between(0.1, 10.0)]
OUTLYING = "outlying"  # reason of these rules to leave a row out
_TINY = 1e-12


def dnc(
    rows: Rows,
    memory: Memory,
    *,
    f: Faulty,
    repeats: Times = 1,
    columns: Count = 10_000,
    factor: Factor = 1.0,
    seed: Seed = 0,
) -> RuleVerdict:
    """Average the rows with the smallest projections on the first principal direction of a sample of coordinates.

    Each repeat draws coordinates, and leaves out the ``factor * f`` rows with the largest projection on
    the first principal direction; rows left out by no repeat count. Tolerates f faulty rows whose lengths
    are bounded: among rows of very different lengths the mean lies near the longest rows, and a row beside it is
    kept. Put ``norm_clipping`` or ``arc`` before it.
    O(n b (n + repeats)) for b columns, and n d.

    Args:
        rows: Updates, shape ``(n, d)``.
        memory: ``dnc``, the number of draws so far.
        f: Number of rows that may be Byzantine.
        repeats: Number of samples of coordinates.
        columns: Coordinates in a sample; with as many as a row has, nothing is drawn.
        factor: Rows to leave out in a repeat, as a multiple of f.
        seed: Seed of the samples; it discloses which coordinates are looked at.

    Reference:
        Shejwalkar and Houmansadr, Manipulating the Byzantine, NDSS 2021, algorithm 2.
    """
    draw, n = int(memory.get("dnc", 0)), len(rows)
    kept = np.ones(n, np.bool_)
    for number in range(repeats):
        if rows.width > columns:
            key = np.random.Philox(key=seed, counter=draw * repeats + number)
            some = np.sort(np.random.Generator(key).permutation(rows.width)[:columns])
            sample = rows.of_columns(some)
        else:
            sample = rows.block(0, rows.width)
        scores = outlying(sample.astype(np.float64))
        far = np.argsort(scores, kind="stable")[n - int(factor * f) :]
        kept[far] = False
    weights = kept / kept.sum()
    return _filtered(rows, weights, {"dnc": np.array(draw + 1)})


def caf(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Average the rows with weights that shrink along the first principal direction of their covariance.

    Weights begin equal. Each step multiplies them by 1 - tau / max tau, where tau is a row's squared
    distance to the mean along the covariance's first direction, until their sum is at most n - 2 f. The
    mean with the least such variance on the way counts. Tolerates f faulty rows of n > 2 f without
    knowing how far honest rows differ. O(n² d + n⁴).

    >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((0.0, 1.0, 2.0, 90.0))})
    >>> caf(rows, f=1).value.round(2)
    array([1.01])

    A far row of weight 0 no longer sets the largest tau: with it, the others' weights would never shrink.

    Reference:
        Allouah, Guerraoui and Stephan, Towards Trustworthy Federated Learning with Untrusted
        Participants, ICML 2025, algorithm 2.
    """
    n = len(rows)
    gram, weights = rows.gram(), np.ones(n)
    best, least = weights / n, np.inf
    while weights.sum() > n - 2 * f:
        shares = weights / weights.sum()
        variance, tau = spread(gram, shares)
        if variance < least:
            best, least = shares, variance
        tau = np.where(weights > 0.0, tau, 0.0)
        if not tau.max() > 0.0:
            break
        weights = weights * (1.0 - tau / tau.max())
    report = {"variance": float(least)} if np.isfinite(least) else {}
    verdict = _filtered(rows, best, {})
    return RuleVerdict(verdict.value, verdict.weights, verdict.dropped, report)


def outlying(sample: Matrix) -> Matrix:
    """Return every row's squared projection on the first principal direction, shape ``(n,)``.

    Args:
        sample: Some columns of the rows, shape ``(n, b)``.

    >>> outlying(np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])).round(6).tolist()
    [4.0, 1.0, 9.0]
    """
    centred = sample - sample.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    scores: Matrix = values[-1] * vectors[:, -1] ** 2
    return scores


def spread(gram: Matrix, shares: Matrix) -> tuple[float, Matrix]:
    """Return the largest variance of weighted rows, and every row's squared distance along its direction.

    Args:
        gram: Inner products of the rows about any point, shape ``(n, n)``.
        shares: Weights of the rows, shape ``(n,)``, summing to 1.

    >>> variance, tau = spread(np.outer([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]), np.full(3, 1 / 3))
    >>> round(variance, 6), tau.round(6).tolist()
    (0.666667, [1.0, 0.0, 1.0])
    """
    along = gram @ shares
    about = gram - along[:, None] - along[None, :] + shares @ along
    roots = np.sqrt(shares)
    values, vectors = np.linalg.eigh(about * np.outer(roots, roots))
    variance = max(float(values[-1]), 0.0)
    if variance <= _TINY * max(float(np.trace(about)), _TINY):
        return variance, np.zeros(len(gram))
    projected = about @ (roots * vectors[:, -1])
    return variance, np.asarray(projected**2 / variance)


def _filtered(rows: Rows, weights: Matrix, memory: Memory) -> RuleVerdict:
    counted = rows.named(weights)
    dropped = {name: OUTLYING for name, weight in counted.items() if not weight}
    return RuleVerdict(rows.combine(weights), counted, dropped, memory=memory)


DNC = RuleSpec(
    dnc,
    lambda s: max(2 * s.f + 1, s.repeats * int(s.factor * s.f) + 1),
    withstands=False,
    reads_blocks=True,
)
CAF = RuleSpec(caf, compares_pairs=True, reads_blocks=True)
