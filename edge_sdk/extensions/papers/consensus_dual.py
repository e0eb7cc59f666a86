"""Compute the consensus dual, which both ends hold and neither sends: one step, and its check.

A device's dual sets the strength of its penalty towards the consensus. It is never on the wire,
since a Byzantine device could send any value; instead device and server compute it from shared
data: the earlier dual, the weights the device sent, and the consensus announced after them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = TypeVar("Floats", bound=NDArray[np.floating[Any]])

CHECK_BYTES = 8
_GRAIN = 1e-4
_LARGEST = float(2**31 - 1)


@dataclass(frozen=True, slots=True)
class Ascent:
    """Step rule of a consensus dual."""

    rate: float  # step size (BAFDP's alpha_phi, ASPIRE-EASE's rho_2); 0 leaves every dual unchanged
    # bound of every coordinate (phi_max); infinity is the paper's own form, in which one Byzantine
    # device can move the consensus without bound
    most: float
    least: float = 0.0  # floor of the damping (kappa_min)
    # power of the firing's index by which the damping falls: 1/4 in BAFDP, 1/8 in the readable text
    # of ASPIRE-EASE
    fading: float = 0.25

    def __post_init__(self) -> None:
        if not self.rate * self.least <= 1.0:
            raise ValueError(f"rate * least: expected at most 1, got {self.rate * self.least}")


def damping(rate: float, fired: int, least: float = 0.0, fading: float = 0.25) -> float:
    """Return kappa at a firing, ``max(1 / (rate (fired + 1)^fading), least)``.

    So ``1 - rate * kappa`` is ``1 - (fired + 1)^-fading``, which lies in [0, 1): at firing 0 the
    old dual is dropped, later a falling part of it.

    >>> [round(0.1 * damping(0.1, t), 6) for t in (0, 15, 80)]
    [1.0, 0.5, 0.333333]
    """
    fades: float = (fired + 1.0) ** -fading
    return max(fades / rate, least)


def next_dual(dual: Floats, z: Floats, w: Floats, fired: int, ascent: Ascent) -> Floats:
    """Return the dual after a firing: a damped step along ``z - w``, clipped.

    Both ends call this with the same operands: float32, as they were on the wire. The result is
    then identical bit for bit. The arithmetic is done in the arrays' own dtype.

    Args:
        dual: Dual before the firing, shape ``(P,)``.
        z: Consensus that the firing produced.
        w: Weights that the device sent for it.
        fired: Index of that firing, from 0.

    Source:
        BAFDP (22), ASPIRE-EASE (15). The papers project the dual on a box of unnamed size; a server
        that also sums over Byzantine devices must choose it (``Ascent.most``).

    Example:
        The second device of the worked example lies 0.71 above the consensus; a dual that dropped
        its old value at firing 0 is minus a tenth of that, not -0.27.

        >>> one = Ascent(rate=0.1, most=0.5)
        >>> next_dual(np.array([-0.2]), np.array([1.01]), np.array([1.72266874]), 0, one)
        array([-0.07126687])
        >>> next_dual(np.zeros(1), np.zeros(1), np.array([1e30]), 0, one)
        array([-0.5])
    """
    if ascent.rate == 0.0:
        return dual
    kappa = damping(ascent.rate, fired, ascent.least, ascent.fading)
    scalar = dual.dtype.type
    with np.errstate(over="ignore", invalid="ignore"):
        climbed = dual * scalar(1.0 - ascent.rate * kappa) + (z - w) * scalar(ascent.rate)
    bounded: Floats = np.clip(climbed, scalar(-ascent.most), scalar(ascent.most))
    return bounded


def dual_digest(dual: NDArray[np.floating[Any]]) -> bytes:
    """Return 8 bytes that two ends compare to detect diverging duals.

    They are the first of SHA-256 over the dual rounded to 1e-4, int32, little-endian: float32
    rounding on another platform rarely changes them, a missed firing does. Where they differ, the
    server's copy has precedence.

    >>> dual_digest(np.array([0.5, -0.07126687])) == dual_digest(np.array([0.5, -0.07126690]))
    True
    >>> dual_digest(np.zeros(2)) == dual_digest(np.array([0.0, 0.001]))
    False
    """
    grains = np.clip(np.rint(np.asarray(dual, np.float64) / _GRAIN), -_LARGEST, _LARGEST)
    return hashlib.sha256(grains.astype("<i4").tobytes()).digest()[:CHECK_BYTES]
