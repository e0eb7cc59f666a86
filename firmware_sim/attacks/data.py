"""Attacks on the readings: the device is honest, what it was given to learn from is not.

Functions of the target on the device's own unit interval, pure and a value a reading: what is an
input in one window and a target in another is the same lie in both. ``label_flip`` alone leaves
the inputs as they were read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scaled = NDArray[np.float64]
"""The target, scaled, shape ``(T,)``, oldest first; NaN where nobody measured."""


def label_flip(y: Scaled, rng: np.random.Generator) -> Scaled:  # noqa: ARG001 - one signature for all
    """Turn the targets upside down: ``max + min - y`` over what was observed.

    >>> label_flip(np.array([0.0, 0.25, np.nan, 1.0]), np.random.default_rng(0)).tolist()
    [1.0, 0.75, nan, 0.0]
    """
    if not np.isfinite(y).any():
        return y.copy()
    return np.nanmax(y) + np.nanmin(y) - y


def bias(y: Scaled, rng: np.random.Generator, *, by: float = 0.5) -> Scaled:  # noqa: ARG001 - as above
    """Shift everything by a constant share of the device's range."""
    return y + by


def ramp(y: Scaled, rng: np.random.Generator, *, by: float = 0.5) -> Scaled:  # noqa: ARG001 - as above
    """Let a meter drift: from no shift at the first reading to ``by`` at the end.

    >>> ramp(np.zeros(5), np.random.default_rng(0), by=1.0).tolist()
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    return y + by * np.arange(len(y)) / max(len(y), 1)


def scale(y: Scaled, rng: np.random.Generator, *, factor: float = 2.0) -> Scaled:  # noqa: ARG001 - as above
    """Multiply everything: a wrong ratio of a current transformer."""
    return y * factor


def outage(y: Scaled, rng: np.random.Generator, *, share: float = 0.1) -> Scaled:
    """Zero one block of so large a share, somewhere: a meter that was off and says it was not.

    >>> held = outage(np.ones(20), np.random.default_rng(0))
    >>> int((held == 0).sum()), int(abs(np.diff(held)).sum()) <= 2
    (2, True)
    """
    size = min(len(y), round(share * len(y)))
    first = int(rng.integers(0, len(y) - size + 1))
    out = y.copy()
    out[first : first + size] = 0.0
    return out
