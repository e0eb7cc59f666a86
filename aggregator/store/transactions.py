"""Begin and end transactions of one connection; several writes can join one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.store.errors import DatabaseError, database_error
from edge_sdk.app import sqlite_file


class Transactions:
    """Transactions of one connection.

    Args:
        db: Connection without implicit transactions.
        path: Path of its file, for messages.
        on_rollback: Called after a joint transaction failed: what was read in it may not be on disk.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, on_rollback: Callable[[], None]) -> None:
        self._db, self._path, self._on_rollback = db, path, on_rollback
        self._is_joined = False
        self._lost: DatabaseError | None = None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Combine all writes inside into one transaction; it begins with the first of them.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        self._is_joined, self._lost = True, None
        try:
            try:
                yield
                self._commit()
            except BaseException:
                self._on_rollback()
                sqlite_file.roll_back(self._db)
                raise
            finally:
                self._is_joined = False
        except sqlite3.Error as error:
            raise database_error(error, self._path) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction, or a part of the joint one that can fail alone.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        if self._is_joined:
            with self._joining() as db:
                yield db
            return
        try:
            with sqlite_file.transaction(self._db) as db:
                yield db
        except sqlite3.Error as error:
            raise database_error(error, self._path) from error

    def _commit(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    @contextmanager
    def _joining(self) -> Iterator[sqlite3.Connection]:
        """Open a savepoint in the joint transaction.

        If SQLite has rolled back the whole transaction with it, the rest is not saved either.
        """
        if self._lost is not None:
            raise self._lost
        try:
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("SAVEPOINT part")
            try:
                yield self._db
                self._db.execute("RELEASE part")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK TO part")
                    self._db.execute("RELEASE part")
                raise
        except sqlite3.Error as error:
            failed = database_error(error, self._path)
            if not self._db.in_transaction:
                self._lost = failed
            raise failed from error
