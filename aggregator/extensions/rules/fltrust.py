"""Rules on directions: ClippedClustering, FLTrust."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregator.rules.factory import RuleSpec
from aggregator.rules.parameters import Client, Count
from aggregator.rules.rows import Matrix, Memory, Rows, RuleVerdict, TooFewRows

_TINY = 1e-12


def clipped_clustering(rows: Rows, memory: Memory, *, history: Count = 10_000) -> RuleVerdict:
    """Average the larger of two clusters by direction, norms clipped to the median so far.

    Norms are clipped to the median of all norms received, which the rule remembers. Clusters are
    agglomerative with average linkage of 1 - cos; of two as large, the tighter one counts.
    Tolerates a minority of faulty rows that differ from the honest ones. O(n² d + n³).

    Args:
        rows: Updates, shape ``(n, d)``, n >= 3.
        memory: ``norms``, those of earlier rounds, oldest first.

    Reference:
        Li et al., An Experimental Study of Byzantine-Robust Aggregation Schemes in Federated
        Learning, IEEE Trans. Big Data 2023, algorithm 1. Its code passes similarities to a function
        that expects distances; these are distances.
    """
    norms = rows.norms()
    past = np.asarray(memory.get("norms", ()))
    seen = np.concatenate([past, norms])[-history:]
    usual = float(np.median(seen))
    chosen = larger_cluster(_unlike(rows.plain(), norms))
    factors = np.minimum(1.0, usual / np.maximum(norms, _TINY))
    weights = np.where(chosen, factors / chosen.sum(), 0.0)
    counted = rows.named(weights)
    dropped = {name: "other_cluster" for name, weight in counted.items() if not weight}
    report = {"clipped_to": usual}
    return RuleVerdict(rows.combine(weights), counted, dropped, report, {"norms": seen})


def fltrust(rows: Rows, *, root: Client) -> RuleVerdict:
    """Average rows weighted by the cosine to a trusted client's row, at its norm.

    The trusted client trains on data that the operator provides; its own row is the reference
    and not part of the average. Tolerates any number of faulty others. O(n d).

    Args:
        rows: Updates, shape ``(n, d)``, the trusted client's among them.

    Raises:
        TooFewRows: The trusted client has sent no update.

    >>> rows = Rows.of({"a": np.array([2.0, 0.0]), "b": np.array([-9.0, 0.0]),
    ...                 "root": np.array([1.0, 0.0])})
    >>> fltrust(rows, root="root").value.tolist()
    [1.0, 0.0]

    Reference:
        Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS
        2021, equations 2 to 4.
    """
    if root not in rows.senders:
        raise TooFewRows(1, 0, f"no update of the trusted client {root!r}")
    sent = rows if rows.sent is None else rows.sent
    yardstick = sent.row(sent.ids.index(root))
    others = rows.without(root) if root in rows.ids else rows
    norms, length = others.norms(), float(np.linalg.norm(yardstick.astype(np.float64)))
    cosines = others.along(yardstick) / np.maximum(norms * length, _TINY)
    trust = np.maximum(cosines, 0.0)
    weights = trust / max(float(trust.sum()), _TINY)
    value = others.combine(weights * length / np.maximum(norms, _TINY))
    counted = others.named(weights)
    dropped = {name: "no_trust" for name, t in counted.items() if not t and name != root}
    return RuleVerdict(value, counted, dropped, {"trust": float(trust.sum())})


def larger_cluster(distances: Matrix) -> NDArray[np.bool_]:
    """Return a mask of the larger of two clusters by average linkage; of equals, the tighter.

    Args:
        distances: Distances, shape ``(n, n)``, symmetric, zero on the diagonal.
    """
    labels = two_clusters(distances)
    one = np.asarray(labels == 0)
    if 2 * one.sum() != len(one):
        return one if 2 * one.sum() > len(one) else ~one
    return one if _looseness(distances, one) <= _looseness(distances, ~one) else ~one


def two_clusters(distances: Matrix) -> NDArray[np.intp]:
    """Return labels 0 and 1: join the two closest clusters, on average, until two are left."""
    n = len(distances)
    labels, sizes = np.arange(n), np.ones(n)
    linked = distances.astype(np.float64)
    np.fill_diagonal(linked, np.inf)
    for _ in range(n - 2):
        i, j = sorted(divmod(int(np.argmin(linked)), n))
        joined = (sizes[i] * linked[i] + sizes[j] * linked[j]) / (sizes[i] + sizes[j])
        linked[i], linked[:, i] = joined, joined
        linked[i, i] = np.inf
        linked[j], linked[:, j] = np.inf, np.inf
        sizes[i] += sizes[j]
        labels[labels == j] = i
    return np.asarray(labels != labels[0], np.intp)


def _unlike(gram: Matrix, norms: Matrix) -> Matrix:
    """Return 1 - cos of all pairs; a row of zeros is unlike all others."""
    out = 1.0 - gram / np.maximum(np.outer(norms, norms), _TINY)
    np.fill_diagonal(out, 0.0)
    return np.clip(out, 0.0, 2.0)


def _looseness(distances: Matrix, members: NDArray[np.bool_]) -> float:
    return float(distances[np.ix_(members, members)].mean())


CLIPPED_CLUSTERING = RuleSpec(
    clipped_clustering, lambda _settings: 3, compares_pairs=True, reads_blocks=True
)
FLTRUST = RuleSpec(fltrust, lambda _settings: 2, reads_blocks=True)
