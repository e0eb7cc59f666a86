"""Store the states of a run by journal position, as changed leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves


def save(db: sqlite3.Connection, run: int, position: int, leaves: Mapping[str, Leaf]) -> int:
    """Write changed leaves, where None deletes one; return the number of bytes written.

    Example:
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> save(db, 1, 0, {"round": 0, "pending": 1}), save(db, 1, 5, {"round": 1, "pending": None})
        (86, 43)
        >>> at(db, 1, 4) == {"round": 0, "pending": 1}, at(db, 1, 5)
        (True, {'round': 1})
    """
    packed = [
        (run, path, position, None if leaf is None else pack_leaves({"leaf": leaf}))
        for path, leaf in leaves.items()
    ]
    db.executemany("INSERT OR REPLACE INTO leaves VALUES (?, ?, ?, ?)", packed)
    return sum(len(value or b"") for _, _, _, value in packed)


def at(db: sqlite3.Connection, run: int, position: int) -> dict[str, Leaf]:
    """Return the state at a position: the last written value of each leaf."""
    return {
        path: unpack_leaves(value)["leaf"]
        for path, value, _ in db.execute(
            "SELECT path, value, max(position) FROM leaves WHERE run = ? AND position <= ?"
            " GROUP BY path",
            (run, position),
        )
        if value is not None
    }


def forget(db: sqlite3.Connection, run: int, before: int) -> None:
    """Delete superseded leaves before a position, and leaves that are deleted by then."""
    db.execute(
        "DELETE FROM leaves WHERE run = ? AND position < (SELECT max(later.position)"
        " FROM leaves AS later WHERE later.run = leaves.run AND later.path = leaves.path"
        " AND later.position <= ?)",
        (run, before),
    )
    db.execute(
        "DELETE FROM leaves WHERE run = ? AND position <= ? AND value IS NULL", (run, before)
    )


def drop(db: sqlite3.Connection, run: int) -> None:
    """Delete the states of a run."""
    db.execute("DELETE FROM leaves WHERE run = ?", (run,))


def sizes(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return the size of the written leaves in bytes, by position, in order."""
    return db.execute(
        "SELECT position, coalesce(sum(length(value)), 0) FROM leaves"
        " GROUP BY position ORDER BY position"
    ).fetchall()
