"""What is promised to devices, and what is open for them now."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.quotas import Quotas
from aggregator.uploads import Room
from edge_sdk.wire.admit import Limits, Opened
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.messages import CHUNK_LIMIT, Offer


@dataclass(frozen=True, slots=True)
class Terms:
    """What is promised to every device in its welcome, and the limits behind it.

    Attributes:
        inline: Largest body sent unasked, bytes; 0 = always offer.
        window: Chunks we may send a device at once.
        quota: Bytes a day a device may use.
        hold: Entries a device may have without a receipt.
        caps: Optional abilities we have.
        quotas: What one device may ask of us.
        room: How much may be on its way to us at once.
    """

    inline: int = CHUNK_LIMIT
    window: int = 8
    quota: int = 64_000_000
    hold: int = 2
    caps: tuple[str, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)
    room: Room = field(default_factory=Room)


@dataclass(frozen=True, slots=True)
class Turn:
    """What is open now: set by the daemon at every opening and closing.

    Attributes:
        opened: Run, round and version.
        limits: What an update must be.
        is_paused: Whether updates are to wait; nothing is recorded meanwhile.
        share: Probability with which a device takes part.
        cohort: Salt of that draw.
        releases: Most releases a device may make; None = not limited here.
        is_personal: Whether only answers to tasks of single devices count.
    """

    opened: Opened
    limits: Limits
    is_paused: bool = False
    share: float = 1.0
    cohort: bytes | None = None
    releases: int | None = None
    is_personal: bool = False


def foreseen(offer: Offer, turn: Turn) -> Reason | None:
    """Return the final reason that an offer's header already shows, before any chunk is sent."""
    now = turn.opened
    if offer.run != now.run:
        return Reason.WRONG_RUN
    if offer.spec != turn.limits.spec:
        return Reason.WRONG_SPEC
    if offer.base > now.version or offer.round > now.round:
        return Reason.FROM_FUTURE
    if now.version - offer.base > (turn.limits.max_staleness or 0):
        return Reason.TOO_STALE
    if turn.limits.max_staleness is None and (offer.round != now.round or not now.is_open):
        return Reason.LATE
    return None
