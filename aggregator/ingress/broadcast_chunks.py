"""When many devices miss the same piece of a model, one publish serves them all. Pure rules."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

MOST = 20  # devices that are answered one by one; more within ``WITHIN`` are a crowd
WITHIN = 10.0  # s
REMEMBERED = 1_024  # pieces; a body has at most 256

Piece = tuple[bytes, int]
"""The name of a body, and the number of one of its chunks."""


@dataclass(slots=True)
class _Asked:
    """Who asked for a piece when, and when it was last published for all."""

    devices: dict[str, float] = field(default_factory=dict)
    said: float = float("-inf")


class Crowds:
    """Who asked for which piece lately.

    Example:
        >>> crowds, piece = Crowds(), (b"model", 3)
        >>> sum(crowds.grows(f"meter-{n}", piece, now=0.0) for n in range(25))
        5
        >>> crowds.is_waiting(piece, now=1.0), crowds.is_waiting(piece, now=2.0)
        (True, False)
        >>> crowds.grows("meter-0", piece, now=20.0)  # the others have it by now
        False
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self._asked: OrderedDict[Piece, _Asked] = OrderedDict()

    def grows(self, device: str, piece: Piece, now: float) -> bool:
        """Note that a device misses a piece; return whether it is one of a crowd."""
        asked = self._asked.setdefault(piece, _Asked())
        self._asked.move_to_end(piece)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked.devices = {d: at for d, at in asked.devices.items() if now - at < WITHIN}
        asked.devices[device] = now
        return len(asked.devices) > MOST

    def is_waiting(self, piece: Piece, now: float) -> bool:
        """Whether the piece should be published for all now; it counts as published from here."""
        asked = self._asked.setdefault(piece, _Asked())
        if now - asked.said < WITHIN:
            return False
        asked.said = now
        return True
