"""One line of the privacy ledger: what was released, and how well it was hidden."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivacyCharge:
    """What some releases of one kind cost.

    Attributes:
        time: Milliseconds since 1970 by the device's own clock: for people, nothing rests on it.
        unit: What one unit of the claim is: ``reading``, ``window``, ``day`` or ``device``.
        point: Where the noise was put in: ``input``, ``gradient``, ``update``, ``sign``, ``none``.
        mechanism: ``gaussian``, ``laplace``, ``sign_flip``, …; ``after`` for what is computed from
            data that is already noised, ``none`` for what left as it was.
        multiplier: Noise over sensitivity (L2 for a Gaussian; 1/ε of a pure one). 0
            bounds nothing, infinity costs nothing.
        rate: Sampled share of the data. It is kept and earns nothing: who takes part is neither
            secret nor drawn at random.
        count: Times the noise was drawn.
        releases: Numbered messages that this covers.
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
        """What charges that are added up have in common."""
        return self.unit, self.point, self.mechanism, self.multiplier

    @property
    def is_free(self) -> bool:
        """Whether it tells nothing that was not paid for before."""
        return math.isinf(self.multiplier) or not self.count


BOUNDLESS = PrivacyCharge(0, "device", "none", "none", 0.0, count=1, releases=2**31)
"""What stands for a line that cannot be read as a charge: more than any budget allows."""
