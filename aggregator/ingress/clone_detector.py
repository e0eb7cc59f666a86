"""Two processes under one identity, known by what a single one cannot say. Pure rules.

A process charges every release before it leaves, and its next hello tells the sum. So a release of
an older life with a *larger* count than a newer hello told was made by another process, or by a
store from before an image was put back: whatever a broker holds back or repeats, one process with
one store never gives such a sign. An image that is put back gives one or two, from what was still
on its way; two processes push each other's lives up in turn, and give one every other round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SIGNS = 3
"""So many newer lives that an older one outlived, and it is two processes."""

MEMORY = 7 * 86_400.0  # s after which a sign is forgotten


@dataclass(frozen=True, slots=True)
class _Greeted:
    """What the newest accepted hello of a device told.

    Attributes:
        life: The life it proposed.
        spent: Releases it had charged.
        signs: When older lives outlived newer ones, monotonic seconds; at most once for each.
        has_sign: Whether this life is one of them.
    """

    life: int
    spent: int
    signs: tuple[float, ...] = ()
    has_sign: bool = False


class CloneDetector:
    """Signs of second processes, by device. In memory only: two that go on give new ones.

    Example:
        Life 2 began with 5 releases, so a sixth one in life 1 was made by somebody else; the fifth
        one may have been on its way for an hour.

        >>> twins = CloneDetector()
        >>> twins.greeted("meter-1", life=2, spent=5)
        >>> [twins.outlived("meter-1", life=1, spent=n, now=0.0) for n in (5, 6, 7)]
        [0, 1, 0]
    """

    def __init__(self) -> None:
        """Begin without a suspicion."""
        self._known: dict[str, _Greeted] = {}

    def greeted(self, device: str, *, life: int, spent: int) -> None:
        """Note a hello that was accepted just now."""
        before = self._known.get(device)
        self._known[device] = _Greeted(life, spent, before.signs if before else ())

    def outlived(self, device: str, *, life: int, spent: int, now: float) -> int:
        """Look at a release; return how many signs there are if it is a new one, else 0."""
        known = self._known.get(device)
        if known is None or known.has_sign or life >= known.life or spent <= known.spent:
            return 0
        signs = (*(at for at in known.signs if now - at < MEMORY), now)
        self._known[device] = replace(known, signs=signs, has_sign=True)
        return len(signs)

    def forget(self, device: str) -> None:
        """The device was judged; whoever comes back with its name begins anew."""
        self._known.pop(device, None)
