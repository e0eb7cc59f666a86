"""Copy all tables from one database to another, page by page, and compare them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.extensions.postgres.postgres_connection import JOURNAL_END
from aggregator.store.dialect import Database, dialect_of, last_position
from aggregator.store.errors import DatabaseError
from aggregator.store.schema import fact, prepare, put_fact
from edge_sdk.app.sqlite_file import transaction

MIGRATING = "migrating"  # fact of a database into which a migration has not ended
_PAGE = 256  # rows read and written at a time
_OWN = (MIGRATING, JOURNAL_END)  # facts that are of one database only


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Columns of a table."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]  # columns of the primary key, in order


def tables() -> list[TableColumns]:
    """Return the tables of the newest schema, by name.

    >>> [one.key for one in tables() if one.name in ("journal", "leaves")]
    [('position',), ('run', 'path', 'position')]
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        prepare(db, Path("memory"))
        names = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY name"
        ).fetchall()
        found = []
        for (name,) in names:
            rows = db.execute(f"PRAGMA table_info({name})").fetchall()
            key = sorted((place, column) for _, column, *_, place in rows if place)
            found.append(
                TableColumns(name, tuple(row[1] for row in rows), tuple(one for _, one in key))
            )
        return found


def pages(
    db: Database, table: TableColumns, after: tuple[Any, ...] | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table in the order of its key, after a key."""
    key, columns = ", ".join(table.key), ", ".join(table.columns)
    at = [table.columns.index(one) for one in table.key]
    marks = ", ".join("?" * len(at))
    while True:
        where = f"WHERE ({key}) > ({marks})" if after is not None else ""
        page = db.execute(
            f"SELECT {columns} FROM {table.name} {where} ORDER BY {key} LIMIT ?",  # noqa: S608
            (*(after or ()), _PAGE),
        ).fetchall()
        if not page:
            return
        after = tuple(page[-1][column] for column in at)
        yield [row for row in page if table.name != "facts" or row[0] not in _OWN]


def copy_all(source: Database, target: Database) -> None:
    """Copy every table into an empty database, in the transaction at hand."""
    for table in tables():
        for page in pages(source, table):
            _insert(target, table, page)
    _end_at(target, last_position(source))


def write_file(source: Database, target: sqlite3.Connection) -> None:
    """Create the tables of an empty file and fill them."""
    prepare(target, Path("copy"))
    with transaction(target):
        copy_all(source, target)


def migrate(
    source: sqlite3.Connection,
    target: Database,
    writing: Callable[[], AbstractContextManager[Database]],
    note: Callable[[str], None],
) -> None:
    """Copy every table, a page in a transaction; continue a copy that was interrupted.

    Args:
        source: The database to copy; nothing changes it meanwhile.

    Raises:
        DatabaseError: A table differs after it was copied.
    """
    with writing() as db:
        put_fact(db, MIGRATING, 1)
    for table in tables():
        for attempt in range(2):
            _continue(source, target, table, writing)
            count, ours = digest(source, table)
            if (count, ours) == digest(target, table):
                note(f"{table.name}: {count} rows, equal")
                break
            if attempt:
                raise DatabaseError(f"table {table.name} differs after it was copied")
            with writing() as db:
                db.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of ours
                put_fact(db, MIGRATING, 1)
    with writing() as db:
        _end_at(db, last_position(source))
        db.execute("DELETE FROM facts WHERE name = ?", (MIGRATING,))


def digest(db: Database, table: TableColumns) -> tuple[int, str]:
    """Return the number of a table's rows, and the SHA-256 of all of them in order."""
    count, found = 0, hashlib.sha256()
    for page in pages(db, table):
        count += len(page)
        for row in page:
            found.update(repr(tuple(row)).encode())
    return count, found.hexdigest()


def clear(db: Database) -> None:
    """Delete all rows, in the transaction at hand."""
    for table in tables():
        db.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of ours


def _continue(
    source: Database,
    target: Database,
    table: TableColumns,
    writing: Callable[[], AbstractContextManager[Database]],
) -> None:
    after = None
    if table.name != "facts":
        key = ", ".join(table.key)
        last = ", ".join(f"{one} DESC" for one in table.key)
        after = target.execute(
            f"SELECT {key} FROM {table.name} ORDER BY {last} LIMIT 1"  # noqa: S608
        ).fetchone()
    for page in pages(source, table, after):
        with writing() as db:
            _insert(db, table, page)


def _insert(db: Database, table: TableColumns, page: list[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" * len(table.columns))
    columns = ", ".join(table.columns)
    db.executemany(
        f"INSERT INTO {table.name} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
        page,
    )


def _end_at(db: Database, position: int) -> None:
    if isinstance(db, sqlite3.Connection):
        db.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
        db.execute("INSERT INTO sqlite_sequence VALUES ('journal', ?)", (position,))
    elif fact(db, JOURNAL_END) != position:
        dialect_of(db).use_position(db, position)
