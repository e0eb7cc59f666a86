"""Define the place of a database, the connection that the tables use, and the SQL in which engines differ.

Statements of the tables are written in the SQL that SQLite and standard engines share, with ``?`` for
a value. ``Dialect`` gives the few parts that have another name elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry

# engines (``opener.Engine``) by the scheme of the URLs that they open
ENGINES: PluginRegistry[Any] = PluginRegistry(
    {}, "gridfed.engines", listed=ExtensionIndex("aggregator").loaders("engines")
)


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database of one fleet on a server.

    >>> str(DatabaseUrl("postgresql://gridfed:secret@db.example:5432/north"))
    'postgresql://db.example:5432/north'
    """

    url: (
        str  # ``scheme://user@host/database?options``; what stands before the host is never printed
    )

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme

    def __str__(self) -> str:
        found = urlsplit(self.url)
        host = found.netloc.rpartition("@")[2]
        return f"{found.scheme}://{host}{found.path}"

    @property
    def name(self) -> str:
        return str(self)


Location = Path | DatabaseUrl  # place of a database


ALL = 2**62  # LIMIT of a query without a limit


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
    """Connection without implicit transactions: ``sqlite3.Connection``, or an engine's own.

    One of another engine has an attribute ``dialect``.
    """

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        """Execute a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        """Execute a statement for each row of values."""


class Dialect:
    """The parts of SQL in which engines differ, as SQLite has them."""

    table = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
    last_position = "SELECT seq FROM sqlite_sequence WHERE name = 'journal'"

    def use_position(self, db: Database, position: int) -> None:
        """Record that a position of the journal is used; SQLite does so itself."""

    def json_items(self, document: str, name: str) -> str:
        """Return the FROM item with ``key`` and ``value`` of an object in a JSON text.

        Args:
            document: Column with the text.
            name: Name of the object in it; it may be missing.
        """
        return f"json_each({document}, '$.{name}')"

    def json_elements(self, document: str, name: str) -> str:
        """Return the FROM item with ``value`` of an array in a JSON text; as ``json_items``."""
        return self.json_items(document, name)

    def json_length(self, document: str, name: str) -> str:
        """Return the expression of the length of an array in a JSON text; NULL if it is missing."""
        return f"json_array_length({document}, '$.{name}')"

    def json_list(self, column: str) -> str:
        """Return the expression of the JSON list of a group's different values."""
        return f"json_group_array(DISTINCT {column})"

    def json_number(self, document: str, name: str) -> str:
        """Return the expression of a number in a JSON text; NULL if it is missing."""
        return f"json_extract({document}, '$.{name}')"

    def json_text(self, document: str, name: str) -> str:
        """Return the expression of a text in a JSON text; NULL if it is missing."""
        return f"json_extract({document}, '$.{name}')"


_SQLITE = Dialect()


def dialect_of(db: Database) -> Dialect:
    return getattr(db, "dialect", _SQLITE)


def has_table(db: Database, name: str) -> bool:
    """Return whether a database has a table; an older one that is opened for reading may lack it."""
    found = db.execute(dialect_of(db).table, (name,)).fetchone()
    return found is not None and found[0] is not None


def last_position(db: Database) -> int:
    """Return the last position that the journal has ever used; 0 before the first."""
    found = db.execute(dialect_of(db).last_position).fetchone()
    return int(found[0]) if found else 0


def upsert(table: str, key: str, columns: str) -> str:
    """Return the statement that inserts a row, or replaces the one with its key.

    Args:
        key: Columns of its key, separated by commas.
        columns: The other columns, in the order of the table after the key.

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
