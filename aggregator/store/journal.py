"""Store the journal: the events of all runs, in order, under increasing positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from aggregator.store.dialect import Database, last_position, use_position
from aggregator.store.event_codec import pack_event, unpack_event
from aggregator.store.schema import fact, has_pruned, put_fact
from aggregator.store.sequence_ledger import Key
from aggregator.store.types import Applied, JournalEntry, Pruned
from edge_sdk.wire.contract.method import (
    Due,
    Event,
    Member,
    ParentModel,
    Played,
    Unlearned,
    Update,
)
from edge_sdk.wire.link.link_trace import vector_digest

NONE_HELD: Mapping[int, int] = MappingProxyType({})
_PAGE = 64  # events read at a time, so that memory does not grow with the journal
_BARE = "bare"  # fact: position up to which no event has a vector
_TURN_OF = "pruned round of"  # fact, by run: the highest round with deleted updates
_ROUND = "pruned run"  # fact of schema 3: the newest run with deleted updates
_TURN = "pruned round"  # fact of schema 3: the highest round among those updates

_KINDS: dict[type[Any], str] = {
    Due: "due",
    Member: "member",
    ParentModel: "parent",
    Played: "played",
    Unlearned: "unlearned",
}


def append(db: Database, run: int, event: Event) -> JournalEntry:
    """Append an event that is no update.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> events = [Due(0, "open"), Member("meter-1", present=True)]
        >>> [append(db, run, event).position for run, event in zip((1, 2), events)]
        [1, 2]
        >>> [entry.event == events[1] for entry in entries(db, run=2)]
        [True]
    """
    return _write(db, _KINDS[type(event)], run, event)


def put_update(
    db: Database, run: int, update: Update, *, device: str, key: Key
) -> JournalEntry | None:
    """Append an update under its number; return None if the device has one in that round (A4)."""
    taken = db.execute(
        "SELECT 1 FROM journal WHERE kind = 'update' AND device = ? AND run = ? AND turn = ?",
        (device, run, update.round),
    ).fetchone()
    if taken:
        return None
    return _write(db, "update", run, update, device=device, key=key, turn=update.round)


def entries(db: Database, run: int, after: int = 0) -> Iterator[JournalEntry]:
    """Return a run's entries after a position, in order."""
    query = (
        "SELECT position, kind, device, facts, vector FROM journal"
        " WHERE run = ? AND position > ? ORDER BY position LIMIT ?"
    )
    while page := db.execute(query, (run, after, _PAGE)).fetchall():
        for position, kind, device, facts, vector in page:
            yield JournalEntry(position, run, unpack_event(kind, device, facts, vector))
        after = page[-1][0]


def applied(db: Database) -> Iterator[Applied]:
    """Return every update of all runs, in order."""
    query, after = (
        (
            "SELECT position, run, turn, device, life, seq, facts, vector FROM journal"
            " WHERE kind = 'update' AND position > ? ORDER BY position LIMIT ?"
        ),
        0,
    )
    while page := db.execute(query, (after, _PAGE)).fetchall():
        for position, run, turn, device, life, seq, facts, vector in page:
            event = unpack_event("update", device, facts, vector)
            known = vector_digest(event.vector) if isinstance(event, Update) else ""
            yield Applied(device, life, seq, run, turn, position, known)
        after = page[-1][0]


def waiting(db: Database, run: int, number: int) -> int:
    """Return the number of updates of a round."""
    found = db.execute(
        "SELECT count(*) FROM journal WHERE kind = 'update' AND run = ? AND round = ?",
        (run, number),
    ).fetchone()
    return int(found[0])


def end(db: Database) -> int:
    """Return the position of the last event; 0 before the first."""
    return last_position(db)


def forget(db: Database, upto: int, held: Mapping[int, int] = NONE_HELD) -> None:
    """Delete the vectors up to a position; the events remain.

    Args:
        db: Connection.
        upto: The position.
        held: Runs that still need vectors before it, each with its own, lower position.
    """
    db.execute(
        "UPDATE journal SET vector = NULL WHERE position > ? AND position <= ?"  # noqa: S608 - numbers
        f" AND vector IS NOT NULL{_but(held)}",
        (fact(db, _BARE), upto),
    )
    put_fact(db, _BARE, max(fact(db, _BARE), min((upto, *held.values()))))


def _but(held: Mapping[int, int]) -> str:
    return "".join(f" AND NOT (run = {run} AND position > {at})" for run, at in held.items())


def drop(db: Database, upto: int, held: Mapping[int, int] = NONE_HELD) -> None:
    """Delete the events up to a position; keep each device's highest number and a count.

    Args:
        db: Connection.
        upto: The position.
        held: Runs that still need events before it, each with its own, lower position.

    Example:
        >>> import numpy as np
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> for seq in (1, 2, 3):
        ...     update = Update("meter-1", seq, 0, np.zeros(2, np.float32), {})
        ...     entry = put_update(db, 1, update, device="meter-1", key=(1, seq))
        >>> drop(db, 2)
        >>> dict(pruned(db)), oldest_round(db, 1), first(db)
        ({'meter-1': Pruned(life=1, seq=2, updates=2)}, 3, 3)
    """
    chosen = f"position <= ?{_but(held)}"
    updates = f"FROM journal WHERE {chosen} AND kind = 'update'"
    for device, life, seq, count in db.execute(
        f"SELECT device, life, max(seq), count(*) {updates} GROUP BY device, life",
        (upto,),
    ).fetchall():
        db.execute(
            "INSERT INTO pruned VALUES (?, ?, ?, ?) ON CONFLICT (device) DO UPDATE SET"
            " updates = pruned.updates + excluded.updates,"
            " seq = CASE WHEN (excluded.life, excluded.seq) > (pruned.life, pruned.seq)"
            " THEN excluded.seq ELSE pruned.seq END,"
            " life = CASE WHEN excluded.life > pruned.life THEN excluded.life ELSE pruned.life END",
            (device, life, seq, count),
        )
    for run, turn in db.execute(
        f"SELECT run, max(turn) {updates} GROUP BY run", (upto,)
    ).fetchall():
        put_fact(db, f"{_TURN_OF} {run}", int(turn))
    db.execute(f"DELETE FROM journal WHERE {chosen}", (upto,))  # noqa: S608 - numbers


def pruned(db: Database) -> Iterator[tuple[str, Pruned]]:
    """Return the deleted updates of each device."""
    if not has_pruned(db):
        return
    for device, *rest in db.execute("SELECT device, life, seq, updates FROM pruned"):
        yield device, Pruned(*rest)


def oldest_round(db: Database, run: int) -> int:
    """Return the first round of a run without deleted updates."""
    before = fact(db, _TURN) if fact(db, _ROUND) == run else 0
    last = max(before, fact(db, f"{_TURN_OF} {run}"))
    return last + 1 if last else 0


def first(db: Database) -> int:
    """Return the position of the oldest event kept; one past the last if none is."""
    found = db.execute("SELECT min(position) FROM journal").fetchone()[0]
    return int(found) if found is not None else end(db) + 1


def sizes(db: Database, after: int = 0, upto: int = 2**62) -> Iterator[tuple[int, int, int]]:
    """Return position, vector size, and size of facts and names of every event, in bytes."""
    yield from db.execute(
        "SELECT position, coalesce(length(vector), 0),"
        " length(facts) + 3 * coalesce(length(device), 0) FROM journal"
        " WHERE position > ? AND position <= ? ORDER BY position",
        (after, upto),
    )


def _write(
    db: Database,
    kind: str,
    run: int,
    event: Event,
    *,
    device: str | None = None,
    key: Key | None = None,
    turn: int | None = None,
) -> JournalEntry:
    facts, vector = pack_event(event)
    number = getattr(event, "round", 0)
    position = end(db) + 1
    db.execute(
        "INSERT INTO journal (position, kind, run, round, device, life, seq, turn, facts, vector)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (position, kind, run, number, device, *(key or (None, None)), turn, facts, vector),
    )
    use_position(db, position)
    return JournalEntry(position, run, event)
