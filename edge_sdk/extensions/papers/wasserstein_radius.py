"""Compute BAFDP's regulariser: the radius of a Wasserstein ball, and its moving budget.

The device minimises ``g(w) + rho G(w)``: the loss, plus its rate of change with the data times the
radius ``rho = scale (eta + c3 / eps)``. The first part of the radius accounts for few samples, the
second for their noise.

The budget eps falls under ``-c3 G / eps^2`` alone, as long as its dual is 0; so it always rises to
its cap, and the "optimised privacy level" is a schedule that ends there. The guarantee to report is
the one at the cap. The paper's eps of 0.126 beside a cap of 10 does not follow from its equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_sdk.protocol.contract.method import Scalars


@dataclass(frozen=True, slots=True)
class WassersteinGuard:
    """Radius of the ball, and the update of the budget."""

    eta: float  # radius due to few samples, before scaling
    noise: float  # constant c3, the noise at a budget of 1
    scale: float  # factor of both; the paper has 1, at which the regulariser outweighs the loss
    rate: float  # step size of the budget (alpha_eps)
    dual: float  # dual of the budget (lambda), which the server keeps
    lowest: float  # floor of the budget: below it ``c3 / eps^2`` grows without bound
    cap: float  # cap of the budget (the paper's a)

    @classmethod
    def of(cls, asked: Scalars, count: int, width: int) -> WassersteinGuard:
        """Read a task's numbers for a device with ``count`` samples of ``width`` numbers."""
        eta = asked.get("radius")
        if eta is None:
            level = asked.get("radius_level", 0.0)
            eta = sampled_radius(max(count, 1), width, level, asked.get("radius_tail", 2.0))
        own = width if asked.get("noise_by_width", 0.0) else 1
        return cls(
            eta=eta,
            noise=noise_constant(own, asked.get("noise", 0.0)),
            scale=asked.get("radius_scale", 1.0),
            rate=asked.get("eps_rate", 0.0),
            dual=asked.get("eps_dual", 0.0),
            lowest=asked.get("eps_min", 0.0),
            cap=asked.get("eps_cap", math.inf),
        )

    def rho(self, eps: float) -> float:
        """Return the weight of the regulariser at a budget; 0 without a budget."""
        return self.scale * (self.eta + self.noise / eps) if eps > 0.0 else 0.0

    def clipped(self, eps: float) -> float:
        return min(max(eps, self.lowest), self.cap)

    def next_eps(self, eps: float, slope: float) -> float:
        """Return the budget after one step at weights whose loss has the slope G in the data.

        Source:
            BAFDP (19), for the scaled radius.

        >>> still = WassersteinGuard(eta=0, noise=1, scale=1, rate=0.5, dual=0, lowest=0.01, cap=10)
        >>> eps = still.next_eps(1.0, 1.0), still.next_eps(1.5, 1.0)
        >>> [round(value, 8) for value in eps]
        [1.5, 1.72222222]
        """
        fall = self.dual - self.scale * self.noise * slope / eps**2
        return self.clipped(eps - self.rate * fall)


def sampled_radius(count: int, width: int, level: float, tail: float = 2.0) -> float:
    """Return BAFDP's eta: a bound on the distance of a sample from its distribution.

    ``(level / count)^(1/max(width, 2))``, and with fewer samples than the level ``(level /
    count)^(1/tail)``. Both are far above values that improve a forecast, so a run scales them down.

    Args:
        count: Number of samples for training, at least 1.
        width: Number of values in one sample, inputs and targets together.
        level: ``ln(c1 / gamma) / c2`` for a confidence of 1 - gamma; c1 and c2 are unknown
            constants of the distribution, 2 and 1 where nothing better is known.
        tail: The paper's beta, above 1: how light the distribution's tail is.

    Source:
        BAFDP (8), after Fournier and Guillin, On the rate of convergence in Wasserstein distance of
        the empirical measure, 2015.

    >>> level = math.log(2 / 0.05)
    >>> [round(sampled_radius(n, d, level), 8) for n, d in ((1000, 7), (1000, 30))]
    [0.44917285, 0.82965299]
    >>> [round(sampled_radius(n, 7, level), 7) for n in (3, 1)]
    [1.1088852, 1.9206456]
    """
    power = 1.0 / max(width, 2) if count >= level else 1.0 / tail
    return float((level / count) ** power)


def noise_constant(width: int, per_number: float) -> float:
    """Return BAFDP's c3: the standard deviation of the input noise at a budget of 1.

    It is that of the classical Gaussian mechanism, ``sqrt(2 ln(1.25/delta))`` times the range of a
    number, for one sample of ``width`` numbers. It only sets the weight of the regulariser; the
    privacy mechanism determines the noise that a device adds.

    >>> unit = math.sqrt(2 * math.log(1.25 / 1e-5))
    >>> [round(noise_constant(d, unit), 8) for d in (1, 7, 30)]
    [4.84480526, 12.81814988, 26.53609129]
    """
    return math.sqrt(width) * per_number
