"""Admission context: the terms of a welcome, and the run and round open for updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.ingress.admission_policy import Limits, OpenRound
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.uploads import UploadCapacity
from aggregator.store.ledgers import Ledger
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import messages
from edge_sdk.protocol.contract.method import Update
from edge_sdk.protocol.envelope import PAYLOAD_LIMIT, SINGLE_PAYLOAD_LIMIT


@dataclass(frozen=True, slots=True)
class WelcomeTerms:
    """Terms that every welcome grants to a device, and the limits behind them."""

    inline: int = (
        messages.CHUNK_LIMIT
    )  # largest body sent without an offer, bytes; 0 = always offer
    # largest body of an update in one message, where a manifest allows it, bytes; 0 = none
    single: int = 0
    window: int = 8  # largest number of chunks in flight to one device
    quota: int = 64_000_000  # daily quota of a device, bytes
    hold: int = 2  # largest number of unreceipted outbox entries of a device
    caps: tuple[str, ...] = ()  # optional capabilities of the aggregator
    quotas: RateLimits = field(default_factory=RateLimits)
    room: UploadCapacity = field(default_factory=UploadCapacity)

    @property
    def largest_update(self) -> int:
        """Return the largest body of an update that may arrive in one message, bytes."""
        return max(self.inline, self.single)

    def payload_limit(self, kind: str) -> int:
        """Return the largest payload of a kind that is read, bytes.

        >>> WelcomeTerms(single=100_000).payload_limit("update"), WelcomeTerms().payload_limit("update")
        (262656, 65536)
        """
        is_single = kind == messages.UpdateMessage.kind and self.single > 0
        return SINGLE_PAYLOAD_LIMIT if is_single else PAYLOAD_LIMIT


def no_fault(_update: Update) -> str:
    """Return no fault: the limits are the only check of an update."""
    return ""


def everybody(_device: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """The run, round and version open for updates; the daemon replaces it at every change."""

    opened: OpenRound  # run, round and version
    limits: Limits  # bounds on an update
    is_paused: bool = False  # true while updates must wait; nothing is recorded meanwhile
    share: float = 1.0  # participation probability of a device
    cohort: bytes | None = None  # salt of the participation draw
    releases: int | None = None  # largest number of releases of a device; None = no limit here
    is_personal: bool = False  # true if only replies to tasks of single devices count
    oldest: int = 0  # first round of which every update is still in the journal
    # returns why a well-formed update cannot be of honest readings; empty if it can
    fault: Callable[[Update], str] = no_fault
    name: str = ""  # name of the run; empty for the one announced to all devices
    holds: Callable[[str], bool] = everybody  # returns whether a device belongs to the run's cohort
    announced: bytes = b""  # reference of the run's bundle announcement; empty for none

    def keeps(self, number: int) -> bool:
        """Return whether the journal shows which devices have an update in a round already."""
        return self.is_personal or number >= self.oldest


def wanted(context: AdmissionContext | None) -> AdmissionContext:
    """Return the context in which updates are admitted now; raise Refused, PAUSED, if they must wait."""
    if context is None or context.is_paused:
        raise Refused(Reason.PAUSED, "no round is open for updates")
    return context


def check_signal(device: str, run: int, context: AdmissionContext | None) -> None:
    """Refuse a signal that no open run takes from its sender: PAUSED, WRONG_RUN or NOT_IN_COHORT."""
    now = wanted(context)
    if run != now.opened.run:
        why = f"signal of run {run}, the open run is {now.opened.run}"
        raise Refused(Reason.WRONG_RUN, why)
    if not now.holds(device):
        raise Refused(Reason.NOT_IN_COHORT, device)


def welcome(
    terms: WelcomeTerms,
    hello: messages.HelloMessage,
    ref: bytes,
    ledger: Ledger,
    *,
    run: int,
    time: int,
    names: tuple[str, ...] = (),
    region: str = "",
) -> messages.WelcomeMessage:
    """Return the welcome for a device whose hello is accepted.

    Args:
        ref: Reference of the hello's message.
        run: The device's run, the first of its names; 0 before the first.
        time: Server time, Unix milliseconds.
        names: Names of the device's runs; none for the run that is announced to all.
        region: The device's label ``region``, if it has one.

    Example:
        Only capabilities of both ends are granted; the count of releases is the aggregator's.

        >>> hello = messages.HelloMessage(3, bytes(16), 5, False, (), (1, 1), ("zip", "tls"), "1", 1)
        >>> said = welcome(WelcomeTerms(caps=("tls",)), hello, bytes(16), Ledger(spent=7), run=0, time=1)
        >>> said.life, said.caps, said.spent
        (3, ('tls',), 7)
    """
    return messages.WelcomeMessage(
        hello=ref,
        life=hello.life,
        spent=ledger.spent,
        time=time,
        wire=messages.WIRE,
        caps=tuple(word for word in hello.caps if word in terms.caps),
        run=run,
        inline=terms.inline,
        window=terms.window,
        quota=terms.quota,
        hold=terms.hold,
        cmd=ledger.cmd,
        runs=names,
        region=region,
    )


def foreseen(device: str, offer: messages.OfferMessage, context: AdmissionContext) -> Reason | None:
    """Return the final refusal that an offer's header implies, or None; no chunk is needed."""
    now = context.opened
    if offer.run != now.run:
        return Reason.WRONG_RUN
    if offer.spec != context.limits.spec:
        return Reason.WRONG_SPEC
    if not context.holds(device):
        return Reason.NOT_IN_COHORT
    return _untimely(offer, context)


def _untimely(offer: messages.OfferMessage, context: AdmissionContext) -> Reason | None:
    now = context.opened
    if offer.base > now.version or offer.round > now.round:
        return Reason.FROM_FUTURE
    if now.version - offer.base > (context.limits.max_staleness or 0) or not context.keeps(
        offer.round
    ):
        return Reason.TOO_STALE
    if context.limits.max_staleness is None and (offer.round != now.round or not now.is_open):
        return Reason.LATE
    return None
