"""Begin and end transactions of one connection; several writes can join one transaction. Base of tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from aggregator.store.dialect import Database, Location
from aggregator.store.errors import DatabaseError, database_error


class Transactions:
    """Transactions of one connection.

    Args:
        db: Connection without implicit transactions.

    Attributes:
        on_rollback: Called after a joint transaction failed: what was read in it may not be on disk.
    """

    def __init__(self, db: Database, path: Location) -> None:
        self.db, self.path = db, path
        self.on_rollback: list[Callable[[], None]] = []
        self._is_joined = self._is_writing = False
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
                self._forget()
                self._roll_back()
                raise
            finally:
                self._is_joined = False
        except sqlite3.Error as error:
            raise database_error(error, self.path) from error

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Run one transaction, or a part of the joint one that can fail alone.

        Inside another one it belongs to that one, and fails with it.

        Raises:
            DatabaseError: It could not be committed, and nothing of it was saved.
        """
        if self._is_writing:
            yield self.db
            return
        self._is_writing = True
        try:
            with self._joining() if self._is_joined else self._alone() as db:
                yield db
        finally:
            self._is_writing = False

    @contextmanager
    def _alone(self) -> Iterator[Database]:
        try:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise database_error(error, self.path) from error

    def _forget(self) -> None:
        for forget in self.on_rollback:
            forget()

    def _commit(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self.db.in_transaction:
            self.db.execute("COMMIT")

    def _roll_back(self) -> None:
        """Roll back the open transaction, unless the database has done so itself."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Combine writes into a part of the joint transaction; a failure undoes this part alone.

        If the database has rolled back the whole transaction with it, the rest is not saved either.
        """
        if self._lost is not None:
            raise self._lost
        is_begun = self.db.in_transaction
        try:
            if is_begun:
                self.db.execute("SAVEPOINT nested")
            try:
                yield
                if is_begun:
                    self.db.execute("RELEASE nested")
            except BaseException:
                self._forget()
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK TO nested" if is_begun else "ROLLBACK")
                if self.db.in_transaction:
                    self.db.execute("RELEASE nested")
                raise
        except sqlite3.Error as error:
            failed = database_error(error, self.path)
            if is_begun and not self.db.in_transaction:
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
            if not self.db.in_transaction:
                self.db.execute("BEGIN IMMEDIATE")
            self.db.execute("SAVEPOINT part")
            try:
                yield self.db
                self.db.execute("RELEASE part")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK TO part")
                    self.db.execute("RELEASE part")
                raise
        except sqlite3.Error as error:
            failed = database_error(error, self.path)
            if not self.db.in_transaction:
                self._lost = failed
            raise failed from error


class Table:
    """Base of a table, or of a few that belong together: reads, and writes in a transaction each."""

    def __init__(self, transactions: Transactions) -> None:
        self._db, self._transactions = transactions.db, transactions

    def _writing(self) -> AbstractContextManager[Database]:
        return self._transactions.writing()
