"""Provide the store on PostgreSQL: one process writes, another one can take over at once.

A commit is on the server's disk before it returns, and on that of its synchronous standby if it has
one (``synchronous_standby_names``). Extra ``postgres``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from aggregator.extensions.postgres import table_copy
from aggregator.extensions.postgres.postgres_connection import (
    PostgresDatabase,
    errors_of,
    opened,
    prepare,
)
from aggregator.extensions.postgres.postgres_lease import LOOK, Lease, LockWatch
from aggregator.store import sqlite
from aggregator.store.dialect import Database, DatabaseUrl
from aggregator.store.errors import DatabaseBusyError, DatabaseError
from aggregator.store.schema import fact
from aggregator.store.store import Store
from edge_sdk.app.clock import Clock, SystemClock


class PostgresStore(Store):
    """Database of one fleet on a server. Open it with ``PostgresStore.open``."""

    def __init__(
        self, db: psycopg.Connection, place: DatabaseUrl, lease: Lease | None, held: ExitStack
    ) -> None:
        super().__init__(PostgresDatabase(db, lease.epoch if lease else None), place, held)
        self._server, self._lease, self._place = db, lease, place

    @classmethod
    def open(
        cls, place: DatabaseUrl, *, read_only: bool = False, unfinished: bool = False
    ) -> PostgresStore:
        """Open a database; create its tables if missing.

        Args:
            read_only: Read only, beside a running daemon; take no lock and create nothing.
            unfinished: Open it although a migration into it has not ended.

        Raises:
            DatabaseBusyError: Another process holds it.
            DatabaseNewerError: A newer version wrote it.
            DatabaseError: It cannot be opened, or a migration into it was interrupted.
        """
        with ExitStack() as held:
            lease = None if read_only else Lease.acquire(place)
            if lease is not None:
                held.callback(lease.close)
            name = lease.writer if lease else "gridfed reader"
            with opened(place, name, read_only=read_only) as db:
                prepare(db, place, read_only=read_only)
                if db.execute("SHOW synchronous_commit").fetchone() in (("off",), ("local",)):
                    db.execute("SET synchronous_commit = on")
            held.callback(db.close)
            store = cls(db, place, lease, held)
            if store.is_unfinished and not unfinished:
                raise DatabaseError(
                    f"{place}: a migration into this database was interrupted",
                    hint="gridfed-aggregator migrate",
                )
            store.close = held.pop_all().close
            return store

    def check_lease(self) -> None:
        """Raise ``DatabaseLostError`` if another process may have taken over."""
        if self._lease is not None:
            self._lease.require_held()

    def clock(self) -> Clock:
        """Return the clock of the server; this machine's for a reader, which holds no lock."""
        return self._lease.clock if self._lease is not None else SystemClock()

    def backup(self, path: Path) -> None:
        with errors_of(self._server):
            self._server.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                sqlite.write_copy(path, lambda file: table_copy.write_file(self._db, file))
            finally:
                self._server.execute("ROLLBACK")

    def fill(self, source: sqlite3.Connection, note: Callable[[str], None]) -> None:
        """Copy all tables of a file of SQLite into this database, and compare them.

        A copy that was interrupted continues. A table that differs is copied again.

        Args:
            source: The file, which nothing changes meanwhile.
        """
        table_copy.migrate(source, self._db, self.transactions.writing, note)

    def replace_contents(self, source: sqlite3.Connection) -> None:
        """Delete everything and copy a file of SQLite, in one transaction."""
        with self.transactions.writing() as db:
            table_copy.clear(db)
            table_copy.copy_all(source, db)

    @property
    def is_unfinished(self) -> bool:
        """Return whether a migration into this database has not ended."""
        return bool(fact(self._db, table_copy.MIGRATING))

    def integrity(self) -> list[str]:
        """Return nothing: the server checks its pages as it reads them (``data_checksums``)."""
        return []

    def size(self) -> int:
        """Return the size of the tables and their indexes, in bytes."""
        found = self._db.execute(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        ).fetchone()
        return int(found[0])


def wait_for_store(
    place: DatabaseUrl,
    is_stopping: Callable[[], bool],
    note: Callable[[str], None],
    *,
    is_patient: bool = False,
) -> PostgresStore | None:
    """Wait until no other process writes to a database, and open it.

    Args:
        is_stopping: Returns whether to give up.
        note: Called once with the reason, when the wait begins.
        is_patient: Wait also while the server cannot be reached.

    Returns:
        The open store, or None after giving up.

    Raises:
        DatabaseError: It cannot be opened at the first attempt, and ``is_patient`` is false.
    """
    watch, is_waiting = LockWatch(place), False
    try:
        while not is_stopping():
            if not is_waiting or watch.look():
                try:
                    return PostgresStore.open(place)
                except DatabaseError as error:
                    if not (is_waiting or is_patient or isinstance(error, DatabaseBusyError)):
                        raise
                    if not is_waiting:
                        note(str(error))
                is_waiting = True
            time.sleep(LOOK)
    finally:
        watch.close()
    return None


def open_reader(place: DatabaseUrl) -> tuple[Database, Callable[[], None]]:
    """Open a connection that only reads, beside a running daemon; raise DatabaseError if it cannot be opened."""
    with opened(place, "gridfed reader", read_only=True) as db:
        prepare(db, place, read_only=True)
    return PostgresDatabase(db), db.close


def migrate(file: Path, place: DatabaseUrl, note: Callable[[str], None]) -> None:
    """Copy a file of SQLite into a database; continue a copy that was interrupted.

    Args:
        file: The file; no daemon may run on it.
        place: The database, empty or from an earlier attempt.
        note: Called with a line for each table.

    Raises:
        DatabaseBusyError: A process holds one of them.
        DatabaseError: The database has a fleet already, or a table differs after it was copied.
    """
    with (
        sqlite.alone(file),
        closing(sqlite.connect(file)) as source,
        PostgresStore.open(place, unfinished=True) as store,
    ):
        if store.runs.numbers() and not store.is_unfinished:
            raise DatabaseError(
                f"{place}: this database has a fleet already", hint="migrate into an empty database"
            )
        store.fill(source, note)


def refill(place: DatabaseUrl, backup: Path, aside: Path) -> None:
    """Replace the contents of a database by those of a backup; copy the former ones to a file."""
    with (
        closing(sqlite.connect(backup, read_only=True)) as source,
        PostgresStore.open(place, unfinished=True) as store,
    ):
        store.backup(aside)
        store.replace_contents(source)
