"""Store a device's state in one SQLite file: learned state, outbox, ledger, numbers, readings.

Each public method that writes is one transaction on disk before it returns (write-ahead log,
``synchronous=FULL``). The file is held by one process at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, Self

from edge_sdk.app import sqlite_file
from edge_sdk.errors import StoreError, WireError
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.messages import LIFE_LEAP
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.store.rows import (
    LearnedState,
    ReadingRows,
    can_be_sent,
    charges,
    find_unusable,
    read_entries,
    read_fact,
    read_learned,
    read_numbers,
    replace_unusable,
    write_charges,
    write_entry,
    write_facts,
    write_learned,
    write_numbers,
)
from edge_sdk.store.schema import SET_ASIDE, opened, store_error

COUNTED: Final = "counted outside"
"""Fact: the store has had a second count. Without one it is not made again from the ledger."""


class ReleaseGate(Protocol):
    """The count that every release of one store must pass before it is committed."""

    @property
    def newest(self) -> int:
        """Unix seconds of the newest release, by the machine's clock."""

    def reserve(self, line: int, releases: int, charges: Iterable[PrivacyCharge]) -> None:
        """Count releases and their charges after a line of the ledger, before the transaction.

        Raises:
            SignerUnavailable: They cannot be counted now, or ``StoreFull``; nothing is changed.
        """

    def settle(self, line: int) -> None:
        """Record that a store which was lost continues from this line of its new ledger."""


class DeviceStore:
    """One device's store. Open with ``DeviceStore.open``; close, or use as a context manager.

    Attributes:
        path: The file.
        readings: The readings.
        found: Values that were unusable when it was opened.
        second_count: Count of releases outside the state folder; None where none is kept.
        close: Closes the file and releases its lock.
        lacks_count: True until ``count_outside`` is called, and if the count is lost: nothing is known
            to fit into a budget.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with DeviceStore.open(folder) as store:
    ...     store.set_facts(conn=7)
    >>> with DeviceStore.open(folder) as store:
    ...     store.fact("conn"), store.numbers().lost
    (7, True)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, held: ExitStack) -> None:
        """Take an open connection and its closer; use ``open``."""
        self._db = connection
        self.readings = ReadingRows(connection)
        self.close = held.close
        self.path = path
        self.found: dict[str, str] = {}
        self.second_count: ReleaseGate | None = None
        self.lacks_count = True

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, exclusive: bool = False) -> DeviceStore:
        """Open the file in a folder; create both if they are missing.

        Raises:
            StoreBusy: Another process uses this folder.
            StoreNewer: A newer version of this software wrote the file.
        """
        store = cls(*opened(folder, read_only=read_only, exclusive=exclusive))
        with ExitStack() as failing:
            failing.push(store)
            if not read_only:
                store._set_aside()
            failing.pop_all()
        return store

    # --- learned state, outbox and numbers --------------------------------------------------------

    def save(
        self,
        *,
        learned: LearnedState,
        numbers: UplinkCounters | None = None,
        entry: OutboxEntry | None = None,
        charges: Iterable[PrivacyCharge] = (),
        facts: Mapping[str, int] | None = None,
    ) -> None:
        """Save a round in one transaction: state, number, charges, and the release.

        Only after this returns may a byte of the entry be sent (rule D1).

        Raises:
            StoreFull: No space, also for the second count; nothing changed.
            SignerUnavailable: It cannot be signed now; nothing changed.
        """
        charges = tuple(charges)
        with self._writing() as db:
            if numbers is not None and self.second_count is not None:
                self.second_count.reserve(self.count_charges(), numbers.spent, charges)
            write_learned(db, learned)
            if numbers is not None:
                write_numbers(db, numbers)
            if entry is not None:
                write_entry(db, entry)
            write_charges(db, charges)
            write_facts(db, facts or {})

    def keep(
        self,
        numbers: UplinkCounters,
        *,
        before: tuple[OutboxEntry, ...] = (),
        after: tuple[OutboxEntry, ...] = (),
        facts: Mapping[str, int] | None = None,
    ) -> None:
        """Save outbox changes: numbers, attempts, and the removal of receipted entries."""
        removed = {entry.key for entry in before} - {entry.key for entry in after}
        old = {entry.key: entry for entry in before}
        with self._writing() as db:
            write_numbers(db, numbers)
            for key in removed:
                db.execute("DELETE FROM outbox WHERE life = ? AND seq = ?", key)
            for entry in after:
                if entry.key not in old:
                    write_entry(db, entry)
                elif entry.attempts != old[entry.key].attempts:
                    change = (entry.attempts, *entry.key)
                    db.execute("UPDATE outbox SET attempts = ? WHERE life = ? AND seq = ?", change)
            write_facts(db, facts or {})

    def numbers(self) -> UplinkCounters:
        """Return the numbers; those of a new store have ``lost`` set."""
        return read_numbers(self._db)[0]

    def outbox(self) -> tuple[OutboxEntry, ...]:
        """Return the outbox, oldest first, without entries that no message can carry."""
        return tuple(entry for entry in read_entries(self._db) if can_be_sent(entry))

    def learned(self) -> LearnedState | None:
        """Return the learned state, or None before the first round.

        Raises:
            StoreError: The bytes are damaged.
        """
        try:
            return read_learned(self._db)
        except WireError as error:
            raise StoreError(
                f"{self.path}: {error}",
                hint="move the state folder away to start with an empty one",
            ) from error

    # --- privacy ledger and noise -----------------------------------------------------------------

    def ledger(self) -> Iterator[PrivacyCharge]:
        """Read every charge in order; an unusable one counts as unbounded."""
        yield from charges(self._db, self.fact("ledger set aside"))

    def count_charges(self) -> int:
        """Return the number of the ledger's last line; it only grows."""
        return int(self._db.execute("SELECT coalesce(max(line), 0) FROM ledger").fetchone()[0])

    def charge(self, numbers: UplinkCounters, charges: Iterable[PrivacyCharge]) -> None:
        """Save charges for possible releases, together with the release count."""
        with self._writing() as db:
            write_numbers(db, numbers)
            write_charges(db, charges)

    def save_answer(self, name: str, content: bytes, charge: PrivacyCharge, **values: int) -> None:
        """Save a noisy answer under a name, its charge, and integers, in one transaction.

        Raises:
            StoreFull: No space; nothing changed.
        """
        with self._writing() as db:
            if self.second_count is not None:
                self.second_count.reserve(self.count_charges(), 0, (charge,))
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (name, content))
            write_charges(db, [charge])
            write_facts(db, values)

    def noised(self) -> dict[tuple[str, int], float]:
        rows = self._db.execute("SELECT stream, slot, value FROM noised")
        return {(stream, slot): value for stream, slot, value in rows}

    def add_noised(self, rows: Iterable[SeriesRow], charge: PrivacyCharge) -> None:
        """Save perturbed readings and their charge in one transaction; existing rows are kept."""
        with self._writing() as db:
            kept = [(row.stream, row.slot, row.value) for row in rows]
            db.executemany("INSERT OR IGNORE INTO noised VALUES (?, ?, ?)", kept)
            write_charges(db, [charge])

    def noised_since(self) -> int:
        """Unix seconds before which no reading is perturbed; 0 is no limit."""
        return self.fact("noised since")

    def begin_noise_anew(self, since: int) -> None:
        """Restrict noise to newer readings after a lost store: older ones may have been released.

        Noise drawn here meanwhile was never released, because nothing is sent before a welcome.
        """
        second, since = self.second_count, max(since, self.noised_since())
        if second is not None:
            since = max(since, second.newest + 1)
        with self._writing() as db:
            db.execute("DELETE FROM noised")
            write_facts(db, {"noised since": since})
        if second is not None:
            second.settle(self.count_charges())

    def count_outside(self, second: ReleaseGate | None, *, is_lost: bool = False) -> None:
        """Count releases outside the folder from now on, unless their count is lost."""
        self.second_count, self.lacks_count = second, is_lost

    # --- facts and named records ------------------------------------------------------------------

    def fact(self, name: str, default: int = 0) -> int:
        return read_fact(self._db, name, default)

    def set_facts(self, **values: int) -> None:
        with self._writing() as db:
            write_facts(db, values)

    def paper(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT bytes FROM papers WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else None

    def file_paper(self, name: str, content: bytes, **values: int) -> None:
        """Save bytes under a name, together with integers."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (name, content))
            write_facts(db, values)

    def has_papers(self, prefix: str) -> bool:
        """Return whether there is a record whose name begins with a prefix."""
        query = "SELECT 1 FROM papers WHERE substr(name, 1, ?) = ? LIMIT 1"
        return self._db.execute(query, (len(prefix), prefix)).fetchone() is not None

    def drop_papers(self, prefix: str, but: Iterable[str]) -> None:
        """Delete the records whose names begin with a prefix, except these."""
        found = self._db.execute(
            "SELECT name FROM papers WHERE substr(name, 1, ?) = ?", (len(prefix), prefix)
        ).fetchall()
        old = [name for name in found if name[0] not in set(but)]
        if old:
            with self._writing() as db:
                db.executemany("DELETE FROM papers WHERE name = ?", old)

    # --- unusable values --------------------------------------------------------------------------

    def unusable(self) -> dict[str, str]:
        return find_unusable(self._db)

    def set_aside(self) -> dict[str, str]:
        """Return the values found unusable so far, which are not used any more."""
        paper = self.paper(SET_ASIDE)
        try:
            return {} if paper is None else dict(unpack_leaves(paper))
        except WireError:
            return {}

    def own(self, kid: bytes, fleet: str = "") -> bool:
        """Record the key and the fleet in use; return whether the key differs from the one before.

        A new key begins new numbers where those before are unusable. Charges remain charged, except
        ledger lines that cannot be read: they are left out from then on.
        """
        before = self.paper("key")
        if before in (None, kid):
            if before is None or (fleet and not self.paper("fleet")):
                with self._writing() as db:
                    rows = [("key", kid), ("fleet", fleet.encode())]
                    db.executemany("INSERT OR REPLACE INTO papers VALUES (?, ?)", rows)
            return False
        numbers = self.numbers()
        numbers = replace(numbers, life=numbers.life if numbers.life <= LIFE_LEAP else 0, seq=0)
        line = self.count_charges()
        with self._writing() as db:
            write_numbers(db, numbers)
            write_facts(db, {"ledger set aside": line})
            db.execute("INSERT OR REPLACE INTO papers VALUES ('key', ?)", (kid,))
        return True

    def _set_aside(self) -> None:
        found = self.unusable()
        if not found:
            return
        kept = pack_leaves({**self.set_aside(), **found})
        with self._writing() as db:
            replace_unusable(db)
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (SET_ASIDE, kept))
        self.found = found

    # --- readings ---------------------------------------------------------------------------------

    def add_readings(
        self, rows: Iterable[SeriesRow], *, before: int | None = None, step: int = 1
    ) -> None:
        """Save a batch of readings; the last write of a slot wins.

        Args:
            before: Slot before which readings, and the noise on them, are dropped in the same
                transaction. Noise is drawn once: afterwards, readings before this time are not
                perturbed, and so not used for training, should they arrive again.
            step: Seconds per slot.
        """
        with self._writing() as db:
            self.readings.write(rows)
            if before is not None and self.readings.drop(before):
                since = max(self.fact("noised since"), before * step)
                write_facts(db, {"noised since": since})

    # --- the file ---------------------------------------------------------------------------------

    def size(self) -> int:
        """Size on disk in bytes, including the log."""
        return sqlite_file.size(self.path)

    def __enter__(self) -> Self:
        """Return the store itself, for a ``with`` block."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the store; an unreadable database becomes an error with the remedy."""
        self.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(self.path, error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with sqlite_file.transaction(self._db) as db:
                yield db
        except sqlite3.Error as error:
            raise store_error(self.path, error) from error
