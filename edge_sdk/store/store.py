"""All that a device must not forget, in one SQLite file: learned, owed, spent, numbered, measured.

Each public method that writes is one transaction on disk before it returns (write-ahead log,
``synchronous=FULL``). The file is held by one process at a time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Self

from edge_sdk.errors import StoreError, StoreFull
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.privacy.event import BOUNDLESS, PrivacyCharge
from edge_sdk.store.schema import (
    FILE,
    SCHEMA,
    SET_ASIDE,
    before_the_ledger,
    charges,
    instead_of,
    let_go,
    opened,
    unusable_lines,
    usable_charge,
    usable_fact,
    usable_numbers,
)
from edge_sdk.store.schema import write_charges as _write_charges
from edge_sdk.wire.errors import Refused, WireError
from edge_sdk.wire.protocol.codec import Leaf, encode, pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import CHUNK_LIMIT, LARGEST, LIFE_LEAP
from edge_sdk.wire.protocol.outbox import OutboxEntry, UplinkCounters

_ENTRY = "life, seq, kind, body, proof, run, round, base, spec, spent, attempts"


@dataclass(frozen=True, slots=True)
class LearnedState:
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


class DeviceStore:
    """One device's file. Open it with ``DeviceStore.open``; close it, or use it as a context manager.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with DeviceStore.open(folder) as store:
        ...     store.set_facts(conn=7)
        >>> with DeviceStore.open(folder) as store:
        ...     store.fact("conn"), store.numbers().lost
        (7, True)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        """Take over an open connection and the lock that guards it; use ``open``."""
        self._db = connection
        self._lock = lock
        self.path = path
        self.found: dict[str, str] = {}

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> DeviceStore:
        """Open the file in a folder, and make both if they are missing.

        Args:
            folder: The device's ``state`` folder.
            read_only: Look only; works beside a running device, and makes nothing.

        Raises:
            StoreBusy: Another process runs on this folder.
            StoreNewer: A newer version of this software wrote the file.
            StoreError: It cannot be opened, or is not ours.
        """
        store = cls(*opened(folder, read_only=read_only))
        if not read_only:
            store._set_aside()
        return store

    # --- what was learned, owed and spent ---------------------------------------------------------

    def save(
        self,
        *,
        learned: LearnedState,
        numbers: UplinkCounters | None = None,
        entry: OutboxEntry | None = None,
        charges: Iterable[PrivacyCharge] = (),
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
        numbers: UplinkCounters,
        *,
        before: tuple[OutboxEntry, ...] = (),
        after: tuple[OutboxEntry, ...] = (),
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

    def numbers(self) -> UplinkCounters:
        """Read the numbers; those of a new store say ``lost``."""
        return self._numbers()[0]

    def _numbers(self) -> tuple[UplinkCounters, dict[str, object]]:
        """Read the numbers, and those on disk that are out of their bounds."""
        row = self._db.execute("SELECT life, seq, spent, lost FROM numbers").fetchone()
        if row is None:
            return UplinkCounters(), {}
        life, seq, spent = row[:3]
        found, wrong = usable_numbers(life, seq, spent, told=0)
        if "spent" in wrong:
            found, wrong = usable_numbers(life, seq, spent, told=self._told())
        return UplinkCounters(*found, bool(row[3])), wrong

    def _told(self) -> int:
        """Add up the releases of the ledger's lines that can be used."""
        if self._schema() < SCHEMA:
            return 0
        return sum(charge.releases for charge in charges(self._db, LARGEST))

    def outbox(self) -> tuple[OutboxEntry, ...]:
        """Read what is owed, oldest first, as far as a message can carry it."""
        return tuple(entry for entry in self._entries() if _can_be_sent(entry))

    def _entries(self) -> tuple[OutboxEntry, ...]:
        rows = self._db.execute(f"SELECT {_ENTRY} FROM outbox ORDER BY life, seq")  # noqa: S608 - a constant
        names = [name.strip() for name in _ENTRY.split(",")]
        return tuple(OutboxEntry(**dict(zip(names, row, strict=True))) for row in rows)

    def learned(self) -> LearnedState | None:
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
            if not all(-1 <= number <= LARGEST for number in (run, round_, version)):
                run, round_, version = 0, -1, -1  # the weights are good for any run
            return LearnedState(run, round_, version, spec, unpack_leaves(leaves))
        except WireError as error:
            raise StoreError(
                f"{self.path}: {error}", hint="move the state folder away to start anew"
            ) from error

    # --- what was told, and under what noise ------------------------------------------------------

    def ledger(self) -> Iterator[PrivacyCharge]:
        """Read every charge, in the order it was made; one that cannot be read exhausts budgets."""
        if self._schema() < SCHEMA:
            row = self._db.execute("SELECT spent FROM numbers").fetchone()
            before = before_the_ledger(row[0] if row else 0)
            yield from (usable_charge(astuple(charge)) or BOUNDLESS for charge in before)
            return
        yield from charges(self._db, self.fact("ledger set aside"))

    def _schema(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def charge(self, numbers: UplinkCounters, charges: Iterable[PrivacyCharge]) -> None:
        """Keep charges for what may have left, and the count that goes with them."""
        with self._writing() as db:
            _write_numbers(db, numbers)
            _write_charges(db, charges)

    def noised(self) -> dict[tuple[str, int], float]:
        """Read every reading that was perturbed, by stream and slot."""
        rows = self._db.execute("SELECT stream, slot, value FROM noised")
        return {(stream, slot): value for stream, slot, value in rows}

    def add_noised(self, rows: Iterable[SeriesRow], charge: PrivacyCharge) -> None:
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
        if row is None:
            return default
        value = usable_fact(name, row[0])
        return instead_of(name, row[0], int(time.time())) if value is None else value

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

    # --- what cannot be used ----------------------------------------------------------------------

    def unusable(self) -> dict[str, str]:
        """Return what is on disk and out of its bounds, by its name."""
        rows = self._db.execute("SELECT name, value FROM facts ORDER BY name")
        found = {name: value for name, value in rows if usable_fact(name, value) is None}
        found |= self._numbers()[1]
        for entry in self._entries():
            if not _can_be_sent(entry):
                found[f"outbox {entry.life}, {entry.seq}"] = "a number that no message can carry"
        row = self._db.execute("SELECT run, round, version FROM learned").fetchone()
        if row is not None and not all(-1 <= number <= LARGEST for number in row):
            found["learned"] = row
        if self._schema() >= SCHEMA:
            ignored = self.fact("ledger set aside")
            lines = [line for line in unusable_lines(self._db) if line > ignored]
            found |= {f"ledger line {line}": "not a charge; no budget is left" for line in lines}
        return {name: str(value) for name, value in found.items()}

    def set_aside(self) -> dict[str, str]:
        """Return what was found unusable so far, and is not used any more."""
        paper = self.paper(SET_ASIDE)
        try:
            return {} if paper is None else dict(unpack_leaves(paper))
        except WireError:
            return {}

    def own(self, kid: bytes) -> bool:
        """Note whose numbers these are; return whether the key is another one than before.

        A new key begins new numbers where those before cannot be used. What was charged stays
        charged, but for lines of the ledger that cannot be read: they are left out from now on.
        """
        before = self.paper("key")
        if before == kid:
            return False
        if before is None:
            self.file_paper("key", kid)
            return False
        numbers = self.numbers()
        numbers = replace(numbers, life=numbers.life if numbers.life <= LIFE_LEAP else 0, seq=0)
        line = self._db.execute("SELECT coalesce(max(line), 0) FROM ledger").fetchone()[0]
        with self._writing() as db:
            _write_numbers(db, numbers)
            _write_facts(db, {"ledger set aside": int(line)})
            db.execute("INSERT OR REPLACE INTO papers VALUES ('key', ?)", (kid,))
        return True

    def _set_aside(self) -> None:
        """Write down what is out of its bounds, and put something that can be used in its place."""
        found = self.unusable()
        if not found:
            return
        numbers, wrong = self._numbers()
        gone = [entry.key for entry in self._entries() if not _can_be_sent(entry)]
        rows = self._db.execute("SELECT name, value FROM facts").fetchall()
        facts = {
            name: instead_of(name, value, int(time.time()))
            for name, value in rows
            if usable_fact(name, value) is None
        }
        kept = pack_leaves({**self.set_aside(), **found})
        with self._writing() as db:
            if wrong:
                _write_numbers(db, numbers)
            db.executemany("DELETE FROM outbox WHERE life = ? AND seq = ?", gone)
            _write_facts(db, facts)
            if "learned" in found:
                db.execute("UPDATE learned SET run = 0, round = -1, version = -1")
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (SET_ASIDE, kept))
        self.found = found

    # --- readings ---------------------------------------------------------------------------------

    def add_readings(
        self, rows: Iterable[SeriesRow], *, before: int | None = None, step: int = 1
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

    def readings(self) -> Iterator[SeriesRow]:
        """Read back what was measured, in order of time."""
        rows = self._db.execute("SELECT stream, slot, value, flags FROM readings ORDER BY slot")
        yield from (SeriesRow(*row) for row in rows)

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


def _can_be_sent(entry: OutboxEntry) -> bool:
    """Whether a message can carry the numbers of an entry."""
    try:
        encode(entry.offer(CHUNK_LIMIT))
    except (Refused, TypeError):
        return False
    return True


def _write_numbers(db: sqlite3.Connection, numbers: UplinkCounters) -> None:
    row = (numbers.life, numbers.seq, numbers.spent, int(numbers.lost))
    db.execute("INSERT OR REPLACE INTO numbers VALUES (1, ?, ?, ?, ?)", row)


def _write_entry(db: sqlite3.Connection, entry: OutboxEntry) -> None:
    names = [name.strip() for name in _ENTRY.split(",")]
    places = ", ".join("?" * len(names))
    row = [getattr(entry, name) for name in names]
    db.execute(f"INSERT INTO outbox ({_ENTRY}) VALUES ({places})", row)  # noqa: S608 - constants


def _write_facts(db: sqlite3.Connection, values: Mapping[str, int]) -> None:
    db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values.items())
