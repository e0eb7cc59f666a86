"""Store the states of a run by journal position, as changed leaves."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.store.dialect import Database, upsert
from edge_sdk.wire.protocol.codec import Leaf, pack_leaves, unpack_leaves


def save(db: Database, run: int, position: int, leaves: Mapping[str, Leaf]) -> int:
    """Write changed leaves, where None deletes one; return the number of bytes written.

    Example:
        >>> import sqlite3
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
    db.executemany(upsert("leaves", "run, path, position", "value"), packed)
    return sum(len(value or b"") for _, _, _, value in packed)


def at(db: Database, run: int, position: int) -> dict[str, Leaf]:
    """Return the state at a position: the last written value of each leaf."""
    return {
        path: unpack_leaves(value)["leaf"]
        for path, value in db.execute(
            "SELECT leaves.path, value FROM leaves JOIN"
            " (SELECT path, max(position) AS last FROM leaves WHERE run = ? AND position <= ?"
            " GROUP BY path) AS newest ON newest.path = leaves.path AND newest.last = position"
            " WHERE run = ? ORDER BY leaves.path",
            (run, position, run),
        )
        if value is not None
    }


def forget(db: Database, run: int, before: int) -> None:
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


def drop(db: Database, run: int) -> None:
    """Delete the states of a run."""
    db.execute("DELETE FROM leaves WHERE run = ?", (run,))


def sizes(db: Database) -> list[tuple[int, int]]:
    """Return the size of the written leaves in bytes, by position, in order."""
    return db.execute(
        "SELECT position, coalesce(sum(length(value)), 0) FROM leaves"
        " GROUP BY position ORDER BY position"
    ).fetchall()
