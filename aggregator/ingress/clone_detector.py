"""Detect cloned identities from release counts that one process cannot produce. Pure rules.

A process charges every release before it sends it, and its next hello states the sum. A release of
an older life with a *larger* count than a newer hello therefore comes from another process, or
from the store before an image was restored. Delays and repeats of a broker never produce this
sign. A restored image produces one or two, from messages still in flight; two processes raise each
other's lives in turn and produce one every other round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SIGNS = 3
"""Signs after which an identity counts as cloned."""

MEMORY = 7 * 86_400.0  # s after which a sign is forgotten


@dataclass(frozen=True, slots=True)
class _Greeted:
    """State of a device after its newest accepted hello.

    Attributes:
        life: The proposed life.
        spent: Releases charged by then.
        signs: Times at which an older life outlived a newer one, monotonic seconds; one per life.
        has_sign: True if this life is one of them.
    """

    life: int
    spent: int
    signs: tuple[float, ...] = ()
    has_sign: bool = False


class CloneDetector:
    """Signs of cloned identities, by device. In memory only: two live processes give new signs.

    Example:
        Life 2 began with 5 releases, so a sixth one in life 1 comes from another process; the
        fifth one may have been in flight for an hour.

        >>> twins = CloneDetector()
        >>> twins.greeted("meter-1", life=2, spent=5)
        >>> [twins.outlived("meter-1", life=1, spent=n, now=0.0) for n in (5, 6, 7)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        """Start without signs."""
        self._known: dict[str, _Greeted] = {}

    def greeted(self, device: str, *, life: int, spent: int) -> None:
        """Record an accepted hello."""
        before = self._known.get(device)
        self._known[device] = _Greeted(life, spent, before.signs if before else ())

    def outlived(self, device: str, *, life: int, spent: int, now: float) -> int:
        """Check a release; return the number of signs if it adds one, else 0."""
        known = self._known.get(device)
        if known is None or known.has_sign or life >= known.life or spent <= known.spent:
            return 0
        signs = (*(at for at in known.signs if now - at < MEMORY), now)
        self._known[device] = replace(known, signs=signs, has_sign=True)
        return len(signs)

    def forget(self, device: str) -> None:
        """Delete the signs of a device, after its quarantine."""
        self._known.pop(device, None)
