"""Attacks on the readings of an otherwise honest device.

Pure functions of the target in the device's own unit interval, value by value: a reading that is an
input in one window and a target in another is changed equally in both. ``label_flip`` alone leaves
the inputs unchanged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# scaled target, shape ``(T,)``, oldest first; NaN where there is no measurement
Scaled = NDArray[np.float64]


def label_flip(y: Scaled, rng: np.random.Generator) -> Scaled:  # noqa: ARG001 - one signature for all
    """Invert the targets: ``max + min - y`` over the observed ones.

    >>> label_flip(np.array([0.0, 0.25, np.nan, 1.0]), np.random.default_rng(0)).tolist()
    [1.0, 0.75, nan, 0.0]
    """
    if not np.isfinite(y).any():
        return y.copy()
    return np.nanmax(y) + np.nanmin(y) - y


def bias(y: Scaled, rng: np.random.Generator, *, by: float = 0.5) -> Scaled:  # noqa: ARG001 - as above
    """Shift all values by a constant fraction of the device's range."""
    return y + by


def ramp(y: Scaled, rng: np.random.Generator, *, by: float = 0.5) -> Scaled:  # noqa: ARG001 - as above
    """Shift values linearly: from 0 at the first reading to ``by`` at the end.

    >>> ramp(np.zeros(5), np.random.default_rng(0), by=1.0).tolist()
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    return y + by * np.arange(len(y)) / max(len(y), 1)


def scale(y: Scaled, rng: np.random.Generator, *, factor: float = 2.0) -> Scaled:  # noqa: ARG001 - as above
    """Multiply all values: a wrong ratio of a current transformer."""
    return y * factor


def outage(y: Scaled, rng: np.random.Generator, *, share: float = 0.1) -> Scaled:
    """Set one block of this fraction to zero: a meter that was off and reports zeros.

    >>> held = outage(np.ones(20), np.random.default_rng(0))
    >>> int((held == 0).sum()), int(abs(np.diff(held)).sum()) <= 2
    (2, True)
    """
    size = min(len(y), round(share * len(y)))
    first = int(rng.integers(0, len(y) - size + 1))
    out = y.copy()
    out[first : first + size] = 0.0
    return out
