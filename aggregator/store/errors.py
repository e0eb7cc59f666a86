"""Errors of the database, and their translation from the engines' errors."""

from __future__ import annotations

import sqlite3
from typing import ClassVar

from aggregator.store.dialect import Location
from edge_sdk.app.sqlite_file import primary_code
from edge_sdk.errors import MIGRATION, TEMPORARY, Failure


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


class DatabaseLostError(DatabaseError):
    """A connection that ended, or a process whose place another one has taken."""

    exit_code: ClassVar[int] = TEMPORARY


class ConnectionLostError(sqlite3.OperationalError):
    """DB-API error of a connection that ended, or that another process has replaced."""


def is_lost(error: BaseException) -> bool:
    """Return whether this process can no longer write to the database."""
    return isinstance(error, (DatabaseLostError, ConnectionLostError))


def database_error(error: sqlite3.Error, path: Location) -> DatabaseError:
    """Return the error to raise instead of an error of the engine.

    >>> from pathlib import Path
    >>> full = sqlite3.OperationalError("database or disk is full")
    >>> full.sqlite_errorcode = sqlite3.SQLITE_FULL
    >>> type(database_error(full, Path("fleet.db"))).__name__
    'DatabaseFullError'
    >>> type(database_error(sqlite3.OperationalError("no such table"), Path("fleet.db"))).__name__
    'DatabaseError'
    """
    if isinstance(error, ConnectionLostError):
        return DatabaseLostError(f"{path}: {error}", hint="start it again; it waits as a standby")
    if primary_code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DatabaseFullError(
            f"{path}: the disk is full or failing: {error}",
            hint="free some space; devices keep what they have not yet been receipted",
        )
    return DatabaseError(f"{path}: {error}")


def is_from_database(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error)


def is_about_values(error: BaseException) -> bool:
    """Return whether an error of a database concerns values or the statement, not file or disk.

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
