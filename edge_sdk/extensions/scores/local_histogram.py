"""Answer with one cell of a histogram under local differential privacy, and estimate the histogram.

Two mechanisms of Wang, Blocki, Li and Jha, "Locally differentially private protocols for frequency
estimation" (USENIX Security 2017): direct encoding, which is k-ary randomised response (section
4.1), and optimised unary encoding (section 4.3). In both a device's own cell is supported by its
answer with probability p and every other cell with probability q; the estimate of a count is
(supported - n q) / (p - q), without bias.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final, Literal

from edge_sdk.app.lean_dataclass import dataclass

K_ARY: Final = "k-ary"
UNARY: Final = "unary"
How = Literal["k-ary", "unary"]
MECHANISMS: Final[tuple[How, How]] = (K_ARY, UNARY)
CELLS: Final = (2, 64)
"""Least and largest number of cells."""
EPSILONS: Final = (0.1, 10.0)
"""Least and largest epsilon of one answer."""


@dataclass(frozen=True, slots=True)
class LocalHistogram:
    """A mechanism for the answer of one device.

    Raises:
        ValueError: A number out of its bounds, or an unknown mechanism.
    """

    cells: int
    # privacy loss of one answer: for any two cells of the device, every answer is at most e^epsilon
    # times as likely under the one as under the other
    epsilon: float
    how: How  # ``k-ary`` or ``unary``

    def __post_init__(self) -> None:
        if not CELLS[0] <= self.cells <= CELLS[1]:
            raise ValueError(f"cells: {self.cells} is outside {CELLS[0]}…{CELLS[1]}")
        if not EPSILONS[0] <= self.epsilon <= EPSILONS[1]:
            raise ValueError(f"epsilon: {self.epsilon} is outside {EPSILONS[0]}…{EPSILONS[1]}")
        if self.how not in MECHANISMS:
            raise ValueError(f"how: {self.how!r} is not one of {', '.join(MECHANISMS)}")

    @classmethod
    def best(cls, cells: int, epsilon: float) -> LocalHistogram:
        """Return the mechanism whose estimate of a rare cell has the smaller variance.

        That is k-ary randomised response while cells - 2 is below 3 e^epsilon.

        >>> LocalHistogram.best(8, 1.0).how, LocalHistogram.best(8, 0.5).how
        ('k-ary', 'unary')
        """
        both = [cls(cells, epsilon, how) for how in MECHANISMS]
        return min(both, key=lambda one: one.variance(1.0, 0.0))

    @property
    def keep(self) -> float:
        """Probability p with which the answer supports the device's own cell."""
        if self.how == UNARY:
            return 0.5
        return 1.0 / (1.0 + (self.cells - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """Probability q with which the answer supports another cell."""
        if self.how == UNARY:
            return 1.0 / (math.exp(self.epsilon) + 1.0)
        return 1.0 / (math.exp(self.epsilon) + self.cells - 1)

    @property
    def size(self) -> int:
        """Bytes of an answer."""
        return 1 if self.how == K_ARY else (self.cells + 7) // 8

    def draw(self, cell: int, rng: random.Random) -> bytes:
        """Return a noisy answer of a device whose value is in this cell.

        Args:
            cell: The cell, 0 to ``cells`` - 1.
            rng: Source of randomness: ``random.SystemRandom`` on a device.
        """
        if not 0 <= cell < self.cells:
            raise ValueError(f"cell: {cell} is outside 0…{self.cells - 1}")
        if self.how == K_ARY:
            if rng.random() < self.keep:
                return bytes((cell,))
            drawn = rng.randrange(self.cells - 1)
            return bytes((drawn + (drawn >= cell),))
        bits = [
            rng.random() < (self.keep if one == cell else self.other) for one in range(self.cells)
        ]
        return sum(is_set << one for one, is_set in enumerate(bits)).to_bytes(self.size, "little")

    def supported(self, answer: bytes) -> tuple[int, ...]:
        """Return the cells that an answer supports.

        Raises:
            ValueError: No device draws such an answer.

        >>> LocalHistogram(8, 1.0, "k-ary").supported(bytes([5]))
        (5,)
        >>> LocalHistogram(8, 0.5, "unary").supported(bytes([0b101]))
        (0, 2)
        """
        if len(answer) != self.size:
            raise ValueError(f"answer: {len(answer)} bytes, expected {self.size}")
        value = int.from_bytes(answer, "little")
        if self.how == K_ARY:
            if value >= self.cells:
                raise ValueError(f"answer: cell {value} is outside 0…{self.cells - 1}")
            return (value,)
        if value >> self.cells:
            raise ValueError(f"answer: a bit above bit {self.cells - 1} is set")
        return tuple(one for one in range(self.cells) if value >> one & 1)

    def variance(self, answers: float, count: float) -> float:
        """Return the variance of the estimate of a count.

        Each of the ``count`` devices of the cell supports it with variance p (1 - p), each other
        one with q (1 - q). For a rare cell this is equation (3) of the paper.

        >>> f"{LocalHistogram(8, 1.0, 'unary').variance(1000, 0):.3f}"  # 4 n e / (e - 1)^2
        '3682.694'
        """
        p, q = self.keep, self.other
        return (count * p * (1 - p) + (answers - count) * q * (1 - q)) / (p - q) ** 2

    def estimate(
        self, supported: Sequence[int], answers: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return unbiased estimates of the counts of all cells, and their variances.

        An estimate may be below 0 or above the number of answers: cutting it off would bias sums.
        A variance is that at the estimate, cut to 0…``answers``.

        Args:
            supported: Number of answers that support each cell, ``(cells,)``.
        """
        p, q = self.keep, self.other
        counts = tuple((one - answers * q) / (p - q) for one in supported)
        spread = tuple(self.variance(answers, min(max(one, 0.0), answers)) for one in counts)
        return counts, spread
