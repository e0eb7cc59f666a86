"""Begin and end transactions of one connection; several writes can join one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aggregator.store.dialect import Database
from aggregator.store.errors import DatabaseError, database_error
from aggregator.store.location import Location


class Transactions:
    """Transactions of one connection.

    Args:
        db: Connection without implicit transactions.
        path: Its place, for messages.
        on_rollback: Called after a joint transaction failed: what was read in it may not be on disk.
    """

    def __init__(self, db: Database, path: Location, on_rollback: Callable[[], None]) -> None:
        self._db, self._path, self._on_rollback = db, path, on_rollback
        self._is_joined = False
        self._lost: DatabaseError | None = None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Combine all writes inside into one transaction; it begins with the first of them.

        Inside another one it is a part of that one, which can fail alone.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        if self._is_joined:
            with self._nested():
                yield
            return
        self._is_joined, self._lost = True, None
        try:
            try:
                yield
                self._commit()
            except BaseException:
                self._on_rollback()
                self._roll_back()
                raise
            finally:
                self._is_joined = False
        except sqlite3.Error as error:
            raise database_error(error, self._path) from error

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Run one transaction, or a part of the joint one that can fail alone.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        if self._is_joined:
            with self._joining() as db:
                yield db
            return
        try:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise database_error(error, self._path) from error

    def _commit(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    def _roll_back(self) -> None:
        """Roll back the open transaction, unless the database has done so itself."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Combine writes into a part of the joint transaction; a failure undoes this part alone.

        If the database has rolled back the whole transaction with it, the rest is not saved either.
        """
        if self._lost is not None:
            raise self._lost
        is_begun = self._db.in_transaction
        try:
            if is_begun:
                self._db.execute("SAVEPOINT nested")
            try:
                yield
                if is_begun:
                    self._db.execute("RELEASE nested")
            except BaseException:
                self._on_rollback()
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK TO nested" if is_begun else "ROLLBACK")
                if self._db.in_transaction:
                    self._db.execute("RELEASE nested")
                raise
        except sqlite3.Error as error:
            failed = database_error(error, self._path)
            if is_begun and not self._db.in_transaction:
                self._lost = failed
            raise failed from error

    @contextmanager
    def _joining(self) -> Iterator[Database]:
        """Open a savepoint in the joint transaction.

        If the database has rolled back the whole transaction with it, the rest is not saved either.
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
