"""Errors of the database, and their translation from SQLite's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import ClassVar

from edge_sdk.app.cli import MIGRATION, TEMPORARY, Failure
from edge_sdk.app.sqlite_file import primary_code


class DatabaseError(Failure):
    """A database that cannot be used."""


class DatabaseBusyError(DatabaseError):
    """A database that another process has locked."""

    exit_code: ClassVar[int] = TEMPORARY


class DatabaseNewerError(DatabaseError):
    """A database written by a newer version of this program."""

    exit_code: ClassVar[int] = MIGRATION


class DatabaseFullError(DatabaseError):
    """A write that failed because the disk is full or failing; nothing was recorded."""

    exit_code: ClassVar[int] = TEMPORARY


def database_error(error: sqlite3.Error, path: Path) -> DatabaseError:
    """Return the error to raise instead of an SQLite error.

    Example:
        >>> full = sqlite3.OperationalError("database or disk is full")
        >>> full.sqlite_errorcode = sqlite3.SQLITE_FULL
        >>> type(database_error(full, Path("fleet.db"))).__name__
        'DatabaseFullError'
        >>> type(database_error(sqlite3.OperationalError("no such table"), Path("fleet.db"))).__name__
        'DatabaseError'
    """
    if primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DatabaseFullError(
            f"{path}: the disk is full or failing: {error}",
            hint="free some space; devices keep what they have not yet been receipted",
        )
    return DatabaseError(f"{path}: {error}")


def is_from_database(error: BaseException) -> bool:
    """Return whether SQLite raised an error."""
    return isinstance(error, sqlite3.Error)


def is_about_values(error: BaseException) -> bool:
    """Return whether an SQLite error concerns values or the statement, not file or disk.

    >>> is_about_values(sqlite3.IntegrityError()), is_about_values(sqlite3.OperationalError())
    (True, False)
    """
    kinds = (
        sqlite3.DataError,
        sqlite3.IntegrityError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
    )
    return isinstance(error, kinds)
