"""Define the cells of the fleet's histogram of scores.

A score is the error of the served forecast over that of the seasonal naive one. A device without a
score has a cell of its own, so that whether it answers does not depend on its readings.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.clock import DAY
from edge_sdk.training.extension import DeviceParts

NAME: Final = "error-ratio"
"""Name of the histogram, the ``stream`` of its contract. Other edges need another name."""
EDGES: Final = (0.6, 0.8, 0.9, 1.0, 1.1, 1.5)
"""Ends of the cells; a value at an end is in the cell above."""
CELLS: Final = len(EDGES) + 2
DAYS: Final = 7
"""Newest complete scored days whose errors make a score."""


def cell_of(ratio: float | None) -> int:
    """Return the cell of a score; 0 without one.

    >>> [cell_of(one) for one in (None, 0.2, 0.6, 0.99, 1.0, 7.0)]
    [0, 1, 2, 4, 5, 7]
    """
    return 0 if ratio is None else 1 + bisect_right(EDGES, ratio)


def labels() -> tuple[str, ...]:
    """Return a short text for each cell.

    >>> labels()[:3], labels()[-1]
    (('no score', 'below 0.6', '0.6 to 0.8'), '1.5 or more')
    """
    between = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
    return ("no score", f"below {EDGES[0]:g}", *between, f"{EDGES[-1]:g} or more")


def score_of(device: DeviceParts, about: str, period: int) -> NDArray[np.float64] | None:
    """Return 1 in the cell of a device's score before a period and 0 in the others; None for another histogram.

    The extension whose row has ``scored`` knows the score: a function of the store, the runtime, the
    number of days and the day before which they are.
    """
    if about != NAME:
        return None
    scored, store, learner = device.config.offered("scored"), device.store, device.active.learner
    ratio = None if scored is None else scored(store, learner, DAYS, before=period // DAY)
    found = np.zeros(CELLS)
    found[cell_of(ratio)] = 1.0
    return found
