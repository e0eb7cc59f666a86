"""Find the stored values that are out of bounds, and replace them with usable ones."""

from __future__ import annotations

import sqlite3
import time

from edge_sdk.store.bounds import instead_of, usable_fact
from edge_sdk.store.ledger_rows import unusable_lines
from edge_sdk.store.rows import (
    can_be_sent,
    read_entries,
    read_fact,
    read_numbers,
    schema_of,
    write_facts,
    write_numbers,
)
from edge_sdk.store.schema import SCHEMA
from edge_sdk.wire.protocol.messages import LARGEST


def find_unusable(db: sqlite3.Connection) -> dict[str, str]:
    """Return the values on disk that are out of bounds, by name."""
    rows = db.execute("SELECT name, value FROM facts ORDER BY name")
    found = {name: value for name, value in rows if usable_fact(name, value) is None}
    found |= read_numbers(db)[1]
    for entry in read_entries(db):
        if not can_be_sent(entry):
            found[f"outbox {entry.life}, {entry.seq}"] = "a number that no message can carry"
    row = db.execute("SELECT run, round, version FROM learned").fetchone()
    if row is not None and not all(-1 <= number <= LARGEST for number in row):
        found["learned"] = row
    if schema_of(db) >= SCHEMA:
        ignored = read_fact(db, "ledger set aside")
        lines = [line for line in unusable_lines(db) if line > ignored]
        found |= {f"ledger line {line}": "not a charge; no budget is left" for line in lines}
    return {name: str(value) for name, value in found.items()}


def replace_unusable(db: sqlite3.Connection) -> None:
    """Replace what ``find_unusable`` reports, inside the caller's transaction.

    Lines of the ledger stay: the ledger is never rewritten, and they count as unbounded charges.
    """
    numbers, wrong = read_numbers(db)
    if wrong:
        write_numbers(db, numbers)
    unsendable = [entry.key for entry in read_entries(db) if not can_be_sent(entry)]
    db.executemany("DELETE FROM outbox WHERE life = ? AND seq = ?", unsendable)
    now = int(time.time())
    rows = db.execute("SELECT name, value FROM facts").fetchall()
    wrong_facts = [(name, value) for name, value in rows if usable_fact(name, value) is None]
    write_facts(db, {name: instead_of(name, value, now) for name, value in wrong_facts})
    row = db.execute("SELECT run, round, version FROM learned").fetchone()
    if row is not None and not all(-1 <= number <= LARGEST for number in row):
        db.execute("UPDATE learned SET run = 0, round = -1, version = -1")
