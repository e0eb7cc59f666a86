"""Noise on the readings, and what an attacker still gets out of them.

The honest mode of the privacy account: every reading is clipped to the cell's declared range and
noised once; inputs and targets of every window come from that one noisy series. Here the noise has
a seed, so that experiments repeat; a device draws from its operating system.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from edge_sdk.privacy.gaussian import sigma_for
from tools.experiments.cells import Cell
from tools.experiments.together import key

DELTA = 1e-5
CLOSE = 0.1
"""A reading counts as rebuilt when it is known to a tenth of the cell's range."""

TRIALS = 10_000

Floats = NDArray[np.float64]


def spread(budget: float) -> float:
    """Return the noise on a reading whose range is 1, at ``(budget, DELTA)``, analytic Gaussian.

    >>> round(spread(30.0), 4), round(spread(70.0), 4)
    (0.2147, 0.1194)
    """
    return sigma_for(budget, DELTA)


def noised(cell: Cell, budget: float, seed: int) -> Cell:
    """Return the cell as a device at this budget would learn from it: drawn once, kept."""
    unit = np.clip(cell.scale.shrink(cell.traffic), 0.0, 1.0)
    noise = key(seed, cell.name, "noise", 0).standard_normal(len(unit))
    noisy = unit + spread(budget) * noise
    return replace(cell, traffic=cell.scale.low + cell.scale.width * noisy)


def told_apart(budget: float | None, seed: int) -> float:
    """Play the distinguishing game: which of the two ends of the range was read?

    The best attack there is compares the noisy reading with the middle. Returned is the share of
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
    """Return the most right answers that ``(budget, DELTA)`` allows anybody in that game.

    >>> round(promised(1.0), 4)
    0.7311
    """
    return (
        1.0 + math.tanh(budget / 2.0) + 2.0 * DELTA / (math.exp(min(budget, 700.0)) + 1.0)
    ) / 2.0


def bound_by_sigma(budget: float) -> float:
    """Return what the best attack reaches in that game against this noise, exactly.

    >>> round(bound_by_sigma(30.0), 4)
    0.9901
    """
    return NormalDist().cdf(0.5 / spread(budget))


def rebuilt(cell: Cell, budget: float | None, seed: int) -> tuple[float, float]:
    """Rebuild a cell's readings from the noisy series as whoever holds it would.

    The attacker knows the noise level, that days resemble each other and that hours do: it takes
    for each reading the best linear mix of the noisy reading and the noisy usual value of that slot
    of the day (Wiener's, from what the noisy series itself shows).

    Returns:
        The share of readings known to within ``CLOSE`` of the range, and the same for an attacker
        who has only the usual values.
    """
    truth = np.clip(cell.scale.shrink(cell.traffic), 0.0, 1.0)
    seen = truth if budget is None else cell.scale.shrink(noised(cell, budget, seed).traffic)
    sigma = 0.0 if budget is None else spread(budget)
    usual = _usual(seen, cell.day)
    left = seen - usual
    signal = max(float(np.nanvar(left)) - sigma**2, 0.0)
    trust = signal / (signal + sigma**2) if signal + sigma**2 > 0 else 1.0
    told = np.clip(usual + trust * left, 0.0, 1.0)
    known = np.isfinite(truth)
    close = [float((np.abs(x - truth)[known] <= CLOSE).mean()) for x in (told, usual)]
    return close[0], close[1]


def _usual(values: Floats, day: int) -> Floats:
    """The mean of each slot of the day."""
    slots = np.arange(len(values)) % day
    return np.array([np.nanmean(values[slots == x]) for x in range(day)])[slots]
