"""Open the SQLite file of a program: its lock, file modes, identity, durability and transactions.

Devices and the aggregator keep their state in one file each. What is on disk after a power cut, who
may read it, and which file is refused, is decided here for both.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.permissions import make_private_file, tighten

BUSY_TIMEOUT = 5.0  # s, longest wait for another connection to the same file
SHORT_LOG = (
    64  # pages, 256 KiB: length of an exclusive file's write-ahead log; SQLite's default is 1000
)


SqliteError = sqlite3.Error
"""Base of SQLite's errors, for modules that import no engine."""


class ForeignFileError(Exception):
    """A file of another program, or a missing file that may not be created."""


class NewerFileError(Exception):
    """A file with a newer schema."""

    def __init__(self, schema: int) -> None:
        super().__init__(f"schema {schema}")
        self.schema = schema


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Identity of a program's files."""

    application: int  # SQLite's ``application_id``
    schema: int  # newest known schema, SQLite's ``user_version``
    tables: str


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold a lock file against other processes; the system releases it when the process ends."""
    tighten(lock)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a file without implicit transactions; create it unless it is opened to be read only.

    The file is readable by its owner only, and so are those beside it: SQLite gives its log and its
    index the mode of the file.

    Raises:
        PermissionsError: Other users can read it, and its mode cannot be changed.
    """
    if not read_only:
        make_private_file(path)
        for beside in path.parent.glob(f"{path.name}[-.]*"):
            tighten(beside)
    uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)


def prepare(
    db: sqlite3.Connection, form: FileFormat, *, read_only: bool = False, exclusive: bool = False
) -> int:
    """Check the identity of a file, make its commits durable, and create the tables of an empty one.

    Args:
        db: A connection that has read nothing yet.
        form: Identity of the program's files.
        read_only: True to change nothing.
        exclusive: True to lock the file against every other connection until this one is closed; SQLite
            then keeps the index of its log in memory, which is one open file fewer, and the log is short.

    Returns:
        The schema of the file, which may be older.

    Raises:
        ForeignFileError: It belongs to another program; it is unchanged.
        NewerFileError: It has a newer schema; it is unchanged.

    >>> db, form = sqlite3.connect(":memory:", isolation_level=None), FileFormat(7, 2, "")
    >>> prepare(db, form), prepare(db, FileFormat(7, 3, ""))
    (2, 2)
    >>> prepare(db, FileFormat(7, 1, ""))
    Traceback (most recent call last):
    edge_sdk.app.sqlite_file.NewerFileError: schema 2
    """
    if exclusive:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute(f"PRAGMA wal_autocheckpoint = {SHORT_LOG}")
    application = db.execute("PRAGMA application_id").fetchone()[0]
    schema = int(db.execute("PRAGMA user_version").fetchone()[0])
    is_empty = application == schema == 0 and _is_empty(db)
    if application != form.application and (read_only or not is_empty):
        raise ForeignFileError
    if schema > form.schema:
        raise NewerFileError(schema)
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    if not is_empty:
        return schema
    db.executescript(
        f"BEGIN IMMEDIATE; {form.tables} PRAGMA application_id = {form.application};"
        f" PRAGMA user_version = {form.schema}; COMMIT;"
    )
    return form.schema


def _is_empty(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run one transaction: all of it is on disk afterwards, or none of it."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
    except BaseException:
        roll_back(db)
        raise


def roll_back(db: sqlite3.Connection) -> None:
    """Roll back the open transaction, unless SQLite has done so itself."""
    if db.in_transaction:
        db.execute("ROLLBACK")


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of an error; 0 if it has none.

    >>> full = sqlite3.OperationalError("database or disk is full")
    >>> full.sqlite_errorcode = sqlite3.SQLITE_FULL
    >>> primary_code(full) == sqlite3.SQLITE_FULL, primary_code(sqlite3.OperationalError())
    (True, 0)
    """
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def size(path: Path) -> int:
    """Return the size of a file and of its write-ahead log, in bytes."""
    log = path.with_name(f"{path.name}-wal")
    return sum(file.stat().st_size for file in (path, log) if file.exists())
