"""Events that the parts of a session return: what has arrived for the client."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.session.verified_message import VerifiedMessage
from edge_sdk.wire.contract.method import Task
from edge_sdk.wire.protocol.messages import BundleMessage, TaskMessage


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle announcement to follow, its bytes, and the archive if it was not installed."""

    announced: BundleMessage
    body: bytes
    archive: bytes | None


@dataclass(frozen=True, slots=True)
class TaskReceived:
    """A task is complete and replaces the one that waits."""

    task: Task


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """The task that waits is void: a newer one is being fetched, or participation has changed."""


@dataclass(frozen=True, slots=True)
class SignalTaskReceived:
    """A perishable task of a split round is complete, in its order."""

    task: Task


@dataclass(frozen=True, slots=True)
class BundleAnnounced:
    """A bundle is here and waits to be activated."""

    found: FoundBundle


@dataclass(frozen=True, slots=True)
class RolloutDownloaded:
    """The archive of a rollout's version is complete.

    Attributes:
        of: Reference of the rollout's description.
        archive: The archive, with the described digest.
    """

    of: bytes
    archive: bytes


@dataclass(frozen=True, slots=True)
class PeersAnnounced:
    """The aggregator names the peers of this device."""

    message: TaskMessage


@dataclass(frozen=True, slots=True)
class PeerMessageReceived:
    """A message from a peer has arrived."""

    letter: VerifiedMessage


@dataclass(frozen=True, slots=True)
class StoreLossDetected:
    """An earlier store of this device was lost: its noise was drawn anew."""


@dataclass(frozen=True, slots=True)
class InlineLimitAnnounced:
    """A manifest sets the largest update that is sent without an offer, in bytes.

    ``ahead`` is the number of chunks of a larger one that may follow its first offer at once, and
    ``single`` the size up to which a larger one may go in one message that the link carries.
    """

    size: int
    ahead: int = 0
    single: int = 0


SessionEvent = (
    TaskReceived
    | TaskWithdrawn
    | SignalTaskReceived
    | BundleAnnounced
    | RolloutDownloaded
    | PeersAnnounced
    | PeerMessageReceived
    | StoreLossDetected
    | InlineLimitAnnounced
)
"""Event that a part of a session returns; the session follows ``InlineLimitAnnounced`` itself."""
