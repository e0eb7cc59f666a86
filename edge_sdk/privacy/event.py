"""Define one line of the privacy ledger: the release and its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivacyCharge:
    """Cost of some releases of one kind.

    Attributes:
        time: Milliseconds since 1970 by the device's own clock; informational only.
        unit: Unit of the claim: ``reading``, ``window``, ``day`` or ``device``.
        point: Point at which noise is added: ``input``, ``gradient``, ``update``, ``sign``,
            ``none``.
        mechanism: ``gaussian``, ``laplace``, ``sign_flip``, …; ``after`` for values computed from
            noisy data, ``none`` for values released without noise.
        multiplier: Noise over sensitivity (L2 for a Gaussian; 1/ε of a pure one). 0 gives no bound,
            infinity costs nothing.
        rate: Sampled share of the data. It is recorded and earns no amplification: participation is
            neither secret nor drawn at random.
        count: Number of noise draws.
        releases: Number of numbered messages that this charge covers.
    """

    time: int
    unit: str
    point: str
    mechanism: str
    multiplier: float
    rate: float = 1.0
    count: int = 1
    releases: int = 0

    @property
    def kind(self) -> tuple[str, str, str, float]:
        """Return the fields that charges must share to be added up."""
        return self.unit, self.point, self.mechanism, self.multiplier

    @property
    def is_free(self) -> bool:
        """Return whether the charge costs nothing beyond earlier charges."""
        return math.isinf(self.multiplier) or not self.count


UNBOUNDED = PrivacyCharge(0, "device", "none", "none", 0.0, count=1, releases=2**31)
"""Charge for an unreadable line: more than any budget allows."""
