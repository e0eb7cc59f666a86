"""Provide the store on SQLite: one file, locked by a single process.

A commit is on disk before it returns (write-ahead log, ``synchronous=FULL``).
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

from aggregator.store import connection
from aggregator.store.sql_store import SqlStore
from edge_sdk.app import sqlite_file
from edge_sdk.app.clock import Clock, SystemClock


class SqliteStore(SqlStore):
    """Database of one fleet in a file. Open it with ``SqliteStore.open``.

    Example:
        >>> import tempfile
        >>> from aggregator.store.types import EnrolledDevice
        >>> with SqliteStore.open(Path(tempfile.mkdtemp()) / "fleet.db") as store:
        ...     store.put_client(EnrolledDevice("meter-1", (bytes(32),)))
        ...     [client.id for client in store.clients()]
        ['meter-1']
    """

    def __init__(self, db: sqlite3.Connection, path: Path, held: ExitStack) -> None:
        """Take over an open connection and its resources; use ``open``."""
        super().__init__(db, path, held)
        self._file, self._sqlite = path, db

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> SqliteStore:
        """Open a file; create it and its folder if missing.

        Args:
            path: The database file.
            read_only: Read only, beside a running daemon; take no lock and create nothing.

        Raises:
            DatabaseBusyError: Another process holds it.
            DatabaseNewerError: A newer version wrote it.
            DatabaseError: It is no aggregator database, or cannot be opened.
        """
        with ExitStack() as held:
            if not read_only:
                held.enter_context(connection.alone(path))
            db = held.enter_context(closing(connection.connect(path, read_only=read_only)))
            return cls(db, path, held.pop_all())

    def check_lease(self) -> None:
        """Do nothing: the lock of a file is never lost."""

    def clock(self) -> Clock:
        """Return the clock of this machine."""
        return SystemClock()

    def backup(self, path: Path) -> None:
        """Write a consistent copy while the daemon runs."""
        connection.copy(self._sqlite, path)

    def integrity(self) -> list[str]:
        """Return the faults that SQLite finds in the file; empty if it is sound."""
        return connection.faults(self._sqlite)

    def size(self) -> int:
        """Return the size of the file and of its write-ahead log, in bytes."""
        return sqlite_file.size(self._file)
