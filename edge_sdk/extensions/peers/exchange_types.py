"""State of one peer exchange, and the results of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.peers.chunks import PeerChunks
from edge_sdk.extensions.peers.messages import PeerMessage, SettleMessage
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.protocol.outbox_state import RetryPolicy

Offered = Mapping[str, Vector]
"""Vectors that a device offers in one exchange, by part."""


@dataclass(frozen=True, slots=True)
class PeerLink:
    """The state of the link to one peer."""

    received: PeerChunks  # slices received for the present exchange
    # slices received for a later exchange, with its number
    early: tuple[int, PeerChunks] | None = None
    # true if the link counts in the present exchange; None until it is settled
    used: bool | None = None
    last: int = -1  # last exchange in which it counted; -1 before any
    ahead: int = -1  # last exchange for which the peer sent a message; -1 before any
    # true if a message arrived since the last missed deadline. A link that is down is not waited
    # for.
    is_up: bool = True
    due: float = 0.0  # time to repeat an unanswered offer
    attempts: int = 0  # number of times that it was sent


@dataclass(frozen=True, slots=True)
class PeerExchange:
    """The exchange of one device with its peers."""

    me: str  # id of the device
    run: int
    epoch: int  # number of the start; a higher one of a peer must be joined
    spec: bytes  # layout digest of every vector
    size: int  # scalars of each vector
    # true to wait for a decision without limit. Required with a tracker: a link whose two ends
    # disagree would make the sum of the trackers inconsistent.
    is_strict: bool
    deadline: float  # seconds to wait for a peer's vector
    links: Mapping[str, PeerLink]  # peers by id, in order
    # intervals between repeats of an unanswered offer
    pace: RetryPolicy = field(default_factory=RetryPolicy)
    step: int = -1  # present exchange, over or not; -1 before the first
    parts: tuple[str, ...] = ()  # names of the vectors exchanged in it
    # offers of the present exchange, and of older ones that may still be requested
    offers: Mapping[int, Offered] = field(default_factory=dict)
    began: float = 0.0
    # time until which nothing is decided: the link to the broker has just come back, and messages
    # queued there are still arriving
    quiet: float = 0.0

    def decides(self, name: str) -> bool:
        return self.me < name

    @property
    def is_over(self) -> bool:
        return all(
            link.used is False or (link.used is True and link.received.has(self.parts))
            for link in self.links.values()
        )

    @property
    def is_behind(self) -> bool:
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
