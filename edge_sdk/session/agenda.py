"""Hold the work that waits on a device; it changes with the events of the session."""

from __future__ import annotations

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.messages import BundleMessage, TaskMessage


class Agenda:
    """The pending work of one device. Only the client and its training code change it.

    Attributes:
        waiting: The newest task that is ready for training, or None.
        current: The task in training, or the one of the open split round, or None.
        bundle: A bundle announcement that waits to be activated, or None.
    """

    def __init__(self) -> None:
        self.waiting: Task | None = None
        self.current: Task | None = None
        self.bundle: FoundBundle | None = None
        self._peers: TaskMessage | None = None
        self._is_store_lost = False

    def add(self, event: SessionEvent) -> None:
        """Record an event of the session."""
        match event:
            case TaskReceived(task=task):
                self.waiting = task
            case TaskWithdrawn():
                self.waiting = None
            case BundleAnnounced(found=found):
                self.bundle = found
            case PeersAnnounced(message=message):
                self._peers = message
            case StoreLossDetected():
                self._is_store_lost = True

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in (self.waiting, self.current) if task is not None)

    # --- tasks ------------------------------------------------------------------------------------

    def pop_waiting(self) -> Task | None:
        task, self.waiting = self.waiting, None
        return task

    def start(self, task: Task) -> None:
        self.current = task

    def finish(self) -> None:
        """Clear the current task: it is done, or working on it met a defect."""
        self.current = None

    def postpone(self, task: Task) -> None:
        """Queue an abandoned task again, unless a newer one waits."""
        self.waiting = self.waiting or task

    def begin_run(self) -> None:
        """Drop the task of the run before."""
        self.waiting = None

    # --- bundles, peers, losses -------------------------------------------------------------------

    def drop_bundle(self) -> None:
        """Clear the bundle that waits: it is being activated, or cannot be."""
        self.bundle = None

    def pop_peers(self) -> TaskMessage | None:
        """Return the newest list of peers, and remove it."""
        message, self._peers = self._peers, None
        return message

    def pop_store_loss(self) -> bool:
        """Return whether the loss of an earlier store was detected since the last call."""
        is_lost, self._is_store_lost = self._is_store_lost, False
        return is_lost


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle announcement, its bytes, and the archive unless it is installed."""

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
class BundleAnnounced:
    """A bundle is here and waits to be activated."""

    found: FoundBundle


@dataclass(frozen=True, slots=True)
class PeersAnnounced:
    """The aggregator names the peers of this device."""

    message: TaskMessage


@dataclass(frozen=True, slots=True)
class StoreLossDetected:
    """An earlier store of this device was lost: its noise was drawn again."""


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
    | BundleAnnounced
    | PeersAnnounced
    | StoreLossDetected
    | InlineLimitAnnounced
)
"""Event that a part of a session returns; the session follows ``InlineLimitAnnounced`` itself."""
