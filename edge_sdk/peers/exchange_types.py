"""State of one peer exchange, and the results of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edge_sdk.peers.chunks import PeerChunks
from edge_sdk.wire.contract.parameter_layout import Vector
from edge_sdk.wire.protocol.messages import PeerMessage, SettleMessage
from edge_sdk.wire.protocol.outbox_state import RetryPolicy

Offered = Mapping[str, Vector]
"""Vectors that a device offers in one exchange, by part."""


@dataclass(frozen=True, slots=True)
class PeerLink:
    """The state of the link to one peer.

    Attributes:
        received: Slices received for the present exchange.
        early: Slices received for a later exchange, with its number.
        used: True if the link counts in the present exchange; None until it is settled.
        last: Last exchange in which it counted; -1 before any.
        ahead: Last exchange for which the peer sent a message; -1 before any.
        is_up: True if a message arrived since the last missed deadline. A link that is down is not
            waited for.
        due: Time to repeat an unanswered offer.
        attempts: Number of times that it was sent.
    """

    received: PeerChunks
    early: tuple[int, PeerChunks] | None = None
    used: bool | None = None
    last: int = -1
    ahead: int = -1
    is_up: bool = True
    due: float = 0.0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class PeerExchange:
    """The exchange of one device with its peers.

    Attributes:
        me: Id of the device.
        run: Number of the training run.
        epoch: Number of the start; a higher one of a peer must be joined.
        spec: Layout digest of every vector.
        size: Scalars of each vector.
        is_strict: True to wait for a decision without limit. Required with a tracker: a link whose
            two ends disagree would make the sum of the trackers inconsistent.
        deadline: Seconds to wait for a peer's vector.
        pace: Intervals between repeats of an unanswered offer.
        links: Peers by id, in order.
        step: Present exchange, over or not; -1 before the first.
        parts: Names of the vectors exchanged in it.
        offers: Offers of the present exchange, and of older ones that may still be requested.
        began: Start time of the present one.
        quiet: Time until which nothing is decided: the link to the broker has just come back, and
            messages queued there are still arriving.
    """

    me: str
    run: int
    epoch: int
    spec: bytes
    size: int
    is_strict: bool
    deadline: float
    links: Mapping[str, PeerLink]
    pace: RetryPolicy = field(default_factory=RetryPolicy)
    step: int = -1
    parts: tuple[str, ...] = ()
    offers: Mapping[int, Offered] = field(default_factory=dict)
    began: float = 0.0
    quiet: float = 0.0

    def decides(self, name: str) -> bool:
        """Return whether this end decides if the link counts."""
        return self.me < name

    @property
    def is_over(self) -> bool:
        """Return whether every link is settled, and every counting vector is complete."""
        return all(
            link.used is False or (link.used is True and link.received.has(self.parts))
            for link in self.links.values()
        )

    @property
    def is_behind(self) -> bool:
        """Return whether some peer has sent a message for a later exchange than the present one."""
        return any(link.ahead > self.step for link in self.links.values())

    @property
    def used(self) -> tuple[str, ...]:
        """Peers whose vectors count in the present exchange, in order of id."""
        return tuple(name for name, link in sorted(self.links.items()) if link.used)


class LinkDecision(NamedTuple):
    """A decision about a link, to be saved before the peer receives it."""

    name: str
    step: int
    used: bool
    last: int
    received: PeerChunks


class NewerEpoch(NamedTuple):
    """A note that a peer is in a higher epoch, at this exchange."""

    epoch: int
    step: int


class LinkDisagreement(NamedTuple):
    """A note that the two ends of a link may have decided differently about an exchange."""

    name: str
    step: int


class Lost(NamedTuple):
    """A note that a link counted in an exchange unknown to this device: its store was lost."""

    name: str
    step: int


Note = NewerEpoch | LinkDisagreement | Lost
"""A condition that the caller must handle."""


class ExchangeStep(NamedTuple):
    """The result of one event: the next state, decisions to save, messages to send, notes."""

    exchange: PeerExchange
    decided: tuple[LinkDecision, ...] = ()
    messages: tuple[tuple[str, PeerMessage | SettleMessage], ...] = ()
    notes: tuple[Note, ...] = ()
