"""Store a device's state in one SQLite file: learned state, outbox, ledger, numbers, readings.

Each public method that writes is one transaction on disk before it returns (write-ahead log,
``synchronous=FULL``). The file is held by one process at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Self

from edge_sdk.app import sqlite_file
from edge_sdk.errors import StoreError, StoreFull
from edge_sdk.forecasting.series import SeriesColumn, SeriesRow
from edge_sdk.privacy.event import UNBOUNDED, PrivacyCharge
from edge_sdk.store import reading_rows
from edge_sdk.store.bounds import usable_charge
from edge_sdk.store.ledger_rows import before_the_ledger, charges, write_charges
from edge_sdk.store.rows import (
    can_be_sent,
    read_entries,
    read_fact,
    read_numbers,
    schema_of,
    write_entry,
    write_facts,
    write_numbers,
)
from edge_sdk.store.schema import SCHEMA, SET_ASIDE, opened
from edge_sdk.store.unusable_values import find_unusable, replace_unusable
from edge_sdk.wire.errors import WireError
from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import LARGEST, LIFE_LEAP
from edge_sdk.wire.protocol.outbox_state import OutboxEntry, UplinkCounters


@dataclass(frozen=True, slots=True)
class LearnedState:
    """The state of the device half, and the last round it was trained in.

    Attributes:
        run: Training run of the state; 0 before the first.
        round: Last round trained in that run; -1 before the first.
        version: Version of the common model adopted last; -1 before the first.
        spec: Digest of the whole layout of the arrays.
        leaves: State of the half as named arrays and numbers.
    """

    run: int
    round: int
    version: int
    spec: bytes
    leaves: Mapping[str, Leaf]


class DeviceStore:
    """One device's store. Open with ``DeviceStore.open``; close, or use as a context manager.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with DeviceStore.open(folder) as store:
        ...     store.set_facts(conn=7)
        >>> with DeviceStore.open(folder) as store:
        ...     store.fact("conn"), store.numbers().lost
        (7, True)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, held: ExitStack) -> None:
        """Take an open connection and what closes it; use ``open``."""
        self._db = connection
        self._resources = held
        self.path = path
        self.found: dict[str, str] = {}

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, exclusive: bool = False) -> DeviceStore:
        """Open the file in a folder; create both if they are missing.

        Args:
            folder: The device's ``state`` folder.
            read_only: True to read only; works beside a running device, and creates nothing.
            exclusive: True to let nothing read beside it, with two open files instead of four.

        Raises:
            StoreBusy: Another process uses this folder.
            StoreNewer: A newer version of this software wrote the file.
            StoreError: It cannot be opened, or is not a device store.
        """
        store = cls(*opened(folder, read_only=read_only, exclusive=exclusive))
        if not read_only:
            store._set_aside()
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
        row = self._db.execute(
            "SELECT run, round, version, spec, leaves FROM learned WHERE one = 1"
        ).fetchone()
        if row is None:
            return None
        try:
            run, round_, version, spec, leaves = row
            if not all(-1 <= number <= LARGEST for number in (run, round_, version)):
                run, round_, version = 0, -1, -1  # the weights are usable in any run
            return LearnedState(run, round_, version, spec, unpack_leaves(leaves))
        except WireError as error:
            raise StoreError(
                f"{self.path}: {error}",
                hint="move the state folder away to start with an empty one",
            ) from error

    # --- privacy ledger and noise -----------------------------------------------------------------

    def ledger(self) -> Iterator[PrivacyCharge]:
        """Read every charge in order; an unusable one counts as unbounded."""
        if schema_of(self._db) < SCHEMA:
            row = self._db.execute("SELECT spent FROM numbers").fetchone()
            before = before_the_ledger(row[0] if row else 0)
            yield from (usable_charge(astuple(charge)) or UNBOUNDED for charge in before)
            return
        yield from charges(self._db, self.fact("ledger set aside"))

    def count_charges(self) -> int:
        """Return the number of the ledger's last line; it only grows."""
        return int(self._db.execute("SELECT coalesce(max(line), 0) FROM ledger").fetchone()[0])

    def charge(self, numbers: UplinkCounters, charges: Iterable[PrivacyCharge]) -> None:
        """Save charges for possible releases, together with the release count."""
        with self._writing() as db:
            write_numbers(db, numbers)
            write_charges(db, charges)

    def save_answer(self, name: str, content: bytes, charge: PrivacyCharge) -> None:
        """Save a noisy answer under a name, and its charge, in one transaction.

        Raises:
            StoreFull: No space; nothing changed.
        """
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (name, content))
            write_charges(db, [charge])

    def noised(self) -> dict[tuple[str, int], float]:
        """Return every perturbed reading, by stream and slot."""
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
        with self._writing() as db:
            db.execute("DELETE FROM noised")
            write_facts(db, {"noised since": since})

    # --- facts and named records ------------------------------------------------------------------

    def fact(self, name: str, default: int = 0) -> int:
        """Return a stored integer by name."""
        return read_fact(self._db, name, default)

    def set_facts(self, **values: int) -> None:
        """Save integers by name, together."""
        with self._writing() as db:
            write_facts(db, values)

    def paper(self, name: str) -> bytes | None:
        """Return a stored message or file by name."""
        row = self._db.execute("SELECT bytes FROM papers WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else None

    def file_paper(self, name: str, content: bytes, **values: int) -> None:
        """Save bytes under a name, together with integers."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO papers VALUES (?, ?)", (name, content))
            write_facts(db, values)

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
        """Return the values on disk that are out of bounds, by name."""
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
            if before is None or (fleet and self.paper("fleet") is None):
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
        """Record the values out of bounds, and replace them with usable ones."""
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
            rows: Readings.
            before: Slot before which readings, and the noise on them, are dropped in the same
                transaction. Noise is drawn once: afterwards, readings before this time are not
                perturbed, and so not used for training, should they arrive again.
            step: Seconds per slot.
        """
        with self._writing() as db:
            reading_rows.write_readings(db, rows)
            if before is not None and reading_rows.drop_readings(db, before):
                since = max(self.fact("noised since"), before * step)
                write_facts(db, {"noised since": since})

    def readings(self) -> Iterator[SeriesRow]:
        """Return the readings in order of time."""
        return reading_rows.read_readings(self._db)

    def columns(self, streams: Iterable[str]) -> Iterator[SeriesColumn]:
        """Return the readings of streams in pieces, each stream in order of time."""
        return reading_rows.read_columns(self._db, streams)

    def count_readings(self) -> int:
        """Return the number of stored readings."""
        return reading_rows.count_readings(self._db)

    def span_readings(self) -> tuple[int, int] | None:
        """Return the oldest and the newest stored slot; None without any."""
        return reading_rows.span_readings(self._db)

    # --- the file ---------------------------------------------------------------------------------

    def size(self) -> int:
        """Size on disk in bytes, including the log."""
        return sqlite_file.size(self.path)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        """Return the store itself, for a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: all of it is on disk afterwards, or none of it."""
        try:
            with sqlite_file.transaction(self._db) as db:
                yield db
        except sqlite3.Error as error:
            if sqlite_file.primary_code(error) == sqlite3.SQLITE_FULL:
                raise StoreFull(
                    f"{self.path}: no space left; the transaction was rolled back",
                    hint="free some space; updates that wait for a receipt are kept",
                ) from error
            raise StoreError(f"{self.path}: {error}") from error
