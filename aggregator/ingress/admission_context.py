"""What is promised to devices, and what is open for them now."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.uploads import UploadCapacity
from aggregator.store.sequence_ledger import Ledger
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.admission_policy import Limits, OpenRound
from edge_sdk.wire.protocol.messages import (
    CHUNK_LIMIT,
    WIRE,
    HelloMessage,
    OfferMessage,
    WelcomeMessage,
)


@dataclass(frozen=True, slots=True)
class WelcomeTerms:
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
    quotas: RateLimits = field(default_factory=RateLimits)
    room: UploadCapacity = field(default_factory=UploadCapacity)


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What is open now: set by the daemon at every opening and closing.

    Attributes:
        opened: Run, round and version.
        limits: What an update must be.
        is_paused: Whether updates are to wait; nothing is recorded meanwhile.
        share: Probability with which a device takes part.
        cohort: Salt of that draw.
        releases: Most releases a device may make; None = not limited here.
        is_personal: Whether only answers to tasks of single devices count.
        oldest: First round of which every update is still in the journal.
    """

    opened: OpenRound
    limits: Limits
    is_paused: bool = False
    share: float = 1.0
    cohort: bytes | None = None
    releases: int | None = None
    is_personal: bool = False
    oldest: int = 0

    def keeps(self, number: int) -> bool:
        """Whether the journal shows which devices have an update in a round already."""
        return self.is_personal or number >= self.oldest


def wanted(turn: AdmissionContext | None) -> AdmissionContext:
    """Return the turn whose updates are taken now.

    Raises:
        Refused: PAUSED; nothing is recorded meanwhile.
    """
    if turn is None or turn.is_paused:
        raise Refused(Reason.PAUSED, "no updates are wanted now")
    return turn


def welcome(
    terms: WelcomeTerms, hello: HelloMessage, ref: bytes, ledger: Ledger, *, run: int, time: int
) -> WelcomeMessage:
    """Return what a device that may come in is promised.

    Args:
        terms: The promise.
        hello: What it said.
        ref: Which message that was.
        ledger: Its numbers after it.
        run: The run that is open; 0 before the first.
        time: Server time, Unix milliseconds.

    Example:
        Only abilities that both have are promised, and the account is ours.

        >>> hello = HelloMessage(3, bytes(16), 5, False, (), (1, 1), ("zip", "tls"), "1", 1)
        >>> said = welcome(WelcomeTerms(caps=("tls",)), hello, bytes(16), Ledger(spent=7), run=0, time=1)
        >>> said.life, said.caps, said.spent
        (3, ('tls',), 7)
    """
    return WelcomeMessage(
        hello=ref,
        life=hello.life,
        spent=ledger.spent,
        time=time,
        wire=WIRE,
        caps=tuple(word for word in hello.caps if word in terms.caps),
        run=run,
        inline=terms.inline,
        window=terms.window,
        quota=terms.quota,
        hold=terms.hold,
        cmd=ledger.cmd,
    )


def foreseen(offer: OfferMessage, turn: AdmissionContext) -> Reason | None:
    """Return the final reason that an offer's header already shows, before any chunk is sent."""
    now = turn.opened
    if offer.run != now.run:
        return Reason.WRONG_RUN
    if offer.spec != turn.limits.spec:
        return Reason.WRONG_SPEC
    if offer.base > now.version or offer.round > now.round:
        return Reason.FROM_FUTURE
    if now.version - offer.base > (turn.limits.max_staleness or 0) or not turn.keeps(offer.round):
        return Reason.TOO_STALE
    if turn.limits.max_staleness is None and (offer.round != now.round or not now.is_open):
        return Reason.LATE
    return None
