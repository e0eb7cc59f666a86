"""Everything that happened, in one order: events of all runs under rising positions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from aggregator.ledger import Key
from aggregator.records import Applied, Entry, pack_event, unpack_event
from edge_sdk.wire.history import vector_digest
from edge_sdk.wire.method import Due, Event, Member, Played, Update

_KINDS: dict[type[Any], str] = {Due: "due", Member: "member", Played: "played"}


def put(db: sqlite3.Connection, run: int, event: Event) -> Entry:
    """Write an event that is no update.

    Example:
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> events = [Due(0, "open"), Member("meter-1", present=True)]
        >>> [put(db, run, event).position for run, event in zip((1, 2), events)]
        [1, 2]
        >>> [entry.event == events[1] for entry in entries(db, run=2)]
        [True]
    """
    return _write(db, _KINDS[type(event)], run, event)


def put_update(
    db: sqlite3.Connection, run: int, update: Update, *, device: str, key: Key
) -> Entry | None:
    """Write an update under its number; None if the device has one in that round already (A4)."""
    taken = db.execute(
        "SELECT 1 FROM journal WHERE kind = 'update' AND device = ? AND run = ? AND turn = ?",
        (device, run, update.round),
    ).fetchone()
    if taken:
        return None
    return _write(db, "update", run, update, device=device, key=key, turn=update.round)


def entries(db: sqlite3.Connection, run: int, after: int = 0) -> Iterator[Entry]:
    """Return a run's events behind a position, in order."""
    for position, kind, device, facts, vector in db.execute(
        "SELECT position, kind, device, facts, vector FROM journal"
        " WHERE run = ? AND position > ? ORDER BY position",
        (run, after),
    ):
        yield Entry(position, run, unpack_event(kind, device, facts, vector))


def applied(db: sqlite3.Connection) -> Iterator[Applied]:
    """Return every update, of all runs, in order."""
    for position, run, turn, device, life, seq, facts, vector in db.execute(
        "SELECT position, run, turn, device, life, seq, facts, vector FROM journal"
        " WHERE kind = 'update' ORDER BY position"
    ):
        event = unpack_event("update", device, facts, vector)
        known = vector_digest(event.vector) if isinstance(event, Update) else ""
        yield Applied(device, life, seq, run, turn, position, known)


def waiting(db: sqlite3.Connection, run: int, number: int) -> int:
    """Return how many updates of a round there are."""
    found = db.execute(
        "SELECT count(*) FROM journal WHERE kind = 'update' AND run = ? AND round = ?",
        (run, number),
    ).fetchone()
    return int(found[0])


def end(db: sqlite3.Connection) -> int:
    """Return the position of the last event; 0 before the first."""
    return int(db.execute("SELECT coalesce(max(position), 0) FROM journal").fetchone()[0])


def forget(db: sqlite3.Connection, upto: int) -> None:
    """Drop the vectors up to a position; what happened stays written."""
    db.execute(
        "UPDATE journal SET vector = NULL WHERE vector IS NOT NULL AND position <= ?", (upto,)
    )


def _write(
    db: sqlite3.Connection,
    kind: str,
    run: int,
    event: Event,
    *,
    device: str | None = None,
    key: Key | None = None,
    turn: int | None = None,
) -> Entry:
    facts, vector = pack_event(event)
    number = getattr(event, "round", 0)
    position = db.execute(
        "INSERT INTO journal (kind, run, round, device, life, seq, turn, facts, vector)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (kind, run, number, device, *(key or (None, None)), turn, facts, vector),
    ).lastrowid
    return Entry(int(position or 0), run, event)
