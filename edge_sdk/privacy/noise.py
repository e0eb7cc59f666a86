"""Draw noise from the operating system's randomness, which cannot be reproduced.

The samplers work on floating-point numbers, so the last bits of a release depend on the hidden
value (Mironov, "On significance of the least significant bits", 2012). ``round_towards_zero`` and ``round_to_grid``
put values on a coarse grid before and after, which removes those bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Entropy = Callable[[int], bytes]
"""Function that returns random bytes; only a test passes anything but ``os.urandom``."""

GRID = 2.0**-20
"""Grid step, in units of the sensitivity."""


def normal(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw standard normal numbers (Box and Muller, from 64-bit uniforms), shape ``(count,)``.

    The largest possible value is 9.4: a true sample exceeds it once in 10²⁰ draws.

    >>> normal(3, lambda size: bytes([127]) * size).round(6)
    array([-1.180653,  0.014546, -1.180653])
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(entropy(16 * pairs), "<u8").reshape(2, pairs)
    radius = np.sqrt(-2.0 * np.log(_open(bits[0], 64)))
    angle = 2.0 * np.pi * _open(bits[1], 64)
    out = np.empty(2 * pairs)
    out[0::2], out[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return out[:count]


def laplace(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw Laplace numbers of scale 1, shape ``(count,)``.

    >>> laplace(2, lambda size: bytes([127]) * size).round(6)
    array([-0.697076, -0.697076])
    """
    bits = np.frombuffer(entropy(8 * count), "<u8")
    size: Floats = -np.log(_open(bits >> np.uint64(1), 63))
    return np.where(bits & np.uint64(1), -size, size)


def uniform(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw uniform numbers in (0, 1], shape ``(count,)``."""
    return _open(np.frombuffer(entropy(8 * count), "<u8"), 64)


def round_towards_zero(values: Floats, step: float) -> Floats:
    """Round values towards zero onto a grid: no norm grows by it.

    >>> round_towards_zero(np.array([0.9, -0.9, 2.0]), 0.5)
    array([ 0.5, -0.5,  2. ])
    """
    return np.trunc(values / step) * step


def round_to_grid(values: Floats, step: float) -> Floats:
    """Round values to the nearest point of a grid.

    >>> round_to_grid(np.array([0.9, -0.9]), 0.5)
    array([ 1., -1.])
    """
    return np.rint(values / step) * step


def _open(bits: NDArray[np.uint64], width: int) -> Floats:
    """Convert words to numbers in (0, 1]: never 0, whose logarithm is undefined."""
    return (bits.astype(np.float64) + 1.0) * 2.0**-width
