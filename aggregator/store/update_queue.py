"""Describe the queue in which admission workers hand checked updates to the process that runs the rounds.

The queue may lose everything at any moment: an update is receipted by the process that runs the rounds,
after its commit, and a device repeats what was not receipted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_sdk.wire.link.transport import Message


@dataclass(frozen=True, slots=True)
class QueuedUpdate(Message):
    """An update as it arrived, with the result of a worker's checks.

    Attributes:
        verified_by: Public key with which a worker verified the signature of an update that passed
            all its checks; empty where one failed, so that the receiver repeats them and answers.
        position: Place in the queue; 0 before it is there.
    """

    verified_by: bytes = b""
    position: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, as the process that runs the rounds sees it.

    Attributes:
        name: Its name.
        is_alive: Whether it receives updates, and used the database in the last seconds.
        queued: Its updates in the queue.
        counts: Its updates since it started, by result, as it last reported them.
    """

    name: str
    is_alive: bool
    queued: int
    counts: Mapping[str, int]


class UpdateQueue(Protocol):
    """The queue, as one process sees it."""

    def append(self, updates: Sequence[QueuedUpdate]) -> None:
        """Append updates, all or none."""

    def oldest(self, most: int) -> list[QueuedUpdate]:
        """Return the oldest updates; they stay until ``remove``."""

    def remove(self, updates: Sequence[QueuedUpdate]) -> None:
        """Delete updates that were processed."""

    def length(self) -> int:
        """Return the number of updates in the queue, or a few more."""

    def show(self, *, is_receiving: bool) -> None:
        """Count this worker as alive from now on, or no more: whether updates reach it."""

    def report(self, counts: Mapping[str, int]) -> None:
        """Record the counts of this worker, and a sign of life."""

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that are alive, or have updates in the queue, by name."""

    def close(self) -> None:
        """Close the connection."""
