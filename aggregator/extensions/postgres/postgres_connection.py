"""Connect to PostgreSQL, create its tables from SQLite's, and fence every transaction that writes.

Errors of psycopg are raised under the names that ``sqlite3`` gives them (DB-API 2), so that one
translation serves both engines.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from aggregator.store.dialect import Database, DatabaseUrl, Dialect, QueryResult, upsert
from aggregator.store.errors import ConnectionLostError, DatabaseError, DatabaseNewerError
from aggregator.store.schema import EXTENSION_TABLES, LATER_TABLES, SCHEMA, TABLES

JOURNAL_END = "journal end"  # fact: the last position of the journal ever used


class PostgresDialect(Dialect):
    """SQL of PostgreSQL; positions of the journal are numbered by a fact."""

    table = "SELECT to_regclass(?)"
    last_position = f"SELECT value FROM facts WHERE name = '{JOURNAL_END}'"  # noqa: S608 - fixed text

    def use_position(self, db: Database, position: int) -> None:
        db.execute(upsert("facts", "name", "value"), (JOURNAL_END, position))

    def json_items(self, document: str, name: str) -> str:
        return f"jsonb_each_text(jsonb_extract_path({document}::jsonb, '{name}')) AS items (key, value)"

    def json_elements(self, document: str, name: str) -> str:
        return (
            f"jsonb_array_elements_text(jsonb_extract_path({document}::jsonb, '{name}'))"
            " AS elements (value)"
        )

    def json_length(self, document: str, name: str) -> str:
        return f"jsonb_array_length(jsonb_extract_path({document}::jsonb, '{name}'))"

    def json_list(self, column: str) -> str:
        return f"CAST(json_agg(DISTINCT {column}) AS TEXT)"

    def json_number(self, document: str, name: str) -> str:
        return f"CAST({document}::json ->> '{name}' AS DOUBLE PRECISION)"

    def json_text(self, document: str, name: str) -> str:
        return f"{document}::json ->> '{name}'"


CONNECT_TIMEOUT = 5  # s
SERVER_OPTIONS = (  # a server that vanished is noticed within about 5 s
    "-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3"
)
_FENCED = "BEGIN; SELECT epoch FROM schema_version FOR SHARE"
_LARGE = ("journal.vector", "leaves.value", "contents.body")  # does not compress
_KINDS: tuple[tuple[type[psycopg.Error], type[sqlite3.Error]], ...] = (
    (psycopg.IntegrityError, sqlite3.IntegrityError),
    (psycopg.DataError, sqlite3.DataError),
    (psycopg.ProgrammingError, sqlite3.ProgrammingError),
    (psycopg.Error, sqlite3.OperationalError),
)


def connect(place: DatabaseUrl, name: str, *, read_only: bool = False) -> psycopg.Connection:
    """Open a connection without implicit transactions; ``name`` is its ``application_name``."""
    options = f"{SERVER_OPTIONS} -c default_transaction_read_only={'on' if read_only else 'off'}"
    own = psycopg.conninfo.conninfo_to_dict(place.url).get("options", "")
    return psycopg.connect(
        place.url,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT,
        application_name=name,
        options=f"{own} {options}".strip(),
        keepalives_idle=2,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=5000,
    )


class PostgresDatabase:
    """Connection to PostgreSQL with the methods of ``sqlite3.Connection`` that the tables use.

    Args:
        db: The connection, without implicit transactions.
        epoch: Number of this process among the writers; None for a reader. A transaction that writes
            locks the number in the database, and fails if it is another one.
    """

    dialect = PostgresDialect()

    def __init__(self, db: psycopg.Connection, epoch: int | None = None) -> None:
        self._db, self._epoch, self.close = db, epoch, db.close

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open, failed or not."""
        status = self._db.info.transaction_status
        return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        """Execute a statement with ``?`` for a value; ``BEGIN IMMEDIATE`` begins to write."""
        with errors_of(self._db):
            if statement == "BEGIN IMMEDIATE":
                return self._begin()
            if statement == "COMMIT" and self._failed:
                raise sqlite3.OperationalError("the transaction has failed and is not committed")
            if values:
                return self._db.execute(_marked(statement), list(values))
            return self._db.execute(statement.encode())

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        with errors_of(self._db):
            cursor = self._db.cursor()
            cursor.executemany(_marked(statement), list(rows))
            return cursor

    @property
    def _failed(self) -> bool:
        return self._db.info.transaction_status == TransactionStatus.INERROR

    def _begin(self) -> QueryResult:
        if self._epoch is None:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        found = self._db.execute(_FENCED.encode())
        found.nextset()
        (epoch,) = found.fetchone() or (None,)
        if epoch != self._epoch:
            self._db.execute(b"ROLLBACK")
            raise ConnectionLostError(
                f"another process has taken over (epoch {epoch}, this one has {self._epoch})"
            )
        return found


@contextmanager
def errors_of(db: psycopg.Connection) -> Iterator[None]:
    """Raise errors of psycopg as those of the same name in ``sqlite3``."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if db.closed or db.broken:
            raise ConnectionLostError(f"the connection ended: {text}") from error
        kind = next(ours for theirs, ours in _KINDS if isinstance(error, theirs))
        found = kind(text)
        if isinstance(error, (psycopg.errors.DiskFull, psycopg.errors.IoError)):
            found.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise found from error


def exists(place: DatabaseUrl) -> bool:
    with opening(place), connect(place, "gridfed", read_only=True) as db:
        return has_tables(db)


def has_tables(db: psycopg.Connection) -> bool:
    found = db.execute("SELECT to_regclass('schema_version')").fetchone()
    return bool(found and found[0])


@contextmanager
def opened(
    place: DatabaseUrl, name: str, *, read_only: bool = False
) -> Iterator[psycopg.Connection]:
    """Open a connection as ``connect`` does, and close it if the block fails; errors as ``opening``."""
    with opening(place):
        db = connect(place, name, read_only=read_only)
        try:
            yield db
        except BaseException:
            db.close()
            raise


@contextmanager
def opening(place: DatabaseUrl) -> Iterator[None]:
    """Raise ``DatabaseError`` for every error of an engine."""
    try:
        yield
    except (psycopg.Error, sqlite3.Error) as error:
        text = " ".join(str(error).split())
        raise DatabaseError(f"{place}: cannot open the database: {text}") from error


def prepare(db: psycopg.Connection, place: DatabaseUrl, *, read_only: bool = False) -> None:
    """Create missing tables, and check the schema of those that are there.

    Raises:
        DatabaseNewerError: A newer version wrote it; it is unchanged.
        DatabaseError: It has no tables, and is opened to be read only.
    """
    if not has_tables(db):
        if read_only:
            raise DatabaseError(f"{place}: cannot open the database: it has no tables of a fleet")
        with db.transaction():
            db.execute(tables_of(f"{TABLES}{LATER_TABLES}{EXTENSION_TABLES}").encode())
            for column in _LARGE:
                table, _, name = column.partition(".")
                db.execute(f"ALTER TABLE {table} ALTER {name} SET STORAGE EXTERNAL".encode())
            db.execute("CREATE TABLE schema_version (version BIGINT, epoch BIGINT)")
            db.execute("INSERT INTO schema_version VALUES (%s, 0)", [SCHEMA])
        return
    (version,) = db.execute("SELECT version FROM schema_version").fetchone() or (0,)
    if version > SCHEMA:
        raise DatabaseNewerError(
            f"{place}: written by a newer version (schema {version}, ours is {SCHEMA})",
            hint="run that version, or restore a backup from before it",
        )
    if not read_only:
        with db.transaction():
            if version < SCHEMA:
                db.execute(tables_of(LATER_TABLES).encode())
                db.execute("UPDATE schema_version SET version = %s", [SCHEMA])
            db.execute(tables_of(EXTENSION_TABLES).encode())


def tables_of(statements: str) -> str:
    """Return SQLite's statements that create tables as those of PostgreSQL.

    Texts are compared by their bytes, as SQLite does, so that every order is the same.

    >>> tables_of("CREATE TABLE a (b TEXT, c INTEGER PRIMARY KEY AUTOINCREMENT, d BLOB) WITHOUT ROWID;")
    'CREATE TABLE a (b TEXT COLLATE "C", c BIGINT PRIMARY KEY, d BYTEA);'
    """
    names = {
        r"\bTEXT\b": 'TEXT COLLATE "C"',
        r"\bINTEGER\b": "BIGINT",
        r"\bBLOB\b": "BYTEA",
        r" AUTOINCREMENT\b": "",
        r" WITHOUT ROWID\b": "",
    }
    for pattern, name in names.items():
        statements = re.sub(pattern, name, statements)
    return statements


def _marked(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()
