"""Define the connection that the tables use, and the SQL in which SQLite and PostgreSQL differ.

Every statement of the tables is written in the SQL that both understand, with ``?`` for a value. The
functions of this module give the few parts that have another name in each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

ALL = 2**62  # LIMIT of a query without a limit
JOURNAL_END = "journal end"  # fact of PostgreSQL: the last position ever used


class QueryResult(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int:
        """Return the number of rows that it changed."""

    def fetchone(self) -> Any:  # noqa: ANN401 - a row of any columns
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]:
        """Return the remaining rows, one by one."""


class Database(Protocol):
    """Connection without implicit transactions: ``sqlite3.Connection``, or one to PostgreSQL."""

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        """Execute a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        """Execute a statement for each row of values."""


def is_sqlite(db: Database) -> bool:
    """Return whether a connection is one to SQLite."""
    return isinstance(db, sqlite3.Connection)


def upsert(table: str, key: str, columns: str) -> str:
    """Return the statement that inserts a row, or replaces the one with its key.

    Args:
        table: Name of the table.
        key: Columns of its key, separated by commas.
        columns: The other columns, in the order of the table after the key.

    Example:
        >>> upsert("facts", "name", "value")
        'INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value'
    """
    others = columns.split(", ")
    marks = ", ".join("?" * (len(others) + len(key.split(", "))))
    changed = ", ".join(f"{one} = excluded.{one}" for one in others)
    return (
        f"INSERT INTO {table} ({key}, {columns}) VALUES ({marks})"  # noqa: S608 - fixed text
        f" ON CONFLICT ({key}) DO UPDATE SET {changed}"
    )


def schema_of(db: Database) -> int:
    """Return the number of the schema that a database has."""
    if is_sqlite(db):
        found = db.execute("PRAGMA user_version").fetchone()[0]
    else:
        found = db.execute("SELECT version FROM schema_version").fetchone()[0]
    return int(found)


def last_position(db: Database) -> int:
    """Return the last position that the journal has ever used; 0 before the first."""
    if is_sqlite(db):
        query = "SELECT seq FROM sqlite_sequence WHERE name = 'journal'"
    else:
        query = f"SELECT value FROM facts WHERE name = '{JOURNAL_END}'"  # noqa: S608 - fixed text
    found = db.execute(query).fetchone()
    return int(found[0]) if found else 0


def use_position(db: Database, position: int) -> None:
    """Record that a position is used; SQLite does so itself."""
    if not is_sqlite(db):
        db.execute(upsert("facts", "name", "value"), (JOURNAL_END, position))


def json_items(db: Database, document: str, name: str) -> str:
    """Return the FROM item with ``key`` and ``value`` of an object in a JSON text.

    Args:
        db: Connection.
        document: Column with the text.
        name: Name of the object in it; it may be missing.
    """
    if is_sqlite(db):
        return f"json_each({document}, '$.{name}')"
    return f"jsonb_each_text(jsonb_extract_path({document}::jsonb, '{name}')) AS items (key, value)"


def json_elements(db: Database, document: str, name: str) -> str:
    """Return the FROM item with ``value`` of an array in a JSON text; as ``json_items``."""
    if is_sqlite(db):
        return f"json_each({document}, '$.{name}')"
    return (
        f"jsonb_array_elements_text(jsonb_extract_path({document}::jsonb, '{name}'))"
        " AS elements (value)"
    )


def json_length(db: Database, document: str, name: str) -> str:
    """Return the expression of the length of an array in a JSON text; NULL if it is missing."""
    if is_sqlite(db):
        return f"json_array_length({document}, '$.{name}')"
    return f"jsonb_array_length(jsonb_extract_path({document}::jsonb, '{name}'))"


def json_list(db: Database, column: str) -> str:
    """Return the expression of the JSON list of a group's different values."""
    if is_sqlite(db):
        return f"json_group_array(DISTINCT {column})"
    return f"CAST(json_agg(DISTINCT {column}) AS TEXT)"


def json_number(db: Database, document: str, name: str) -> str:
    """Return the expression of a number in a JSON text; NULL if it is missing."""
    if is_sqlite(db):
        return f"json_extract({document}, '$.{name}')"
    return f"CAST({document}::json ->> '{name}' AS DOUBLE PRECISION)"


def json_text(db: Database, document: str, name: str) -> str:
    """Return the expression of a text in a JSON text; NULL if it is missing."""
    if is_sqlite(db):
        return f"json_extract({document}, '$.{name}')"
    return f"{document}::json ->> '{name}'"
