"""Draw frozen random units by name and seed: non-linear features that no device has to send.

A unit is ``min(6, max(0, zᵀw + b))`` of standardised features z. Its numbers are drawn with integer
arithmetic alone, so every language gets the same bits:

1. key = the first 16 bytes of SHA-256 of ``gridfed/1/analytic/units`` NUL name NUL seed (decimal),
   as two little-endian 64-bit words;
2. words = Philox4x64 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
   2011), counter 1, 2, 3, …, four words a block, lowest word first (numpy's ``random_raw``);
3. a unit reads m of the k features. If m < k, it takes k words first and reads the features of the
   m smallest, the earlier one of equals;
4. each feature that it reads, in order, takes six words: the sum S of their twelve 32-bit halves
   gives w = (S / 2³² - 6) / √m, nearly normal with variance 1 / m (Irwin-Hall);
5. one more word u gives b = ⌊u / 2¹¹⌋ · 2⁻⁵² - 1, uniform on [-1, 1). The next unit continues there.

The first R units of a longer draw are the units of a draw of R.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.standardise import CLIP

Floats = NDArray[np.float64]
Precision = TypeVar("Precision", np.float32, np.float64)

DOMAIN = "gridfed/1/analytic/units"
_WORDS = 6  # 64-bit words of a weight: twelve 32-bit uniform numbers


@dataclass(frozen=True, slots=True, eq=False)
class RandomUnits:
    """Frozen units."""

    weights: Floats  # shape ``(k, R)``; 0 where a unit does not read a feature
    offsets: Floats  # shape ``(R,)``

    @classmethod
    def draw(
        cls, name: str, seed: int, features: int, units: int, fan_in: int | None = None
    ) -> RandomUnits:
        """Draw ``units`` units over ``features`` features.

        Args:
            name: Name of the draw, by convention the bundle's.
            features: Number k of standardised features, at least 1.
            units: Number R of units; 0 is allowed.
            fan_in: Number m of features that a unit reads, from 1; all if left out or not below k.

        >>> units = RandomUnits.draw("load", 1, 2, 3)
        >>> units.weights[:, 0].round(6).tolist(), round(float(units.offsets[0]), 6)
        ([-1.042446, 1.190076], -0.760523)
        """
        digest = hashlib.sha256("\0".join((DOMAIN, name, str(seed))).encode()).digest()
        source = np.random.Philox(key=np.frombuffer(digest[:16], "<u8").astype(np.uint64))
        reads = features if fan_in is None else min(fan_in, features)
        chooses = features if reads < features else 0
        length = chooses + _WORDS * reads + 1
        words = source.random_raw(units * length).reshape(units, length)
        order = np.argsort(words[:, :chooses], axis=1, kind="stable")[:, :reads]
        places = np.sort(order, axis=1) if chooses else np.tile(np.arange(reads), (units, 1))
        used = words[:, chooses:-1]
        halves = (used >> np.uint64(32)) + (used & np.uint64(0xFFFFFFFF))
        sums = halves.reshape(units, reads, _WORDS).sum(axis=2).astype(np.float64)
        weights = np.zeros((units, features))
        drawn = (sums / 2.0**32 - 6.0) / np.sqrt(float(reads))
        np.put_along_axis(weights, places, drawn, axis=1)
        offsets = (words[:, -1] >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return cls(np.ascontiguousarray(weights.T, np.float64), offsets)

    def design(self, standard: NDArray[Precision]) -> NDArray[Precision]:
        """Return the design rows φ: the features, the units, and the constant 1.

        Args:
            standard: Standardised features, shape ``(n, k)``; float32 gives float32.

        Returns:
            Shape ``(n, k + R + 1)``; no entry is above 6 in modulus.
        """
        rows, places = standard.shape
        kind = standard.dtype
        design = np.ones((rows, places + len(self.offsets) + 1), kind)
        design[:, :places] = standard
        active = standard @ self.weights.astype(kind) + self.offsets.astype(kind)
        design[:, places:-1] = np.clip(active, 0.0, CLIP)
        return design


def clip_rows(design: Floats, bound: float) -> Floats:
    """Scale rows that are longer than ``bound`` down to it, for a bounded sensitivity.

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    length = np.linalg.norm(design, axis=1, keepdims=True)
    return np.asarray(design * np.minimum(1.0, bound / np.maximum(length, 1e-300)))
