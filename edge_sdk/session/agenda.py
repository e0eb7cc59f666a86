"""Hold the work that waits on a device, and the digests of messages that it skips.

Work changes with the events of the session. A message that triggered a defect of this program is
skipped, also after a restart: a retained one arrives again at every connect.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Failure, StoreFull, WireError
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.messages import BundleMessage, TaskMessage
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

MOST = 64  # newest digests that are kept
SIZE = 32
PAPER = "set aside"
COUNT = "internal errors"


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


def is_defect(error: Exception) -> bool:
    """Return whether an error is a defect of this program rather than of disk, link or settings.

    >>> is_defect(KeyError("w")), is_defect(OSError()), is_defect(MemoryError())
    (True, False, False)
    """
    is_of_the_file = any(kind.__module__ == "sqlite3" for kind in type(error).__mro__)
    return not isinstance(error, (Failure, WireError, OSError, MemoryError)) and not is_of_the_file


def digest_of(*parts: object) -> bytes:
    """Return a digest that identifies a message by its body, or a round by its numbers.

    >>> digest_of("task", 1, 7) == digest_of("task", 1, 7), digest_of("task", 17) == digest_of("t")
    (True, False)
    """
    return hashlib.sha256(repr(parts).encode()).digest()


class SetAside:
    """The digests of skipped messages, kept in the store, with a count of defects."""

    def __init__(self, store: DeviceStore, counts: Counter[str]) -> None:
        self._store, self._counts = store, counts
        kept = store.paper(PAPER) or b""
        self._digests = [kept[at : at + SIZE] for at in range(0, len(kept), SIZE)]

    def holds(self, digest: bytes) -> bool:
        """Return whether a message must be skipped; count it if so."""
        is_held = digest in self._digests
        self._counts["passed over"] += is_held
        return is_held

    def add(self, what: str, digest: bytes, error: Exception, *, run: int) -> None:
        """Save a digest, count the defect, and log its trace.

        On a full disk the digest is kept for this process only.
        """
        self._counts[COUNT] += 1
        if digest in self._digests:  # a repeated failure wears neither flash nor log
            return
        self._digests = [*self._digests, digest][-MOST:]
        logger.error("internal error %s", fields(what=what, run=run, error=error), exc_info=error)
        try:
            self._store.file_paper(PAPER, b"".join(self._digests))
        except StoreFull:
            self._counts["disk full"] += 1
