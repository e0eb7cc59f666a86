"""Hold the work that waits on a device; it changes with the events of the session."""

from __future__ import annotations

from collections import deque

from edge_sdk.session.events import (
    BundleAnnounced,
    FoundBundle,
    PeerMessageReceived,
    PeersAnnounced,
    RolloutDownloaded,
    SessionEvent,
    SignalTaskReceived,
    StoreLossDetected,
    TaskReceived,
    TaskWithdrawn,
)
from edge_sdk.session.verified_message import VerifiedMessage
from edge_sdk.wire.contract.method import Task
from edge_sdk.wire.protocol.messages import TaskMessage

MOST = 256
"""Maximum number of perishable tasks that wait; beyond it the oldest are dropped."""


class Agenda:
    """The pending work of one device. Only the client and its training code change it.

    Attributes:
        waiting: The newest task that is ready for training, or None.
        current: The task in training, or the one of the open split round, or None.
        bundle: A bundle announcement that waits to be activated, or None.
        signals: Perishable tasks in order, oldest first.
        letters: Messages from peers, in order of arrival.
    """

    def __init__(self) -> None:
        """Begin without work."""
        self.waiting: Task | None = None
        self.current: Task | None = None
        self.bundle: FoundBundle | None = None
        self.signals: deque[Task] = deque(maxlen=MOST)
        self.letters: deque[VerifiedMessage] = deque()
        self._peers: TaskMessage | None = None
        self._archive: RolloutDownloaded | None = None
        self._is_store_lost = False

    def add(self, event: SessionEvent) -> None:
        """Record an event of the session."""
        match event:
            case TaskReceived(task=task):
                self.waiting = task
            case TaskWithdrawn():
                self.waiting = None
            case SignalTaskReceived(task=task):
                self.signals.append(task)
            case BundleAnnounced(found=found):
                self.bundle = found
            case RolloutDownloaded():
                self._archive = event
            case PeersAnnounced(message=message):
                self._peers = message
            case PeerMessageReceived(letter=letter):
                self.letters.append(letter)
            case StoreLossDetected():
                self._is_store_lost = True

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that are here: the waiting and the current one."""
        return tuple(task for task in (self.waiting, self.current) if task is not None)

    # --- tasks ------------------------------------------------------------------------------------

    def pop_waiting(self) -> Task | None:
        """Return the waiting task, and remove it."""
        task, self.waiting = self.waiting, None
        return task

    def start(self, task: Task) -> None:
        """Set the current task: a repeat of it is ignored."""
        self.current = task

    def finish(self) -> None:
        """Clear the current task."""
        self.current = None

    def postpone(self, task: Task) -> None:
        """Let a task that was given up wait again, unless a newer one does."""
        self.waiting = self.waiting or task

    def begin_run(self) -> None:
        """Drop the tasks of the run before."""
        self.waiting = None
        self.signals.clear()

    # --- bundles, peers, losses -------------------------------------------------------------------

    def drop_bundle(self) -> None:
        """Clear the bundle that waits: it is being activated, or cannot be."""
        self.bundle = None

    def pop_archive(self) -> RolloutDownloaded | None:
        """Return the archive of a rollout's version, and remove it."""
        found, self._archive = self._archive, None
        return found

    def pop_peers(self) -> TaskMessage | None:
        """Return the newest list of peers, and remove it."""
        message, self._peers = self._peers, None
        return message

    def pop_store_loss(self) -> bool:
        """Return whether the loss of an earlier store was detected since the last call."""
        is_lost, self._is_store_lost = self._is_store_lost, False
        return is_lost

    def drop_letters(self) -> None:
        """Drop every message from peers."""
        self.letters.clear()

    def drop_round(self) -> None:
        """Drop the current task and every perishable one: working on them met a defect."""
        self.current = None
        self.signals.clear()
