"""Store the log of each run's models: its leaves, and the hashes of its complete subtrees.

Rows are only ever inserted; the database refuses a second leaf of a number.
"""

from __future__ import annotations

from collections.abc import Iterator

from aggregator.store.dialect import ALL, Database
from aggregator.store.schema import has_model_log
from aggregator.store.types import LogLeaf
from edge_sdk.wire import merkle_tree


def size(db: Database, run: int) -> int:
    """Return the number of leaves of a run's log."""
    if not has_model_log(db):
        return 0
    found = db.execute("SELECT max(leaf) FROM model_leaves WHERE run = ?", (run,)).fetchone()
    return 0 if found[0] is None else int(found[0]) + 1


def node(db: Database, run: int, level: int, place: int) -> bytes:
    """Return the hash of a complete subtree.

    Raises:
        LookupError: It is not complete.
    """
    found = db.execute(
        "SELECT hash FROM model_nodes WHERE run = ? AND level = ? AND place = ?",
        (run, level, place),
    ).fetchone()
    if found is None:
        raise LookupError(f"run {run}: the log has no subtree {place} of level {level}")
    return bytes(found[0])


def append(db: Database, leaf: LogLeaf) -> None:
    """Append a leaf and the subtrees that it completes.

    Example:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> from aggregator.store.schema import prepare
        >>> db = sqlite3.connect(":memory:", isolation_level=None)
        >>> prepare(db, Path("fleet.db"))
        >>> for index in range(3):
        ...     append(db, LogLeaf(7, index, b"%d" % index, 1_790_000_000_000))
        >>> size(db, 7), [one.data for one in leaves(db, 7, 1)]
        (3, [b'1', b'2'])
    """
    row = (leaf.run, leaf.index, leaf.data, leaf.time)
    db.execute("INSERT INTO model_leaves (run, leaf, data, time) VALUES (?, ?, ?, ?)", row)
    found = merkle_tree.completed(
        leaf.index,
        merkle_tree.leaf_hash(leaf.data),
        lambda level, place: node(db, leaf.run, level, place),
    )
    db.executemany(
        "INSERT INTO model_nodes (run, level, place, hash) VALUES (?, ?, ?, ?)",
        [(leaf.run, level, place, value) for level, place, value in found],
    )


def leaves(db: Database, run: int, first: int, last: int | None = None) -> Iterator[LogLeaf]:
    """Return the leaves of a run's log from a number on, up to the one before ``last``."""
    if not has_model_log(db):
        return
    found = db.execute(
        "SELECT leaf, data, time FROM model_leaves WHERE run = ? AND leaf >= ? AND leaf < ?"
        " ORDER BY leaf",
        (run, first, ALL if last is None else last),
    )
    for index, data, time in found:
        yield LogLeaf(run, int(index), bytes(data), int(time))
