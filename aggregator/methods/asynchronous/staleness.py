"""Staleness discounts: the weight of an update that was trained on an older version."""

from __future__ import annotations

import math
from collections.abc import Callable

Discount = Callable[[int], float]
"""Map versions behind (0 is fresh) to a factor in (0, 1]; 1 when fresh."""


def constant() -> Discount:
    """Count every answer in full.

    >>> constant()(16)
    1.0
    """
    return lambda _behind: 1.0


def polynomial(power: float = 0.5) -> Discount:
    """Count ``(1 + behind)^-power``.

    >>> [polynomial(0.5)(behind) for behind in (0, 3)]
    [1.0, 0.5]
    """
    return lambda behind: math.pow(1.0 + behind, -power)


def hinge(slope: float = 10.0, grace: int = 4) -> Discount:
    """Count in full up to ``grace`` versions behind, then ``1 / (slope (behind - grace) + 1)``.

    >>> [round(hinge(10.0, 4)(behind), 8) for behind in (4, 7)]
    [1.0, 0.03225806]
    """
    return lambda behind: 1.0 if behind <= grace else 1.0 / (slope * (behind - grace) + 1.0)
