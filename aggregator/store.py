"""Everything the aggregator must not forget, in one SQLite file with one journal order.

Every public method that writes is one transaction on disk before it returns (write-ahead log,
``synchronous=FULL``). This is the database of a single process, which holds its file alone;
``records.Store`` says what another one would have to do.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from aggregator.ledger import Key, Ledger, Row
from aggregator.records import (
    Applied,
    Asked,
    Client,
    Content,
    Entry,
    Run,
    Saved,
    Store,
    Timer,
    Version,
    pack_event,
    pack_timers,
    unpack_event,
    unpack_timers,
)
from edge_sdk.program import MIGRATION, TEMPORARY, Failure
from edge_sdk.wire.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.history import vector_digest
from edge_sdk.wire.messages import Command
from edge_sdk.wire.method import Due, Event, Member, Played, Update

__all__ = [
    "Client",
    "Content",
    "Entry",
    "Run",
    "Saved",
    "SqliteStore",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreNewerError",
    "Timer",
    "Version",
    "alone",
]

APPLICATION = 0x47464147  # "GFAG"
SCHEMA = 2
SERIAL_LEAP = 2**20  # after a restore: beyond anything that was announced before it

_SERIALS = 256  # announcement numbers taken at a time
_CONTENTS = 2  # bodies of a kind kept for pulls: the current one, and the one before

_TASKS = """
CREATE TABLE IF NOT EXISTS tasks (device TEXT PRIMARY KEY, run INTEGER NOT NULL,
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
    base INTEGER NOT NULL, ask TEXT NOT NULL,
    vals TEXT NOT NULL, content BLOB NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_content ON tasks (content) WHERE state = 'open';
"""

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE clients (id TEXT PRIMARY KEY, sign TEXT NOT NULL, generation INTEGER NOT NULL,
    state TEXT NOT NULL, why TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE ledgers (device TEXT PRIMARY KEY, cur INTEGER NOT NULL, hid BLOB NOT NULL,
    hid_life INTEGER NOT NULL, hid_open TEXT NOT NULL, open TEXT NOT NULL, spent INTEGER NOT NULL,
    cmd INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (device TEXT NOT NULL, life INTEGER NOT NULL, seq INTEGER NOT NULL,
    digest BLOB NOT NULL, code INTEGER NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL,
    PRIMARY KEY (device, life, seq)) WITHOUT ROWID;
CREATE TABLE journal (position INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT, life INTEGER, seq INTEGER,
    turn INTEGER, facts BLOB NOT NULL, vector BLOB);
CREATE UNIQUE INDEX journal_number ON journal (device, life, seq) WHERE kind = 'update';
CREATE UNIQUE INDEX journal_turn ON journal (device, run, turn) WHERE kind = 'update';
CREATE TABLE runs (run INTEGER PRIMARY KEY, method TEXT NOT NULL, settings TEXT NOT NULL,
    bundle TEXT NOT NULL, spec BLOB NOT NULL, layout BLOB NOT NULL, upto INTEGER NOT NULL,
    anchor INTEGER NOT NULL, timers BLOB NOT NULL);
CREATE TABLE leaves (run INTEGER NOT NULL, path TEXT NOT NULL, position INTEGER NOT NULL,
    value BLOB, PRIMARY KEY (run, path, position)) WITHOUT ROWID;
CREATE TABLE versions (run INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL,
    moved INTEGER NOT NULL, position INTEGER NOT NULL, digest BLOB NOT NULL, report TEXT NOT NULL,
    time INTEGER NOT NULL, PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE announcements (topic TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (id BLOB PRIMARY KEY, kind TEXT NOT NULL, rank INTEGER NOT NULL,
    chunk INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE commands (device TEXT NOT NULL, num INTEGER NOT NULL, op TEXT NOT NULL,
    args TEXT NOT NULL, until INTEGER, done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (device, num)) WITHOUT ROWID;
"""


class StoreError(Failure):
    """The database cannot be used."""


class StoreBusyError(StoreError):
    """Another process holds the database."""

    exit_code: ClassVar[int] = TEMPORARY


class StoreNewerError(StoreError):
    """The database was written by a newer version of this program."""

    exit_code: ClassVar[int] = MIGRATION


class StoreFullError(StoreError):
    """The disk is full or failing; nothing was recorded."""

    exit_code: ClassVar[int] = TEMPORARY


class SqliteStore:
    """One fleet's file. Open it with ``SqliteStore.open``; close it, or use it in a ``with``.

    Example:
        >>> import tempfile
        >>> with SqliteStore.open(Path(tempfile.mkdtemp()) / "fleet.db") as store:
        ...     store.put_client(Client("meter-1", (bytes(32),)))
        ...     [client.id for client in store.clients()]
        ['meter-1']
    """

    def __init__(self, db: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Take over an open connection and the lock that guards it; use ``open``."""
        self._db = db
        self._lock = lock
        self._serial = self._serial_end = 0
        self.path = path

    # --- opening and closing

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> SqliteStore:
        """Open a file, making it and its folder if missing.

        Args:
            path: The database file.
            read_only: Look only, beside a running daemon; takes no lock and makes nothing.

        Raises:
            StoreBusyError: Another process holds it.
            StoreNewerError: A newer version wrote it.
            StoreError: It is no database of ours, or cannot be opened.
        """
        lock = None if read_only else _locked(path)
        try:
            mode = "ro" if read_only else "rwc"
            uri = f"{path.resolve().as_uri()}?mode={mode}"
            db = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                _prepare(db, path, read_only=read_only)
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            _unlock(lock)
            raise StoreError(f"{path}: cannot open the database: {error}") from error
        except BaseException:
            _unlock(lock)
            raise
        return cls(db, path, lock)

    def close(self) -> None:
        """Close the file and let another process have it."""
        self._db.close()
        _unlock(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def backup(self, path: Path) -> None:
        """Write a consistent copy while the daemon runs.

        The copy knows that it is one: whoever opens it to continue sees ``was_restored``.
        """
        beside = path.with_name(f".{path.name}.part")
        beside.unlink(missing_ok=True)
        with closing(sqlite3.connect(beside, isolation_level=None)) as copy:
            self._db.backup(copy)
            copy.execute("INSERT OR REPLACE INTO facts VALUES ('restored', 1)")
            copy.execute("PRAGMA journal_mode = DELETE")
        beside.replace(path)

    @property
    def was_restored(self) -> bool:
        """Whether this file is a backup that nobody has adopted yet (A9)."""
        return bool(self._fact("restored"))

    def adopt(self) -> None:
        """Continue from a backup: numbers that devices may have seen larger leap ahead.

        Those are the numbers of announcements and of commands; the caller begins a new run.
        """
        with self._writing():
            self._set_fact("serial", self._fact("serial") + SERIAL_LEAP)
            self._db.execute(
                "INSERT INTO ledgers (device, cur, hid, hid_life, hid_open, open, spent, cmd)"
                " SELECT id, 0, x'', 0, '[]', '[]', 0, ? FROM clients WHERE true"
                " ON CONFLICT (device) DO UPDATE SET cmd = cmd + excluded.cmd",
                (SERIAL_LEAP,),
            )
            self._set_fact("restored", 0)
        self._serial = self._serial_end = 0

    def integrity(self) -> list[str]:
        """Return what SQLite finds wrong with the file; nothing if it is sound."""
        try:
            found = [str(line) for (line,) in self._db.execute("PRAGMA integrity_check")]
        except sqlite3.DatabaseError as error:  # too damaged even to look at
            return [str(error)]
        return [line for line in found if line != "ok"]

    # --- devices

    def clients(self) -> list[Client]:
        """Return all enrolled devices, by id."""
        return [
            Client(name, tuple(bytes.fromhex(key) for key in json.loads(sign)), *rest)
            for name, sign, *rest in self._db.execute(
                "SELECT id, sign, generation, state, why FROM clients ORDER BY id"
            )
        ]

    def put_client(self, client: Client) -> None:
        """Enrol a device, or change what is known of it."""
        sign = json.dumps([key.hex() for key in client.sign])
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?, ?)",
                (client.id, sign, client.generation, client.state, client.why),
            )

    def ledger(self, device: str) -> Ledger:
        """Return a device's numbers; a new device has empty ones."""
        found = self._db.execute(
            "SELECT cur, hid, hid_life, hid_open, open, spent, cmd FROM ledgers WHERE device = ?",
            (device,),
        ).fetchone()
        if found is None:
            return Ledger()
        cur, hid, life, listed, still, spent, cmd = found
        return Ledger(cur, hid, life, _keys(listed), _keys(still), spent, cmd)

    def save_ledger(self, device: str, ledger: Ledger) -> None:
        """Save a device's numbers and prune the rows they close."""
        with self._writing():
            self._put_ledger(device, ledger)

    def row(self, device: str, key: Key) -> Row | None:
        """Return how a number was settled."""
        found = self._db.execute(
            "SELECT digest, code, run, round FROM rows WHERE device = ? AND life = ? AND seq = ?",
            (device, *key),
        ).fetchone()
        return None if found is None else Row(*found)

    def held(self, device: str) -> int:
        """Return how many settled numbers are kept for a device."""
        return int(self._one("SELECT count(*) FROM rows WHERE device = ?", device) or 0)

    # --- commands

    def issue(
        self,
        device: str,
        op: str,
        args: Mapping[str, float] | None = None,
        until: int | None = None,
    ) -> Command:
        """Give a device its next command; it is sent until the device receipts it."""
        with self._writing():
            ledger = self.ledger(device)
            num = ledger.cmd + 1
            self._db.execute(
                "INSERT INTO ledgers (device, cur, hid, hid_life, hid_open, open, spent, cmd)"
                " VALUES (?, 0, x'', 0, '[]', '[]', 0, ?)"
                " ON CONFLICT (device) DO UPDATE SET cmd = excluded.cmd",
                (device, num),
            )
            self._db.execute(
                "INSERT INTO commands (device, num, op, args, until) VALUES (?, ?, ?, ?, ?)",
                (device, num, op, json.dumps(dict(args or {})), until),
            )
        return Command(num, op, dict(args or {}), until)

    def issued(self, device: str) -> list[Command]:
        """Return the commands a device has not yet receipted."""
        return [
            Command(num, op, json.loads(args), until)
            for num, op, args, until in self._db.execute(
                "SELECT num, op, args, until FROM commands WHERE device = ? AND done = 0"
                " ORDER BY num",
                (device,),
            )
        ]

    def command_done(self, device: str, num: int, code: int) -> bool:
        """Note a command's receipt; False if there is no such open command."""
        with self._writing():
            changed = self._db.execute(
                "UPDATE commands SET done = 1 + ? WHERE device = ? AND num = ? AND done = 0",
                (code, device, num),
            ).rowcount
        return bool(changed)

    # --- the journal

    def append(
        self, device: str, ledger: Ledger, key: Key, row: Row, update: Update
    ) -> tuple[Row, Entry | None]:
        """Settle a number with an update, or TWICE_IN_ROUND if its round has one already (A4)."""
        with self._writing():
            taken = self._one(
                "SELECT 1 FROM journal WHERE kind = 'update' AND device = ? AND run = ?"
                " AND turn = ?",
                device,
                row.run,
                update.round,
            )
            if taken:
                row = Row(row.digest, Reason.TWICE_IN_ROUND, row.run, row.round)
                self._settle(device, ledger, key, row)
                return row, None
            self._settle(device, ledger, key, row)
            entry = self._journal("update", row.run, update, device=device, key=key)
            self._close_task(device, row, "answered")
        return row, entry

    def refuse(self, device: str, ledger: Ledger, key: Key, row: Row) -> Row:
        """Settle a number with a final refusal (A4)."""
        with self._writing():
            self._settle(device, ledger, key, row)
            self._close_task(device, row, "refused")
        return row

    # --- tasks of single devices

    def asked(self, device: str, run: int) -> Asked | None:
        """Return a device's newest task in a run, answered or not."""
        found = self._tasks("device = ? AND run = ?", device, run)
        return found[0] if found else None

    def tasks(self, run: int, state: str = "open") -> list[Asked]:
        """Return the newest tasks of all devices that are in a state, by device."""
        return self._tasks("run = ? AND state = ?", run, state)

    def ever_asked(self, run: int) -> set[str]:
        """Return the devices that have, or had, a task in a run."""
        rows = self._db.execute("SELECT device FROM tasks WHERE run = ?", (run,))
        return {device for (device,) in rows}

    def record(self, run: int, event: Event) -> Entry:
        """Write an event that is no update into the journal."""
        kinds: dict[type[Any], str] = {Due: "due", Member: "member", Played: "played"}
        with self._writing():
            return self._journal(kinds[type(event)], run, event)

    def journal(self, run: int, after: int = 0) -> Iterator[Entry]:
        """Return a run's events behind a position, in order."""
        for position, kind, device, facts, vector in self._db.execute(
            "SELECT position, kind, device, facts, vector FROM journal"
            " WHERE run = ? AND position > ? ORDER BY position",
            (run, after),
        ):
            yield Entry(position, run, unpack_event(kind, device, facts, vector))

    # --- runs and their state

    def run(self) -> Run | None:
        """Return the latest run."""
        found = self._db.execute(
            "SELECT run, method, settings, bundle, spec, layout FROM runs ORDER BY run DESC LIMIT 1"
        ).fetchone()
        return None if found is None else Run(*found)

    def begin(
        self,
        run: Run,
        leaves: Mapping[str, Leaf],
        published: Mapping[str, bytes] | None = None,
    ) -> None:
        """Begin a run with its first state, before anything of it is journalled."""
        with self._writing():
            upto = int(self._one("SELECT coalesce(max(position), 0) FROM journal") or 0)
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*astuple(run), upto, upto, pack_timers(())),
            )
            self._put_leaves(run.run, upto, leaves)
            self._put_announcements(published or {})
            self._put_tasks((), ended=run.run)

    def load(self, run: int) -> Saved:
        """Return a run's state as last committed.

        Raises:
            StoreError: There is no such run.
        """
        upto, timers = self._state_of(run)
        return Saved(self._leaves_at(run, upto), upto, unpack_timers(timers))

    def first(self, run: int) -> Saved:
        """Return the oldest state of a run from which the journal is still whole.

        Raises:
            StoreError: There is no such run.
        """
        self._state_of(run)
        anchor = int(self._one("SELECT anchor FROM runs WHERE run = ?", run) or 0)
        return Saved(self._leaves_at(run, anchor), anchor)

    def commit(
        self,
        run: int,
        leaves: Mapping[str, Leaf],
        upto: int,
        *,
        closed: Version | None = None,
        timers: Sequence[Timer] = (),
        published: Mapping[str, bytes] | None = None,
        contents: Sequence[Content] = (),
        asked: Sequence[Asked] = (),
        keep_rounds: int | None = None,
    ) -> None:
        """Save what an event changed, with what will be announced because of it.

        Args:
            run: The run.
            leaves: Changed leaves by path; None deletes one (``leaves.changed``).
            upto: Journal position of the event.
            closed: The round it closed.
            timers: All wake-ups that are pending now.
            published: Retained topics and their signed payloads; an empty payload clears one.
            contents: Bodies that may be pulled from now on; the one before stays.
            asked: Tasks of single devices, each of which replaces the one before; their contents
                stay until the last of them is answered.
            keep_rounds: Forget vectors and states older than so many closed rounds.
        """
        with self._writing():
            self._put_leaves(run, upto, leaves)
            self._db.execute(
                "UPDATE runs SET upto = ?, timers = ? WHERE run = ?",
                (upto, pack_timers(timers), run),
            )
            if closed is not None:
                self._put_version(closed, upto)
            self._put_announcements(published or {})
            self._put_tasks(asked)
            for content in contents:
                self._put_content(content)
            if keep_rounds is not None and closed is not None:
                self._prune(run, keep_rounds)

    def versions(self, run: int, last: int | None = None) -> list[Version]:
        """Return a run's closed rounds, oldest first; only the newest ``last`` if given."""
        found = self._db.execute(
            "SELECT run, round, version, moved, digest, report, time, position FROM versions"
            " WHERE run = ? ORDER BY round DESC LIMIT ?",
            (run, -1 if last is None else last),
        ).fetchall()
        return [
            Version(r, number, version, bool(moved), digest, json.loads(report), time, position)
            for r, number, version, moved, digest, report, time, position in reversed(found)
        ]

    def runs(self) -> list[int]:
        """Return the numbers of all runs, oldest first."""
        return [run for (run,) in self._db.execute("SELECT run FROM runs ORDER BY run")]

    def applied(self) -> Iterator[Applied]:
        """Return every update of the journal, of all runs, in order."""
        for position, run, turn, device, life, seq, facts, vector in self._db.execute(
            "SELECT position, run, turn, device, life, seq, facts, vector FROM journal"
            " WHERE kind = 'update' ORDER BY position"
        ):
            event = unpack_event("update", device, facts, vector)
            known = vector_digest(event.vector) if isinstance(event, Update) else ""
            yield Applied(device, life, seq, run, turn, position, known)

    def settled(self) -> dict[tuple[str, int, int], Row]:
        """Return how every number was settled that is still kept, by device, life and number."""
        found = self._db.execute("SELECT device, life, seq, digest, code, run, round FROM rows")
        return {(device, life, seq): Row(*rest) for device, life, seq, *rest in found}

    def waiting(self, run: int, number: int) -> int:
        """Return how many updates a round has recorded."""
        return int(
            self._one(
                "SELECT count(*) FROM journal WHERE kind = 'update' AND run = ? AND round = ?",
                run,
                number,
            )
            or 0
        )

    # --- announcements and contents

    def announcements(self) -> dict[str, bytes]:
        """Return every retained topic and its signed payload, to be published on each connect."""
        return dict(
            self._db.execute("SELECT topic, payload FROM announcements ORDER BY topic").fetchall()
        )

    def announced(self, topic: str) -> bytes:
        """Return the signed payload of one retained topic; empty if it has none."""
        return bytes(self._one("SELECT payload FROM announcements WHERE topic = ?", topic) or b"")

    def announce(self, published: Mapping[str, bytes], contents: Sequence[Content] = ()) -> None:
        """Save announcements that belong to no event; an empty payload clears a topic."""
        with self._writing():
            self._put_announcements(published)
            for content in contents:
                self._put_content(content)

    def content(self, ref: bytes) -> Content | None:
        """Return a body that may be pulled, by the first 16 bytes of its digest."""
        found = self._db.execute(
            "SELECT kind, id, body, chunk FROM contents WHERE id = ?", (ref,)
        ).fetchone()
        return None if found is None else Content(*found)

    def next_serial(self) -> int:
        """Return the next announcement number; numbers rise for ever, with gaps."""
        if self._serial >= self._serial_end:
            with self._writing():
                self._serial = self._fact("serial")
                self._serial_end = self._serial + _SERIALS
                self._set_fact("serial", self._serial_end)
        self._serial += 1
        return self._serial

    def size(self) -> int:
        """Return the bytes of the file and of its write-ahead log."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return sum(p.stat().st_size for p in (self.path, log) if p.exists())

    # --- inside a transaction

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _spoken(error, self.path) from error

    def _settle(self, device: str, ledger: Ledger, key: Key, row: Row) -> None:
        self._put_ledger(device, ledger)
        self._db.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)",
            (device, *key, row.digest, row.code, row.run, row.round),
        )

    def _put_ledger(self, device: str, ledger: Ledger) -> None:
        before = self._one("SELECT cur FROM ledgers WHERE device = ?", device)
        self._db.execute(
            "INSERT OR REPLACE INTO ledgers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (device, *_columns(ledger)),
        )
        if before is not None and before != ledger.cur:
            self._prune_rows(device, ledger)

    def _prune_rows(self, device: str, ledger: Ledger) -> None:
        """A life ended: only what may still be asked for keeps its row."""
        for life, seq in self._db.execute(
            "SELECT life, seq FROM rows WHERE device = ?", (device,)
        ).fetchall():
            if (life, seq) not in ledger.open and life < ledger.cur:
                self._db.execute(
                    "DELETE FROM rows WHERE device = ? AND life = ? AND seq = ?",
                    (device, life, seq),
                )

    def _journal(
        self,
        kind: str,
        run: int,
        event: Event,
        *,
        device: str | None = None,
        key: Key | None = None,
    ) -> Entry:
        facts, vector = pack_event(event)
        number = getattr(event, "round", 0)
        turn = event.round if isinstance(event, Update) else None
        position = self._db.execute(
            "INSERT INTO journal (kind, run, round, device, life, seq, turn, facts, vector)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (kind, run, number, device, *(key or (None, None)), turn, facts, vector),
        ).lastrowid
        return Entry(int(position or 0), run, event)

    def _put_leaves(self, run: int, position: int, leaves: Mapping[str, Leaf]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO leaves VALUES (?, ?, ?, ?)",
            [
                (run, path, position, None if leaf is None else pack_leaves({"leaf": leaf}))
                for path, leaf in leaves.items()
            ],
        )

    def _leaves_at(self, run: int, position: int) -> dict[str, Leaf]:
        return {
            path: unpack_leaves(value)["leaf"]
            for path, value, _ in self._db.execute(
                "SELECT path, value, max(position) FROM leaves WHERE run = ? AND position <= ?"
                " GROUP BY path",
                (run, position),
            )
            if value is not None
        }

    def _state_of(self, run: int) -> tuple[int, bytes]:
        found = self._db.execute("SELECT upto, timers FROM runs WHERE run = ?", (run,)).fetchone()
        if found is None:
            raise StoreError(f"{self.path}: there is no run {run}")
        upto, timers = found
        return upto, timers

    def _put_version(self, closed: Version, upto: int) -> None:
        run, number, version, moved, digest, report, time, _ = (
            getattr(closed, f.name) for f in fields(closed)
        )
        self._db.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (run, number, version, moved, upto, digest, json.dumps(dict(report)), time),
        )

    def _put_announcements(self, published: Mapping[str, bytes]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO announcements VALUES (?, ?)", list(published.items())
        )

    def _tasks(self, where: str, *values: object) -> list[Asked]:
        rows = self._db.execute(
            "SELECT device, run, round, attempt, step, base, ask, vals, content, state FROM tasks"  # noqa: S608 - constants
            f" WHERE {where} ORDER BY device",
            values,
        ).fetchall()
        names = [f.name for f in fields(Asked)]
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [Asked(**one | {"values": json.loads(one["values"])}) for one in found]

    def _put_tasks(self, asked: Sequence[Asked], *, ended: int = 0) -> None:
        """Keep newer tasks; one that is kept already stays answered if it was."""
        self._db.executemany(
            "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device) DO UPDATE"
            " SET run = excluded.run, round = excluded.round, attempt = excluded.attempt,"
            " step = excluded.step, base = excluded.base, ask = excluded.ask, vals = excluded.vals,"
            " content = excluded.content, state = excluded.state WHERE (excluded.run,"
            " excluded.round, excluded.attempt, excluded.step) <> (run, round, attempt, step)",
            [
                (*astuple(one)[:7], json.dumps(dict(one.values)), one.content, one.state)
                for one in asked
            ],
        )
        if ended:
            self._db.execute("DELETE FROM tasks WHERE run <> ?", (ended,))

    def _close_task(self, device: str, row: Row, state: str) -> None:
        self._db.execute(
            "UPDATE tasks SET state = ? WHERE device = ? AND run = ? AND round = ?"
            " AND state = 'open'",
            (state, device, row.run, row.round),
        )

    def _put_content(self, content: Content) -> None:
        if content.kind == "task":
            self._put_content_of_task(content)
            return
        rank = int(self._one("SELECT coalesce(max(rank), 0) FROM contents") or 0) + 1
        self._db.execute(
            "INSERT OR REPLACE INTO contents (id, kind, rank, chunk, body) VALUES (?, ?, ?, ?, ?)",
            (content.id, content.kind, rank, content.chunk, content.body),
        )
        self._db.execute(
            "DELETE FROM contents WHERE kind = ? AND rank NOT IN"
            " (SELECT rank FROM contents WHERE kind = ? ORDER BY rank DESC LIMIT ?)"
            " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')",
            (content.kind, content.kind, _CONTENTS),
        )

    def _put_content_of_task(self, content: Content) -> None:
        """Keep one body for all who are told the same, as long as one of them works on it."""
        self._db.execute(
            "INSERT OR IGNORE INTO contents (id, kind, rank, chunk, body) VALUES (?, ?, 0, ?, ?)",
            (content.id, content.kind, content.chunk, content.body),
        )
        self._db.execute(
            "DELETE FROM contents WHERE kind = 'task'"
            " AND id NOT IN (SELECT content FROM tasks WHERE state = 'open')"
        )

    def _prune(self, run: int, keep_rounds: int) -> None:
        """Move the anchor: vectors before it go, and so do states that only led up to it."""
        anchor = self._one(
            "SELECT position FROM versions WHERE run = ? ORDER BY round DESC LIMIT 1 OFFSET ?",
            run,
            keep_rounds,
        )
        if anchor is None:
            return
        self._db.execute("UPDATE runs SET anchor = ? WHERE run = ?", (anchor, run))
        self._db.execute(
            "UPDATE journal SET vector = NULL WHERE vector IS NOT NULL AND position <= ?",
            (anchor,),
        )
        self._db.execute(
            "DELETE FROM leaves WHERE run = ? AND position < (SELECT max(later.position)"
            " FROM leaves AS later WHERE later.run = leaves.run AND later.path = leaves.path"
            " AND later.position <= ?)",
            (run, anchor),
        )

    def _fact(self, name: str) -> int:
        return int(self._one("SELECT value FROM facts WHERE name = ?", name) or 0)

    def _set_fact(self, name: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _one(self, query: str, *values: object) -> Any:  # noqa: ANN401 - one SQL value
        found = self._db.execute(query, values).fetchone()
        return None if found is None else found[0]


def _prepare(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    schema = db.execute("PRAGMA user_version").fetchone()[0]
    is_empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION and not (is_empty and not read_only):
        raise StoreError(f"{path}: not an aggregator's database")
    if schema > SCHEMA:
        raise StoreNewerError(
            f"{path}: written by a newer version (schema {schema}, ours is {SCHEMA})",
            hint="run that version, or restore a backup from before it",
        )
    if read_only:
        return
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    if is_empty:
        db.executescript(
            f"BEGIN IMMEDIATE; {_TABLES}{_TASKS}"
            f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
    elif schema == 1:  # the tasks of single devices came with schema 2
        db.executescript(f"BEGIN IMMEDIATE; {_TASKS} PRAGMA user_version = {SCHEMA}; COMMIT;")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep every other process away from a database without opening it.

    Raises:
        StoreBusyError: Another process holds it.
    """
    lock = _locked(path)
    try:
        yield
    finally:
        _unlock(lock)


def _locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreBusyError(
            f"{path}: another process holds this database",
            hint="one aggregator per state folder; stop the other one first",
        ) from error
    return lock


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _spoken(error: sqlite3.Error, path: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return StoreFullError(
            f"{path}: the disk is full or failing: {error}",
            hint="free some space; devices keep what they have not yet been receipted",
        )
    return StoreError(f"{path}: {error}")


def _columns(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.cur,
        ledger.hid,
        ledger.hid_life,
        json.dumps(ledger.hid_open),
        json.dumps(ledger.open),
        ledger.spent,
        ledger.cmd,
    )


def _keys(text: str) -> tuple[Key, ...]:
    return tuple((life, seq) for life, seq in json.loads(text))
