"""Admission context: the terms of a welcome, and the run and round open for updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.ingress.log_continuation import LogContinuation
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.uploads import UploadCapacity
from aggregator.store.sequence_ledger import Ledger
from edge_sdk.wire.contract.method import Update
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol.admission_policy import Limits, OpenRound
from edge_sdk.wire.protocol.envelope import PAYLOAD_LIMIT, SINGLE_PAYLOAD_LIMIT
from edge_sdk.wire.protocol.messages import (
    CHUNK_LIMIT,
    WIRE,
    HelloMessage,
    OfferMessage,
    UpdateMessage,
    WelcomeMessage,
)


@dataclass(frozen=True, slots=True)
class WelcomeTerms:
    """Terms that every welcome grants to a device, and the limits behind them.

    Attributes:
        inline: Largest body sent without an offer, bytes; 0 = always offer.
        single: Largest body of an update in one message, where a manifest allows it, bytes; 0 = none.
        window: Largest number of chunks in flight to one device.
        quota: Daily quota of a device, bytes.
        hold: Largest number of unreceipted outbox entries of a device.
        caps: Optional capabilities of the aggregator.
        quotas: Rate limits of one device.
        room: Capacity for uploads in flight.
    """

    inline: int = CHUNK_LIMIT
    single: int = 0
    window: int = 8
    quota: int = 64_000_000
    hold: int = 2
    caps: tuple[str, ...] = ()
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
        is_single = kind == UpdateMessage.kind and self.single > 0
        return SINGLE_PAYLOAD_LIMIT if is_single else PAYLOAD_LIMIT


def no_fault(_update: Update) -> str:
    """Return no fault: nothing but the limits is known about an update."""
    return ""


def everybody(_device: str) -> bool:
    """Return True: the run takes every device."""
    return True


def never_set_aside(_device: str, _digest: bytes) -> bool:
    """Return False: no body caused a defect before."""
    return False


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """The run, round and version open for updates; the daemon replaces it at every change.

    Attributes:
        opened: Run, round and version.
        limits: Bounds on an update.
        is_paused: True while updates must wait; nothing is recorded meanwhile.
        share: Participation probability of a device.
        cohort: Salt of the participation draw.
        releases: Largest number of releases of a device; None = no limit here.
        is_personal: True if only replies to tasks of single devices count.
        oldest: First round of which every update is still in the journal.
        fault: Returns why a well-formed update cannot be of honest readings; empty if it can.
        name: Name of the run; empty for the one announced to all devices.
        holds: Returns whether a device belongs to the run's cohort.
        announced: Reference of the run's bundle announcement; empty for none.
    """

    opened: OpenRound
    limits: Limits
    is_paused: bool = False
    share: float = 1.0
    cohort: bytes | None = None
    releases: int | None = None
    is_personal: bool = False
    oldest: int = 0
    fault: Callable[[Update], str] = no_fault
    name: str = ""
    holds: Callable[[str], bool] = everybody
    announced: bytes = b""

    def keeps(self, number: int) -> bool:
        """Return whether the journal shows which devices have an update in a round already."""
        return self.is_personal or number >= self.oldest


def wanted(context: AdmissionContext | None) -> AdmissionContext:
    """Return the context in which updates are admitted now.

    Raises:
        Refused: PAUSED if updates must wait; nothing is recorded meanwhile.
    """
    if context is None or context.is_paused:
        raise Refused(Reason.PAUSED, "no round is open for updates")
    return context


def check_signal(device: str, run: int, context: AdmissionContext | None) -> None:
    """Refuse a transient signal that no open run takes from its sender.

    Raises:
        Refused: PAUSED, WRONG_RUN or NOT_IN_COHORT.
    """
    now = wanted(context)
    if run != now.opened.run:
        why = f"signal of run {run}, the open run is {now.opened.run}"
        raise Refused(Reason.WRONG_RUN, why)
    if not now.holds(device):
        raise Refused(Reason.NOT_IN_COHORT, device)


def welcome(
    terms: WelcomeTerms,
    hello: HelloMessage,
    ref: bytes,
    ledger: Ledger,
    *,
    run: int,
    time: int,
    names: tuple[str, ...] = (),
    region: str = "",
    proof: LogContinuation | None = None,
) -> WelcomeMessage:
    """Return the welcome for a device whose hello is accepted.

    Args:
        terms: The terms to grant.
        hello: The device's hello.
        ref: Reference of the hello's message.
        ledger: The device's ledger after the hello.
        run: The device's run, the first of its names; 0 before the first.
        time: Server time, Unix milliseconds.
        names: Names of the device's runs; none for the run that is announced to all.
        region: The device's label ``region``, if it has one.
        proof: Proof that the log of models continues the checkpoint in the hello, if it has one.

    Example:
        Only capabilities of both ends are granted; the count of releases is the aggregator's.

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
        runs=names,
        region=region,
        note=proof.note if proof is not None else None,
        path=proof.path if proof is not None else b"",
    )


def foreseen(device: str, offer: OfferMessage, context: AdmissionContext) -> Reason | None:
    """Return the final refusal that an offer's header implies, or None; no chunk is needed."""
    now = context.opened
    if offer.run != now.run:
        return Reason.WRONG_RUN
    if offer.spec != context.limits.spec:
        return Reason.WRONG_SPEC
    if not context.holds(device):
        return Reason.NOT_IN_COHORT
    return _untimely(offer, context)


def _untimely(offer: OfferMessage, context: AdmissionContext) -> Reason | None:
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
