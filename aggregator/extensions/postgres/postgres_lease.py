"""Let one process at a time write to a PostgreSQL database, and let another one take over.

The writer holds an advisory lock in a session of its own, which a thread uses every second. When the
process ends, the server frees the lock. When the process is paused or cut off, the session is silent;
a standby that sees it silent for ``SILENT`` seconds of its own clock ends it and takes the lock. Each
taking of the lock increases the epoch, which every transaction that writes compares: a process that
wakes up later cannot commit.

The same statement reads the server's clock, which is the one wall clock of all processes that may write
(``DatabaseClock``). The clocks of their machines may be wrong or be set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg

from aggregator.extensions.postgres.postgres_connection import connect, opened, prepare
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.errors import DatabaseBusyError, DatabaseLostError
from edge_sdk.app.clock import Clock, SystemClock

BEAT = 1.0  # s between two statements of the session with the lock
SILENT = 3.0  # s without a statement after which a standby ends the session
LOOK = 0.25  # s between two looks of a standby
ENDING = (
    2000  # ms to wait for a process that has just ended: the server frees its lock a little later
)
_KEY = "1195786567, hashtext(current_schema())"  # "GFAG", and one lock for each schema
_WRITER = "gridfed writer"
_HOLDER = "gridfed lock"
_SESSIONS = (
    " FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = 1195786567 AND objid::bigint = hashtext(current_schema())::bigint & 4294967295"
)


class DatabaseClock(Clock):
    """Wall clock of the database's server: its last value, and the monotonic time since.

    Args:
        own: Clock of this process; its monotonic part is used, and its wall clock is not.

    >>> class Own:
    ...     at = 5.0
    ...     def wall(self): return 0
    ...     def monotonic(self): return self.at
    >>> clock = DatabaseClock(Own())
    >>> clock.set(1_790_000_000_000)
    >>> Own.at = 7.5
    >>> clock.wall(), clock.monotonic()
    (1790000002500, 7.5)
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._read = (own.wall(), own.monotonic())

    def set(self, wall: int) -> None:
        """Record the server's time, Unix milliseconds, that was read just now."""
        self._read = (wall, self._own.monotonic())  # one assignment: another thread may read it

    def wall(self) -> int:
        """Unix milliseconds of the server's clock."""
        wall, at = self._read
        return wall + int(1000 * (self._own.monotonic() - at))

    def monotonic(self) -> float:
        """Seconds of this process's monotonic clock."""
        return self._own.monotonic()


class Lease:
    """The lock of one database, held until ``close``; use ``acquire``."""

    def __init__(self, db: psycopg.Connection, place: DatabaseUrl, epoch: int) -> None:
        """Keep the session that holds the lock, and use it every ``BEAT`` seconds from now on."""
        self.epoch, self.writer = epoch, writer_of(db)
        self._db, self._place = db, place
        self._closing = threading.Event()
        self._lost = ""
        self.clock = DatabaseClock(SystemClock())
        self._read_clock()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, place: DatabaseUrl) -> Lease:
        """Take the lock, and increase the epoch.

        Raises:
            DatabaseBusyError: Another process holds it, for ``ENDING`` ms at least.
            DatabaseNewerError: A newer version wrote the database.
            DatabaseError: The database cannot be reached or written.
        """
        with opened(place, _HOLDER) as db:
            return cls(db, place, _locked(db, place))

    def require_held(self) -> None:
        """Raise ``DatabaseLostError`` if the session with the lock has ended."""
        if self._lost:
            raise DatabaseLostError(
                f"{self._place}: the lock is lost: {self._lost}",
                hint="another process may have taken over; start it again as a standby",
            )

    def close(self) -> None:
        """Free the lock."""
        self._closing.set()
        self._thread.join()
        self._db.close()

    def _beat(self) -> None:
        while not self._closing.wait(BEAT):
            try:
                self._read_clock()
            except psycopg.Error as error:
                self._lost = " ".join(str(error).split()) or type(error).__name__
                return

    def _read_clock(self) -> None:
        row = self._db.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        ).fetchone()
        assert row is not None
        self.clock.set(int(row[0]))


class LockWatch:
    """Watch the session with the lock from another process; end it when it is silent.

    Args:
        monotonic: Monotonic clock of this process, in seconds. No wall clock is compared, so a clock
            that is set does nothing.
    """

    def __init__(self, place: DatabaseUrl, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._place, self._monotonic = place, monotonic
        self._seen: tuple[object, ...] | None = None
        self._since = 0.0
        self._db: psycopg.Connection | None = None

    def look(self) -> bool:
        """Return whether the lock may be free; end a silent session with it."""
        try:
            if self._db is None or self._db.closed:
                self._db = connect(self._place, "gridfed standby")
            found = self._db.execute(f"SELECT pid, state_change{_SESSIONS}".encode()).fetchone()
            if found is None:
                return True
            now = self._monotonic()
            if found != self._seen:
                self._seen, self._since = found, now
            elif now - self._since >= SILENT:
                self._db.execute("SELECT pg_terminate_backend(%s)", [found[0]])
                self._seen = None
        except psycopg.Error:  # the server is away: look again later
            self.close()
            self._seen = None
        return False

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _locked(db: psycopg.Connection, place: DatabaseUrl) -> int:
    """Take the lock, end a writer that lost it, and return the next epoch."""
    db.execute(f"SET lock_timeout = {ENDING}".encode())
    try:
        db.execute(f"SELECT pg_advisory_lock({_KEY})".encode())
    except psycopg.errors.LockNotAvailable as error:
        raise DatabaseBusyError(
            f"{place}: another process holds this database",
            hint="one aggregator writes at a time; `run` waits as a standby",
        ) from error
    db.execute("RESET lock_timeout")
    prepare(db, place)
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        " AND datname = current_database() AND pid <> pg_backend_pid()",
        [writer_of(db)],
    )
    (epoch,) = db.execute(
        "UPDATE schema_version SET epoch = epoch + 1 RETURNING epoch"
    ).fetchone() or (0,)
    return int(epoch)


def writer_of(db: psycopg.Connection) -> str:
    """Return the ``application_name`` of the session that writes."""
    (name,) = db.execute("SELECT current_schema()").fetchone() or ("",)
    return f"{_WRITER} {name}"[:63]
