"""Synthetic task of the specification: cells with a known truth.

Daily, half-daily and weekly waves with an amplitude and a phase of each client's own, a cluster
that shifts the phase, and noise that remembers the step before. Seeded.
"""

from __future__ import annotations

import numpy as np

from tools.experiments.cells import Cell
from tools.experiments.joint_loop import key

HOUR = 3600
CLUSTERS = 3
MEMORY = 0.7


def cells(clients: int, seed: int, days: int = 42) -> list[Cell]:
    """Make hourly cells; the last week is the test.

    >>> one, two = cells(2, 0)
    >>> one.name, len(one.traffic), one.rows("test"), bool((one.traffic == two.traffic).any())
    ('cell-00', 1008, (840, 1008), False)
    >>> bool((cells(2, 0)[1].traffic == two.traffic).all())
    True
    """
    return [_cell(f"cell-{i:02d}", i % CLUSTERS, seed, days) for i in range(clients)]


def _cell(name: str, cluster: int, seed: int, days: int) -> Cell:
    rng = key(seed, name, "synthetic", 0)
    hours = np.arange(24 * days)
    turn = 2 * np.pi * (hours / 24 + cluster / 8 + rng.normal(0, 0.03))
    day, half, week = rng.uniform(0.6, 1.4), rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.4)
    waves = day * np.sin(turn) + half * np.sin(2 * turn + rng.uniform(0, 2 * np.pi))
    waves += week * np.sin(2 * np.pi * hours / 168 + rng.uniform(0, 2 * np.pi))
    noise = rng.normal(0, 0.15, len(hours))
    for i in range(1, len(noise)):
        noise[i] += MEMORY * noise[i - 1]
    size = rng.uniform(50, 500)
    return Cell(name, HOUR, 0, size * (4 + waves + noise), 7 * 24)
