"""Read and write the rows of numbers, outbox and facts."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping

from edge_sdk.store.bounds import instead_of, usable_fact, usable_numbers
from edge_sdk.store.ledger_rows import charges
from edge_sdk.store.schema import SCHEMA
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.messages import CHUNK_LIMIT, LARGEST
from edge_sdk.wire.protocol.outbox_state import OutboxEntry, UplinkCounters

_COLUMNS = "life, seq, kind, body, proof, run, round, base, spec, spent, attempts"
_FIELDS = tuple(_COLUMNS.split(", "))


def schema_of(db: sqlite3.Connection) -> int:
    """Return the number of the file's schema; a read-only file may have an older one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def read_numbers(db: sqlite3.Connection) -> tuple[UplinkCounters, dict[str, object]]:
    """Return the numbers, and the values on disk that are out of bounds."""
    row = db.execute("SELECT life, seq, spent, lost FROM numbers").fetchone()
    if row is None:
        return UplinkCounters(), {}
    life, seq, spent = row[:3]
    found, wrong = usable_numbers(life, seq, spent, released=0)
    if "spent" in wrong:
        found, wrong = usable_numbers(life, seq, spent, released=_releases(db))
    return UplinkCounters(*found, bool(row[3])), wrong


def _releases(db: sqlite3.Connection) -> int:
    """Return the sum of the releases in the ledger's usable lines."""
    if schema_of(db) < SCHEMA:
        return 0
    return sum(charge.releases for charge in charges(db, LARGEST))


def write_numbers(db: sqlite3.Connection, numbers: UplinkCounters) -> None:
    """Replace the numbers."""
    row = (numbers.life, numbers.seq, numbers.spent, int(numbers.lost))
    db.execute("INSERT OR REPLACE INTO numbers VALUES (1, ?, ?, ?, ?)", row)


def read_entries(db: sqlite3.Connection) -> tuple[OutboxEntry, ...]:
    """Return every entry of the outbox, oldest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM outbox ORDER BY life, seq")  # noqa: S608 - a constant
    return tuple(OutboxEntry(**dict(zip(_FIELDS, row, strict=True))) for row in rows)


def write_entry(db: sqlite3.Connection, entry: OutboxEntry) -> None:
    """Add an entry to the outbox."""
    places = ", ".join("?" * len(_FIELDS))
    row = [getattr(entry, name) for name in _FIELDS]
    db.execute(f"INSERT INTO outbox ({_COLUMNS}) VALUES ({places})", row)  # noqa: S608 - constants


def can_be_sent(entry: OutboxEntry) -> bool:
    """Return whether a message can carry the numbers of an entry."""
    try:
        encode(entry.offer(CHUNK_LIMIT))
    except (Refused, TypeError):
        return False
    return True


def read_fact(db: sqlite3.Connection, name: str, default: int = 0) -> int:
    """Return a stored integer by name; a value out of bounds is replaced."""
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if row is None:
        return default
    value = usable_fact(name, row[0])
    return instead_of(name, row[0], int(time.time())) if value is None else value


def write_facts(db: sqlite3.Connection, values: Mapping[str, int]) -> None:
    """Save integers by name."""
    db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values.items())
