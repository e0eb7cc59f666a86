"""Provide the store on SQLite: one file, locked by a single process.

A commit is on disk before it returns (write-ahead log, ``synchronous=FULL``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from aggregator.store.errors import DatabaseBusyError, DatabaseError
from aggregator.store.schema import RESTORED, prepare, put_fact
from aggregator.store.store import Store
from edge_sdk.app import sqlite_file
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.permissions import make_private_file, make_private_folder


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock a database against other processes without opening it.

    Raises:
        DatabaseBusyError: Another process holds it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "fleet.db"
    >>> with alone(path), alone(path):
    ...     pass
    Traceback (most recent call last):
    aggregator.store.errors.DatabaseBusyError: ...fleet.db: another process holds this database
    """
    make_private_folder(path.parent)
    with ExitStack() as held:
        try:
            held.enter_context(sqlite_file.locked(path.with_name(f"{path.name}.lock")))
        except BlockingIOError as error:
            raise DatabaseBusyError(
                f"{path}: another process holds this database",
                hint="one aggregator per state folder; stop the other one first",
            ) from error
        yield


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a database, or create one.

    Returns:
        A connection without implicit transactions.

    Raises:
        DatabaseNewerError: A newer version wrote it.
        PermissionsError: Other users can read it, and its mode cannot be changed.
    """
    try:
        db = sqlite_file.connect(path, read_only=read_only)
        try:
            prepare(db, path, read_only=read_only)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: cannot open the database: {error}") from error
    return db


def copy(db: sqlite3.Connection, path: Path) -> None:
    """Write a consistent, marked copy of the database atomically."""
    write_copy(path, db.backup)


def write_copy(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Write a marked file atomically.

    Args:
        fill: Writes the contents into an empty file; the tables are there if it does not bring them.
    """
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)
    make_private_file(beside)
    with closing(sqlite3.connect(beside, isolation_level=None)) as other:
        fill(other)
        put_fact(other, RESTORED, 1)
        other.execute("PRAGMA journal_mode = DELETE")
    beside.replace(path)


def faults(db: sqlite3.Connection) -> list[str]:
    """Return the faults that SQLite finds in the file; empty if it is sound."""
    try:
        found = [str(line) for (line,) in db.execute("PRAGMA integrity_check")]
    except sqlite3.DatabaseError as error:  # too damaged to check
        return [str(error)]
    return [line for line in found if line != "ok"]


class SqliteStore(Store):
    """Database of one fleet in a file. Open it with ``SqliteStore.open``.

    >>> import tempfile
    >>> from aggregator.store.types import EnrolledDevice
    >>> with SqliteStore.open(Path(tempfile.mkdtemp()) / "fleet.db") as store:
    ...     store.devices.save(EnrolledDevice("meter-1", (bytes(32),)))
    ...     [device.id for device in store.devices.all()]
    ['meter-1']
    """

    def __init__(self, db: sqlite3.Connection, path: Path, held: ExitStack) -> None:
        super().__init__(db, path, held)
        self._file, self._sqlite = path, db

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> SqliteStore:
        """Open a file; create it and its folder if missing.

        Args:
            read_only: Read only, beside a running daemon; take no lock and create nothing.

        Raises:
            DatabaseBusyError: Another process holds it.
            DatabaseNewerError: A newer version wrote it.
        """
        with ExitStack() as held:
            if not read_only:
                held.enter_context(alone(path))
            db = held.enter_context(closing(connect(path, read_only=read_only)))
            return cls(db, path, held.pop_all())

    def check_lease(self) -> None:
        """Do nothing: the lock of a file is never lost."""

    def clock(self) -> Clock:
        return SystemClock()

    def backup(self, path: Path) -> None:
        copy(self._sqlite, path)

    def integrity(self) -> list[str]:
        return faults(self._sqlite)

    def size(self) -> int:
        """Return the size of the file and of its write-ahead log, in bytes."""
        return sqlite_file.size(self._file)


def in_memory() -> SqliteStore:
    """Return a store that forgets everything with its process.

    >>> in_memory().devices.all()
    []
    """
    db = sqlite3.connect(":memory:", isolation_level=None)
    path = Path("memory")
    prepare(db, path)
    with ExitStack() as held:
        held.callback(db.close)
        return SqliteStore(db, path, held.pop_all())
