"""A rule and an attack for gridfed, as a package of its own."""

from __future__ import annotations

import numpy as np

from aggregator.rules import Rows, RuleSpec, RuleVerdict
from aggregator.rules.parameters import Faulty
from firmware_sim.attacks import Attack
from firmware_sim.attacks.attack_context import AttackContext, Row


def meamed(rows: Rows, *, f: Faulty) -> RuleVerdict:
    """Average, in every coordinate, the n - f values nearest to the median.

    Tolerates f < n / 2 Byzantine rows. O(n log n d).

    Example:
        >>> rows = Rows.of({str(i): np.array([x]) for i, x in enumerate((1.0, 2.0, 3.0, 9.0))})
        >>> meamed(rows, f=1).value  # the median is 2.5; a trimmed mean gives 2.5
        array([2.])

    Reference:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018, definition 6.
    """

    def around(columns: np.ndarray) -> np.ndarray:
        n = len(columns)
        middle = (columns[(n - 1) // 2].astype(np.float64) + columns[n // 2]) / 2
        nearest = np.argsort(np.abs(columns - middle), axis=0, kind="stable")[: n - f]
        return np.take_along_axis(columns, nearest, axis=0).mean(axis=0, dtype=np.float64)

    return RuleVerdict(rows.ordered(around))


MEAMED = RuleSpec(meamed)


def random_direction(scene: AttackContext, *, factor: float = 3.0) -> Row:
    """Send a vector of random direction, ``factor`` times as long as the honest one."""
    drawn = scene.rng.normal(size=scene.own.shape)
    length = float(np.linalg.norm(drawn))
    return drawn * (factor * float(np.linalg.norm(scene.own)) / length if length else 0.0)


RANDOM_DIRECTION = Attack(
    "random_direction",
    "model",
    random_direction,
    "factor * |u| in a random direction, for the honest update u",
    "update",
)
