"""Describe the queue in which admission workers hand checked updates to the process that runs the rounds.

The queue may lose everything at any moment: an update is receipted by the process that runs the rounds,
after its commit, and a device repeats what was not receipted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.ingress.message_ingress import VerifiedArrival
from aggregator.store.dialect import DatabaseUrl, Location
from aggregator.store.errors import DatabaseError


@dataclass(frozen=True, slots=True)
class QueuedUpdate(VerifiedArrival):
    """An update as it arrived; without a verified key the receiver repeats the checks, and answers."""

    position: int = 0  # place in the queue; 0 before it is there


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, as the process that runs the rounds sees it."""

    name: str
    is_alive: bool  # whether it receives updates, and used the database in the last seconds
    queued: int
    counts: Mapping[str, int]  # its updates since it started, by result, as it last reported them


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
        """Count this worker as alive from now on, or not: whether updates reach it."""

    def report(self, counts: Mapping[str, int]) -> None:
        """Record the counts of this worker, and a sign of life."""

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that are alive, or have updates in the queue, by name."""

    def close(self) -> None:
        """Close the connection."""


def open_queue(place: Location, *, worker: str = "") -> UpdateQueue:
    """Open the queue of updates that admission workers have checked.

    Args:
        worker: Name of the worker that opens it; empty for the process that runs the rounds.

    Raises:
        DatabaseError: It is a file of SQLite, has no fleet, or cannot be opened.
    """
    if not isinstance(place, DatabaseUrl):
        raise DatabaseError(
            f"{place}: admission workers need PostgreSQL",
            hint="set store.url, and copy the fleet with gridfed-aggregator migrate",
        )
    from aggregator.extensions.postgres.engine import PostgresQueue  # noqa: PLC0415 - extra

    return PostgresQueue.open(place, worker=worker)
