"""Describe the queue in which admission workers hand checked updates to the process that runs the rounds.

The queue may lose everything at any moment: an update is receipted by the process that runs the rounds,
after its commit, and a device repeats what was not receipted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggregator.ingress.message_ingress import VerifiedArrival
from aggregator.store.dialect import DatabaseUrl, Location
from aggregator.store.errors import DatabaseError

if TYPE_CHECKING:
    from aggregator.extensions.postgres.postgres_queue import PostgresQueue


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


def open_queue(place: Location, *, worker: str = "") -> PostgresQueue:
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
