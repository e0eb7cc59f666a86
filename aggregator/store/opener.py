"""Open the configured database: a file of SQLite, or one that an engine of an extension opens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aggregator.store.dialect import ENGINES, Database, DatabaseUrl, Location
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.sqlite import SqliteStore, alone, connect
from aggregator.store.store import Store

__all__ = [
    "COMMAND_SECONDS",
    "Engine",
    "alone",
    "exists",
    "open_reader",
    "open_store",
    "refill",
    "wait_for_store",
]

COMMAND_SECONDS = 5.0  # longest time that a command holds a file: a daemon that starts waits for it
# a connection that only reads, and the function that closes it
Reader = tuple[Database, Callable[[], None]]


class Engine(Protocol):
    """A kind of database other than a file; ``index.toml`` names it for the schemes of its URLs.

    Its functions are those of this module, for its own URLs.
    """

    def open_store(self, place: DatabaseUrl, *, read_only: bool = False) -> Store: ...

    def wait_for_store(
        self,
        place: DatabaseUrl,
        is_stopping: Callable[[], bool],
        note: Callable[[str], None],
        *,
        is_patient: bool = False,
    ) -> Store | None: ...

    def open_reader(self, place: DatabaseUrl) -> Reader: ...

    def exists(self, place: DatabaseUrl) -> bool: ...

    def refill(self, place: DatabaseUrl, backup: Path, aside: Path) -> None: ...


def open_store(place: Location, *, read_only: bool = False, patience: float = 0.0) -> Store:
    """Open a database; create it, and the folder of a file, if missing.

    Args:
        read_only: Read only, beside a running daemon; take no lock and create nothing.
        patience: Seconds to wait for a file that another process holds.

    Raises:
        DatabaseBusyError: Another process holds it.
        DatabaseNewerError: A newer version wrote it.
    """
    if isinstance(place, DatabaseUrl):
        return _engine(place).open_store(place, read_only=read_only)
    end = time.monotonic() + patience
    while True:
        try:
            return SqliteStore.open(place, read_only=read_only)
        except DatabaseBusyError:
            if time.monotonic() >= end:
                raise
        time.sleep(0.05)


def wait_for_store(
    place: Location,
    is_stopping: Callable[[], bool],
    note: Callable[[str], None],
    *,
    is_patient: bool = False,
) -> Store | None:
    """Open a database; wait while another process writes to one on a server.

    Args:
        is_stopping: Returns whether to give up.
        note: Called once with the reason, when the wait begins.
        is_patient: Wait also while the server cannot be reached.

    Returns:
        The open store, or None after giving up.

    Raises:
        DatabaseBusyError: Another process holds a file.
    """
    if isinstance(place, DatabaseUrl):
        return _engine(place).wait_for_store(place, is_stopping, note, is_patient=is_patient)
    return open_store(place)


def open_reader(place: Location) -> Reader:
    """Open a connection for an operator's pages: read-only, beside a running daemon."""
    if isinstance(place, DatabaseUrl):
        return _engine(place).open_reader(place)
    db = connect(place, read_only=True)
    return db, db.close


def exists(place: Location) -> bool:
    """Return whether a database was set up; raise DatabaseError if the server cannot be reached."""
    if isinstance(place, DatabaseUrl):
        return _engine(place).exists(place)
    return place.exists()


def refill(place: DatabaseUrl, backup: Path, aside: Path) -> None:
    """Replace the contents of a database by those of a backup, in one transaction.

    Args:
        place: The database; no daemon may run on it.
        backup: The file that ``Store.backup`` wrote.
        aside: File for a copy of the contents from before.

    Raises:
        DatabaseBusyError: A process holds the database.
    """
    _engine(place).refill(place, backup, aside)


def _engine(place: DatabaseUrl) -> Engine:
    found: Engine = ENGINES[place.scheme]
    return found
