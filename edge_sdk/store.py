"""All that a device must not forget, in one SQLite file: learned, owed, spent, numbered, measured.

Each public method that writes is one transaction on disk before it returns (write-ahead log,
``synchronous=FULL``). The file is held by one process at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edge_sdk.charge import Charge
from edge_sdk.errors import StoreError, StoreFull
from edge_sdk.series import Row
from edge_sdk.storefile import CHARGE, FILE, SCHEMA, before_the_ledger, let_go, opened
from edge_sdk.storefile import write_charges as _write_charges
from edge_sdk.uplink import Entry, Numbers
from edge_sdk.wire.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.wire.errors import WireError

_ENTRY = "life, seq, kind, body, proof, run, round, base, spec, spent, attempts"


@dataclass(frozen=True, slots=True)
class Learned:
    """What the device half knows, and the round it learned last.

    Attributes:
        run: Training run it belongs to; 0 before the first.
        round: Last round of that run it trained; -1 before the first.
        version: Version of the common model it last took over; -1 before the first.
        spec: Digest of the whole layout the arrays were written for.
        leaves: The half's state as named arrays and numbers.
    """

    run: int
    round: int
    version: int
    spec: bytes
    leaves: Mapping[str, Leaf]


class Store:
    """One device's file. Open it with ``Store.open``; close it, or use it as a context manager.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with Store.open(folder) as store:
        ...     store.set_facts(conn=7)
        >>> with Store.open(folder) as store:
        ...     store.fact("conn"), store.numbers().lost
        (7, True)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Take over an open connection and the lock that guards it; use ``open``."""
        self._db = connection
        self._lock = lock
        self.path = path

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> Store:
        """Open the file in a folder, and make both if they are missing.

        Args:
            folder: The device's ``state`` folder.
            read_only: Look only; works beside a running device, and makes nothing.

        Raises:
            StoreBusy: Another process runs on this folder.
            StoreNewer: A newer version of this software wrote the file.
            StoreError: It cannot be opened, or is not ours.
        """
        return cls(*opened(folder, read_only=read_only))

    # --- what was learned, owed and spent ---------------------------------------------------------

    def save(
        self,
        *,
        learned: Learned,
        numbers: Numbers | None = None,
        entry: Entry | None = None,
        charges: Iterable[Charge] = (),
        facts: Mapping[str, int] | None = None,
    ) -> None:
        """Keep what a round produced, in ONE transaction: state, number, charge, and the release.

        Only after this returns may a byte of the entry leave (rule D1).

        Raises:
            StoreFull: No space; nothing changed.
        """
        with self._writing() as db:
            db.execute(
                "INSERT OR REPLACE INTO learned VALUES (1, ?, ?, ?, ?, ?)",
                (
                    learned.run,
                    learned.round,
                    learned.version,
                    learned.spec,
                    pack_leaves(learned.leaves),
                ),
            )
            if numbers is not None:
                _write_numbers(db, numbers)
            if entry is not None:
                _write_entry(db, entry)
            _write_charges(db, charges)
            _write_facts(db, facts or {})

    def keep(
        self,
        numbers: Numbers,
        *,
        before: tuple[Entry, ...] = (),
        after: tuple[Entry, ...] = (),
        facts: Mapping[str, int] | None = None,
    ) -> None:
        """Keep what the uplink changed: numbers, attempts, and entries that a receipt settled."""
        gone = {entry.key for entry in before} - {entry.key for entry in after}
        old = {entry.key: entry for entry in before}
        with self._writing() as db:
            _write_numbers(db, numbers)
            for key in gone:
                db.execute("DELETE FROM outbox WHERE life = ? AND seq = ?", key)
            for entry in after:
                if entry.key not in old:
                    _write_entry(db, entry)
                elif entry.attempts != old[entry.key].attempts:
                    change = (entry.attempts, *entry.key)
                    db.execute("UPDATE outbox SET attempts = ? WHERE life = ? AND seq = ?", change)
            _write_facts(db, facts or {})

    def numbers(self) -> Numbers:
        """Read the numbers; those of a new store say ``lost``."""
        row = self._db.execute("SELECT life, seq, spent, lost FROM numbers").fetchone()
        return Numbers(row[0], row[1], row[2], bool(row[3])) if row else Numbers()

    def outbox(self) -> tuple[Entry, ...]:
        """Read what is owed, oldest first."""
        rows = self._db.execute(f"SELECT {_ENTRY} FROM outbox ORDER BY life, seq")  # noqa: S608 - a constant
        names = [name.strip() for name in _ENTRY.split(",")]
        return tuple(Entry(**dict(zip(names, row, strict=True))) for row in rows)

    def learned(self) -> Learned | None:
        """Read what was learned, or None before the first round.

        Raises:
            StoreError: The bytes are damaged.
        """
        row = self._db.execute(
            "SELECT run, round, version, spec, leaves FROM learned WHERE one = 1"
        ).fetchone()
        if row is None:
            return None
        try:
            run, round_, version, spec, leaves = row
            return Learned(run, round_, version, spec, unpack_leaves(leaves))
        except WireError as error:
            raise StoreError(
                f"{self.path}: {error}", hint="move the state folder away to start anew"
            ) from error

    # --- what was told, and under what noise ------------------------------------------------------

    def ledger(self) -> Iterator[Charge]:
        """Read every charge, in the order it was made."""
        if self._db.execute("PRAGMA user_version").fetchone()[0] < SCHEMA:
            yield from before_the_ledger(self.numbers().spent)
            return
        rows = self._db.execute(f"SELECT {CHARGE} FROM ledger ORDER BY line")  # noqa: S608 - a constant
        yield from (Charge(*row) for row in rows)

    def charge(self, numbers: Numbers, charges: Iterable[Charge]) -> None:
        """Keep charges for what may have left, and the count that goes with them."""
        with self._writing() as db:
            _write_numbers(db, numbers)
            _write_charges(db, charges)

    def noised(self) -> dict[tuple[str, int], float]:
        """Read every reading that was perturbed, by stream and slot."""
        rows = self._db.execute("SELECT stream, slot, value FROM noised")
        return {(stream, slot): value for stream, slot, value in rows}

    def add_noised(self, rows: Iterable[Row], charge: Charge) -> None:
        """Keep perturbed readings and their charge, in one transaction. What is there stays."""
        with self._writing() as db:
            kept = [(row.stream, row.slot, row.value) for row in rows]
            db.executemany("INSERT OR IGNORE INTO noised VALUES (?, ?, ?)", kept)
            _write_charges(db, [charge])

    def noised_since(self) -> int:
        """Unix seconds before which no reading is perturbed; 0 is no limit."""
        return self.fact("noised since")

    def begin_noise_anew(self, since: int) -> None:
        """After a lost store: older readings may have been told under noise that is gone.

        Those drawn here meanwhile were never told, for nothing leaves before a welcome.
        """
        with self._writing() as db:
            db.execute("DELETE FROM noised")
            _write_facts(db, {"noised since": since})

    # --- facts and papers -------------------------------------------------------------------------

    def fact(self, name: str, default: int = 0) -> int:
        """Read one whole number by name."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else default

    def set_facts(self, **values: int) -> None:
        """Keep whole numbers by name, together."""
        with self._writing() as db:
            _write_facts(db, values)

    def paper(self, name: str) -> bytes | None:
        """Read a kept message or file by name."""
        row = self._db.execute("SELECT bytes FROM papers WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else None

    def file_paper(self, name: str, content: bytes, **values: int) -> None:
        """Keep bytes under a name, and numbers with them."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (name, content))
            _write_facts(db, values)

    def drop_papers(self, prefix: str, but: Iterable[str]) -> None:
        """Drop what is kept under names that begin with a prefix, except these."""
        found = self._db.execute(
            "SELECT name FROM papers WHERE substr(name, 1, ?) = ?", (len(prefix), prefix)
        ).fetchall()
        old = [name for name in found if name[0] not in set(but)]
        if old:
            with self._writing() as db:
                db.executemany("DELETE FROM papers WHERE name = ?", old)

    # --- readings ---------------------------------------------------------------------------------

    def add_readings(
        self, rows: Iterable[Row], *, before: int | None = None, step: int = 1
    ) -> None:
        """Keep a batch of readings; the last write of a slot wins.

        Args:
            rows: What was measured.
            before: Drop what was measured in slots before this one, in the same transaction, and
                the noise on it. Noise is drawn once: from then on, readings before this time are
                not perturbed, and so not learned from, should they come again.
            step: Seconds a slot.
        """
        with self._writing() as db:
            db.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", rows)
            if before is not None:
                db.execute("DELETE FROM readings WHERE slot < ?", (before,))
                if db.execute("DELETE FROM noised WHERE slot < ?", (before,)).rowcount:
                    since = max(self.fact("noised since"), before * step)
                    _write_facts(db, {"noised since": since})

    def readings(self) -> Iterator[Row]:
        """Read back what was measured, in order of time."""
        rows = self._db.execute("SELECT stream, slot, value, flags FROM readings ORDER BY slot")
        yield from (Row(*row) for row in rows)

    def count_readings(self) -> int:
        """Count the readings that are kept."""
        return int(self._db.execute("SELECT count(*) FROM readings").fetchone()[0])

    def span_readings(self) -> tuple[int, int] | None:
        """Return the oldest and the newest slot that is kept; None without any."""
        oldest, newest = self._db.execute("SELECT min(slot), max(slot) FROM readings").fetchone()
        return None if oldest is None else (int(oldest), int(newest))

    # --- the file ---------------------------------------------------------------------------------

    def size(self) -> int:
        """Bytes on disk, the log included."""
        files = (self.path, self.path.with_name(FILE + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Close the file and let others have it."""
        self._db.close()
        let_go(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        """Use it in a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk afterwards, or none of it ever was."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_FULL"):
                raise StoreFull(
                    f"{self.path}: no space left; nothing was changed",
                    hint="free some space; updates that wait for a receipt are kept",
                ) from error
            raise StoreError(f"{self.path}: {error}") from error
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _write_numbers(db: sqlite3.Connection, numbers: Numbers) -> None:
    row = (numbers.life, numbers.seq, numbers.spent, int(numbers.lost))
    db.execute("INSERT OR REPLACE INTO numbers VALUES (1, ?, ?, ?, ?)", row)


def _write_entry(db: sqlite3.Connection, entry: Entry) -> None:
    names = [name.strip() for name in _ENTRY.split(",")]
    places = ", ".join("?" * len(names))
    row = [getattr(entry, name) for name in names]
    db.execute(f"INSERT INTO outbox ({_ENTRY}) VALUES ({places})", row)  # noqa: S608 - constants


def _write_facts(db: sqlite3.Connection, values: Mapping[str, int]) -> None:
    db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values.items())
