"""Centred clipping: the last aggregate, moved by clipped differences."""

from __future__ import annotations

import numpy as np

from aggregator.rules.parameters import Radius, Times
from aggregator.rules.rows import Memory, Rows, RuleVerdict

_TINY = 1e-12


def centred_clipping(
    rows: Rows, memory: Memory, *, radius: Radius | None = None, steps: Times = 3
) -> RuleVerdict:
    """Move the last aggregate by the mean of the rows' differences, each clipped to a norm.

    The first aggregate is zero, so rows must be updates; later it is this rule's result of the
    round before, which it remembers. Tolerates a minority if the radius fits. O(steps n d).

    Args:
        rows: Updates, shape ``(n, d)``.
        memory: ``v``, the last aggregate, shape ``(d,)``.
        radius: Largest norm of a difference that counts in full; left out: the median distance to
            the last aggregate.

    >>> rows = Rows.of({"a": np.array([0.5]), "b": np.array([-0.5]), "c": np.array([1e9])})
    >>> once = centred_clipping(rows, {}, radius=1.0, steps=1)
    >>> once.value, once.memory["v"]
    (array([0.33333333]), array([0.33333333]))

    Reference:
        Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021,
        algorithm 2.
    """
    v = np.asarray(memory.get("v", np.zeros(rows.width)))
    n, bound = len(rows), radius
    for _ in range(steps):
        distances = rows.distances_to(v)
        bound = float(np.median(distances)) if bound is None else bound
        factors = np.minimum(1.0, bound / np.maximum(distances, _TINY)) / n
        moved = rows.combine(factors)
        moved += (1.0 - factors.sum()) * v
        v = moved
    return RuleVerdict(v, report={"radius": float(bound or 0.0)}, memory={"v": v})
