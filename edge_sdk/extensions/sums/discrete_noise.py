"""Draw discrete Gaussian noise, of which several devices add a part each."""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.sums.seed import SEED_SIZE, stream
from edge_sdk.privacy.mechanism import Entropy
from edge_sdk.privacy.noise import uniform

_AT_ONCE = 16_384
"""Candidates that are drawn at once: they stay in the processor's cache."""


def expanded(size: int) -> bytes:
    """Return the ChaCha20 stream of a fresh seed: ten times as fast as the operating system's entropy."""
    return stream(secrets.token_bytes(SEED_SIZE), size)


def discrete_gaussian(count: int, sigma: float, entropy: Entropy = expanded) -> NDArray[np.int64]:
    """Draw integers with probability proportional to exp(-k² / (2 σ²)), shape ``(count,)``.

    Rejection from a discrete Laplace distribution (Canonne, Kamath and Steinke, "The discrete Gaussian
    for differential privacy", 2020, algorithm 3). Sums of such numbers are as private as one of their
    total variance, to 10⁻¹⁵ for ``sigma`` of 4 and more (Kairouz, Liu and Steinke, "The distributed discrete
    Gaussian mechanism", 2021, theorem 2). Decisions are exact to 2⁻⁵³, and the numbers have no last bits.

    Args:
        sigma: Between 0.1 and 2³⁶.
    """
    drawn, missing = [np.zeros(0, np.int64)], count
    scale = math.floor(sigma) + 1
    while missing > 0:
        size = min(4 * missing // 3 + 64, _AT_ONCE)  # three of four are kept if sigma is large
        steps = np.floor(-scale * np.log(uniform(size, entropy)))
        is_negative = np.frombuffer(entropy(size), np.uint8) & 1 == 1
        excess = np.exp(-((steps - sigma**2 / scale) ** 2) / (2.0 * sigma**2))
        is_kept = (uniform(size, entropy) <= excess) & ~(is_negative & (steps == 0.0))
        drawn.append(np.where(is_negative, -steps, steps)[is_kept].astype(np.int64))
        missing -= len(drawn[-1])
    return np.concatenate(drawn)[:count]
