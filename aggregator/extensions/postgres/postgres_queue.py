"""Keep the queue of checked updates in a table of PostgreSQL.

The tables are unlogged and their commits are not synchronous: a server that crashes empties them, which
costs the devices a resend, as the receipt is sent after the commit of another transaction. They are not part
of the fleet's schema, and neither a backup nor a migration copies them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import psycopg

from aggregator.extensions.postgres.postgres_connection import errors_of, opened, prepare
from aggregator.extensions.postgres.update_queue import QueuedUpdate, WorkerStatus
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.errors import DatabaseBusyError

ALIVE = 5.0  # s since its last statement after which a worker counts as gone, by the server's clock
ENDING = 2000  # ms to wait for a worker of this name that has just ended
NAME_LIMIT = 16  # characters of a worker's name
_QUEUE = "gridfed queue"
_WORKER = "gridfed worker"
_NAME_LIMIT = 63  # bytes of an application_name
_LOCK = b"SELECT pg_advisory_xact_lock(1195786568, hashtext(current_schema()))"
_NAME_LOCK = b"SELECT pg_advisory_lock(1195786569, hashtext(%s))"
_TABLES = (
    b"CREATE UNLOGGED TABLE queued_updates ("
    b"position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker TEXT NOT NULL,"
    b" topic TEXT NOT NULL, payload BYTEA NOT NULL, verified_by BYTEA NOT NULL);"
    b"ALTER TABLE queued_updates ALTER payload SET STORAGE EXTERNAL;"
    b"CREATE UNLOGGED TABLE admission_workers (worker TEXT PRIMARY KEY, counts TEXT NOT NULL)"
)
_ALIVE = (
    "SELECT substr(application_name, %s) FROM pg_stat_activity"
    " WHERE starts_with(application_name, %s) AND datname = current_database()"
    " AND (state = 'active' OR state_change > clock_timestamp() - make_interval(secs => %s))"
)
_REPORT = (
    "INSERT INTO admission_workers VALUES (%s, %s)"
    " ON CONFLICT (worker) DO UPDATE SET counts = excluded.counts"
)
# The lowest and the highest position, each by a look into the index. Between them are gaps where a
# transaction failed or was overtaken by another worker's.
_LENGTH = b"SELECT coalesce(max(position) - min(position) + 1, 0) FROM queued_updates"


class PostgresQueue:
    """The queue in one database; use ``open``."""

    def __init__(self, db: psycopg.Connection, prefix: str, worker: str) -> None:
        self._db, self._prefix, self._worker = db, prefix, worker
        self.close = db.close

    @classmethod
    def open(cls, place: DatabaseUrl, *, worker: str = "") -> PostgresQueue:
        """Open the queue of a fleet that was set up; create its tables if missing.

        Args:
            worker: Name of the worker that opens it, at most ``NAME_LIMIT`` characters.

        Raises:
            DatabaseBusyError: A worker of this name runs.
        """
        with opened(place, _QUEUE) as db:
            prepare(db, place, read_only=True)
            (schema,) = db.execute("SELECT current_schema()").fetchone() or ("",)
            with db.transaction():
                db.execute(_LOCK)
                if db.execute("SELECT to_regclass('queued_updates')").fetchone() == (None,):
                    db.execute(_TABLES)
            db.execute("SET synchronous_commit = off")
            prefix = f"{_WORKER} {schema}"[: _NAME_LIMIT - 1 - NAME_LIMIT] + " "
            if worker:
                _register(db, place, prefix, worker)
        return cls(db, prefix, worker)

    def append(self, updates: Sequence[QueuedUpdate]) -> None:
        """Append updates, all or none."""
        if not updates:
            return
        with errors_of(self._db), self._db.cursor() as cursor:
            columns = "queued_updates (worker, topic, payload, verified_by)"
            with cursor.copy(f"COPY {columns} FROM STDIN (FORMAT BINARY)".encode()) as copy:
                copy.set_types(["text", "text", "bytea", "bytea"])
                for one in updates:
                    copy.write_row((self._worker, one.topic, one.payload, one.verified_by))

    def oldest(self, most: int) -> list[QueuedUpdate]:
        """Return the oldest updates; they stay until ``remove``."""
        with errors_of(self._db), self._db.cursor(binary=True) as cursor:
            found = cursor.execute(
                "SELECT topic, payload, verified_by, position FROM queued_updates"
                " ORDER BY position LIMIT %s",
                [most],
            )
            return [
                QueuedUpdate(topic, payload, verified_by=key, position=position)
                for topic, payload, key, position in found
            ]

    def remove(self, updates: Sequence[QueuedUpdate]) -> None:
        """Delete updates that were processed."""
        with errors_of(self._db):
            positions = [one.position for one in updates]
            self._db.execute("DELETE FROM queued_updates WHERE position = ANY(%s)", [positions])

    def length(self) -> int:
        """Return the number of updates in the queue, or a few more."""
        with errors_of(self._db):
            (found,) = self._db.execute(_LENGTH).fetchone() or (0,)
            return int(found)

    def show(self, *, is_receiving: bool) -> None:
        """Count this worker as alive from now on, or not: whether updates reach it."""
        name = f"{self._prefix}{self._worker}" if is_receiving else _QUEUE
        with errors_of(self._db):
            self._db.execute("SELECT set_config('application_name', %s, false)", [name])

    def report(self, counts: Mapping[str, int]) -> None:
        with errors_of(self._db):
            self._db.execute(_REPORT, [self._worker, json.dumps(dict(counts))])

    def workers(self) -> list[WorkerStatus]:
        """Return the workers that are alive, or have updates in the queue, by name."""
        with errors_of(self._db):
            found = self._db.execute(_ALIVE, [len(self._prefix) + 1, self._prefix, ALIVE])
            alive = {name for (name,) in found}
            waiting = "SELECT worker, count(*) FROM queued_updates GROUP BY worker"
            queued: dict[str, int] = dict(self._db.execute(waiting).fetchall())
            reported = "SELECT worker, counts FROM admission_workers"
            counts: dict[str, str] = dict(self._db.execute(reported).fetchall())
        return [
            WorkerStatus(
                name, name in alive, queued.get(name, 0), json.loads(counts.get(name, "{}"))
            )
            for name in sorted(alive | queued.keys())
        ]


def _register(db: psycopg.Connection, place: DatabaseUrl, prefix: str, worker: str) -> None:
    """Take the name of a worker for this session; the server frees it when the session ends."""
    db.execute(f"SET lock_timeout = {ENDING}".encode())
    try:
        db.execute(_NAME_LOCK, [f"{prefix}{worker}"])
    except psycopg.errors.LockNotAvailable as error:
        raise DatabaseBusyError(
            f"{place}: a worker with the name {worker!r} runs already",
            hint="give each worker a name of its own: --name",
        ) from error
    db.execute("RESET lock_timeout")
    db.execute(_REPORT, [worker, "{}"])
