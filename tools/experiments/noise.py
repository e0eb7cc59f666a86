"""The device's own mechanisms in an experiment, and an attacker's success against them.

At the input every reading is clipped to the cell's declared range and noised once; inputs and
targets of every window come from that one noisy series. Here randomness has a seed, so that
experiments repeat; a device draws from its operating system.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.privacy import BudgetSection, MechanismSection, PrivacySection
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.privacy.mechanism import Mechanism, mechanism_of
from edge_sdk.privacy.noise import sigma_for
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of
from edge_sdk.protocol.contract.manifest import Manifest
from tools.experiments.cells import Cell
from tools.experiments.joint_loop import key

DELTA = 1e-5
CLOSE = 0.1
"""Largest error of a reconstructed reading, as a share of the cell's range."""

TRIALS = 10_000

Floats = NDArray[np.float64]


def spread(budget: float) -> float:
    """Return the noise on a reading whose range is 1, at ``(budget, DELTA)``, analytic Gaussian.

    >>> round(spread(30.0), 4), round(spread(70.0), 4)
    (0.2147, 0.1194)
    """
    return sigma_for(budget, DELTA)


@dataclass(slots=True)
class Shelf:
    """Perturbed readings in memory instead of a device's store."""

    rows: dict[tuple[str, int], float] = field(default_factory=dict)

    def noised(self) -> Mapping[tuple[str, int], float]:
        return self.rows

    def add_noised(self, rows: list[SeriesRow], charge: PrivacyCharge) -> None:  # noqa: ARG002 - nobody asks here
        """Add readings; a stored one is not replaced."""
        for row in rows:
            self.rows.setdefault((row.stream, row.slot), row.value)

    def noised_since(self) -> int:
        """Return nothing: no reading was lost."""
        return 0


def mechanism(
    section: PrivacySection, manifest: Manifest, cell: Cell, seed: int, shared: int = 1
) -> Mechanism:
    """Return the device's mechanism for a privacy section, with seeded randomness.

    Raises:
        ConfigError: A section that a device would refuse.
    """
    facts = DeviceFacts(manifest, len(cell.traffic), max_steps=64, shared=shared)
    entropy = key(seed, cell.name, "noise", 0).bytes
    told = frozenset[str]()
    return mechanism_of(plan_of(section, facts), Shelf(), int, measured=told, entropy=entropy)


def noised(cell: Cell, budget: float, seed: int, manifest: Manifest) -> Cell:
    """Return the cell as a device at this budget would learn from it: drawn once, kept."""
    scale, stream = cell.scale, manifest.target.stream
    at_input = MechanismSection("gaussian", point="input", range=(scale.low, scale.high))
    section = PrivacySection(at_input, "honest", BudgetSection(budget, DELTA))
    released = mechanism(section, manifest, cell, seed).learnable(cell.series(stream))
    slots = cell.start // cell.step + np.arange(len(cell.traffic))
    known = dict(zip(released.times() // cell.step, released.values(stream), strict=True))
    return replace(cell, traffic=np.array([known.get(x, np.nan) for x in slots.tolist()]))


def told_apart(budget: float | None, seed: int) -> float:
    """Return the success rate of the best attack that tells the two ends of the range apart.

    The best attack compares the noisy reading with the middle. The rate is the share of
    right answers in ``TRIALS``; guessing gives 0.5.

    >>> told_apart(None, 0), 0.98 < told_apart(30.0, 0) < 1.0, 0.54 < told_apart(1.0, 0) < 0.57
    (1.0, True, True)
    """
    if budget is None:
        return 1.0
    rng = key(seed, "_attack", "game", 0)
    truth = rng.integers(0, 2, TRIALS)
    seen = truth + spread(budget) * rng.standard_normal(TRIALS)
    return float(((seen > 0.5) == truth).mean())


def promised(budget: float) -> float:
    """Return the most right answers that ``(budget, DELTA)`` allows in that game.

    >>> round(promised(1.0), 4)
    0.7311
    """
    return (
        1.0 + math.tanh(budget / 2.0) + 2.0 * DELTA / (math.exp(min(budget, 700.0)) + 1.0)
    ) / 2.0


def bound_by_sigma(budget: float) -> float:
    """Return the exact success rate of the best attack in that game against this noise.

    >>> round(bound_by_sigma(30.0), 4)
    0.9901
    """
    return NormalDist().cdf(0.5 / spread(budget))


def rebuilt(cell: Cell, noisy: Cell, sigma: float) -> tuple[float, float]:
    """Reconstruct a cell's readings from the noisy ones, as an attacker would.

    The attacker knows the noise level, that days resemble each other and that hours do: it takes
    for each reading the best linear mix of the noisy reading and the noisy usual value of that slot
    of the day (Wiener's, from what the noisy series itself shows).

    Args:
        sigma: The noise in units of the range; 0 for none.

    Returns:
        The share of readings known to within ``CLOSE`` of the range, and the same for an attacker
        who has only the usual values.
    """
    truth = np.clip(cell.scale.shrink(cell.traffic), 0.0, 1.0)
    seen = cell.scale.shrink(noisy.traffic) if sigma else truth
    usual = _usual(seen, cell.day)
    left = seen - usual
    signal = max(float(np.nanvar(left)) - sigma**2, 0.0)
    trust = signal / (signal + sigma**2) if signal + sigma**2 > 0 else 1.0
    estimate = np.clip(usual + trust * left, 0.0, 1.0)
    known = np.isfinite(truth)
    close = [float((np.abs(x - truth)[known] <= CLOSE).mean()) for x in (estimate, usual)]
    return close[0], close[1]


def _usual(values: Floats, day: int) -> Floats:
    slots = np.arange(len(values)) % day
    return np.array([np.nanmean(values[slots == x]) for x in range(day)])[slots]
