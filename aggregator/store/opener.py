"""Open the configured database. No other module names an implementation of ``types.Store``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType

from aggregator.store import connection
from aggregator.store.connection import alone
from aggregator.store.errors import DatabaseError
from aggregator.store.location import Location, PostgresUrl
from aggregator.store.overview import StoreOverview
from aggregator.store.sqlite import SqliteStore
from aggregator.store.types import Store
from aggregator.store.update_queue import UpdateQueue

__all__ = [
    "alone",
    "exists",
    "migrate",
    "open_overview",
    "open_queue",
    "open_store",
    "refill",
    "wait_for_store",
]


def open_store(place: Location, *, read_only: bool = False) -> Store:
    """Open a database; create it, and the folder of a file, if missing.

    Args:
        place: The database.
        read_only: Read only, beside a running daemon; take no lock and create nothing.

    Raises:
        DatabaseBusyError: Another process holds it.
        DatabaseNewerError: A newer version wrote it.
        DatabaseError: It is no aggregator database, or cannot be opened.
    """
    if isinstance(place, PostgresUrl):
        found: Store = _postgres().PostgresStore.open(place, read_only=read_only)
        return found
    return SqliteStore.open(place, read_only=read_only)


def wait_for_store(
    place: Location,
    is_stopping: Callable[[], bool],
    note: Callable[[str], None],
    *,
    is_patient: bool = False,
) -> Store | None:
    """Open a database; wait while another process writes to one of PostgreSQL.

    Args:
        place: The database.
        is_stopping: Returns whether to give up.
        note: Called once with the reason, when the wait begins.
        is_patient: Wait also while the server cannot be reached.

    Returns:
        The open store, or None after giving up.

    Raises:
        DatabaseBusyError: Another process holds a file.
        DatabaseError: As ``open_store``.
    """
    if isinstance(place, PostgresUrl):
        found: Store | None = _postgres().wait(place, is_stopping, note, is_patient=is_patient)
        return found
    return open_store(place)


def open_overview(place: Location) -> StoreOverview:
    """Open a database for an operator's pages: read-only, beside a running daemon.

    Raises:
        DatabaseError: It is no aggregator database, or cannot be opened.
    """
    if isinstance(place, PostgresUrl):
        found: StoreOverview = _postgres().open_overview(place)
        return found
    return StoreOverview.open(place)


def open_queue(place: Location, *, worker: str = "") -> UpdateQueue:
    """Open the queue of updates that admission workers have checked.

    Args:
        place: The database, of PostgreSQL.
        worker: Name of the worker that opens it; empty for the process that runs the rounds.

    Raises:
        DatabaseBusyError: A worker of this name runs.
        DatabaseError: It is a file of SQLite, has no fleet, or cannot be opened.
    """
    if not isinstance(place, PostgresUrl):
        raise DatabaseError(
            f"{place}: admission workers need PostgreSQL",
            hint="set store.url, and copy the fleet with gridfed-aggregator migrate",
        )
    _postgres()
    from aggregator.store.postgres_queue import PostgresQueue  # noqa: PLC0415 - extra

    return PostgresQueue.open(place, worker=worker)


def exists(place: Location) -> bool:
    """Return whether a database was set up.

    Raises:
        DatabaseError: The server cannot be reached.
    """
    if isinstance(place, PostgresUrl):
        found: bool = _postgres().exists(place)
        return found
    return place.exists()


def migrate(file: Path, place: PostgresUrl, note: Callable[[str], None]) -> None:
    """Copy a file of SQLite into a PostgreSQL database; continue a copy that was interrupted.

    Args:
        file: The file; no daemon may run on it.
        place: The database, empty or from an earlier attempt.
        note: Called with a line for each table.

    Raises:
        DatabaseBusyError: A process holds one of them.
        DatabaseError: The database has a fleet already, or a table differs after it was copied.
    """
    with alone(file), closing(connection.connect(file)) as source:
        _postgres().migrate(source, place, note)


def refill(place: PostgresUrl, backup: Path, aside: Path) -> None:
    """Replace the contents of a PostgreSQL database by those of a backup, in one transaction.

    Args:
        place: The database; no daemon may run on it.
        backup: The file that ``Store.backup`` wrote.
        aside: File for a copy of the contents from before.

    Raises:
        DatabaseBusyError: A process holds the database.
    """
    with closing(connection.connect(backup, read_only=True)) as source:
        _postgres().refill(source, place, aside)


def _postgres() -> ModuleType:
    """Import the module that needs the extra.

    Raises:
        DatabaseError: It is not installed.
    """
    try:
        from aggregator.store import postgres  # noqa: PLC0415 - extra
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        raise DatabaseError(
            "store.url needs psycopg, which is not installed",
            hint="pip install 'gridfed[postgres]'",
        ) from error
    return postgres
