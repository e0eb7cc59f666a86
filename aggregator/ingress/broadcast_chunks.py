"""Rules for publishing a model chunk once to all devices when many request it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

MOST = 20  # requests answered individually within ``WITHIN``; further ones get a broadcast
WITHIN = 10.0  # s
REMEMBERED = 1_024  # chunks; a body has at most 256

Piece = tuple[bytes, int]
"""Id of a body, and the index of one of its chunks."""


@dataclass(slots=True)
class _Asked:
    """Recent requests for one chunk, by device, and the time of its last broadcast."""

    devices: dict[str, float] = field(default_factory=dict)
    broadcast_at: float = float("-inf")


class Crowds:
    """Recent chunk requests, and the decision to broadcast.

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
        """Start without requests."""
        self._asked: OrderedDict[Piece, _Asked] = OrderedDict()

    def grows(self, device: str, piece: Piece, now: float) -> bool:
        """Record a request; return True if the chunk should be broadcast."""
        asked = self._asked.setdefault(piece, _Asked())
        self._asked.move_to_end(piece)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        asked.devices = {d: at for d, at in asked.devices.items() if now - at < WITHIN}
        asked.devices[device] = now
        return len(asked.devices) > MOST

    def is_waiting(self, piece: Piece, now: float) -> bool:
        """Return whether the chunk should be broadcast now; if so, record the broadcast."""
        asked = self._asked.setdefault(piece, _Asked())
        if now - asked.broadcast_at < WITHIN:
            return False
        asked.broadcast_at = now
        return True
