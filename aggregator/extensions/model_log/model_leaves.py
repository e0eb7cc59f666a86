"""Store the log of each run's models: its leaves, and the hashes of its complete subtrees.

Rows are only ever inserted; the database refuses a second leaf of a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aggregator.store.dialect import ALL, has_table
from aggregator.store.transactions import Table
from edge_sdk.extensions.model_log import merkle_tree


@dataclass(frozen=True, slots=True)
class LogLeaf:
    """A leaf of the log of a run's models."""

    run: int
    index: int  # number of the leaf, from 0
    data: bytes  # its bytes (``log_format.LoggedModel``)
    time: int  # time of its announcement, Unix milliseconds


class ModelLeaves(Table):
    """Log of each run's models: its leaves, and the hashes of its complete subtrees."""

    def size(self, run: int) -> int:
        """Return the number of leaves of a run's log."""
        if not has_table(self._db, "model_leaves"):
            return 0
        found = self._db.execute(
            "SELECT max(leaf) FROM model_leaves WHERE run = ?", (run,)
        ).fetchone()
        return 0 if found[0] is None else int(found[0]) + 1

    def node(self, run: int, level: int, place: int) -> bytes:
        """Return the hash of a complete subtree."""
        found = self._db.execute(
            "SELECT hash FROM model_nodes WHERE run = ? AND level = ? AND place = ?",
            (run, level, place),
        ).fetchone()
        if found is None:
            raise LookupError(f"run {run}: the log has no subtree {place} of level {level}")
        return bytes(found[0])

    def append(self, leaf: LogLeaf) -> None:
        """Append a leaf and the subtrees that it completes.

        >>> from aggregator.store.sqlite import in_memory
        >>> log = in_memory().table(ModelLeaves)
        >>> for index in range(3):
        ...     log.append(LogLeaf(7, index, b"%d" % index, 1_790_000_000_000))
        >>> log.size(7), [one.data for one in log.leaves(7, 1)]
        (3, [b'1', b'2'])
        """
        with self._writing() as db:
            row = (leaf.run, leaf.index, leaf.data, leaf.time)
            db.execute("INSERT INTO model_leaves (run, leaf, data, time) VALUES (?, ?, ?, ?)", row)
            found = merkle_tree.completed(
                leaf.index,
                merkle_tree.leaf_hash(leaf.data),
                lambda level, place: self.node(leaf.run, level, place),
            )
            db.executemany(
                "INSERT INTO model_nodes (run, level, place, hash) VALUES (?, ?, ?, ?)",
                [(leaf.run, level, place, value) for level, place, value in found],
            )

    def leaves(self, run: int, first: int = 0, last: int | None = None) -> Iterator[LogLeaf]:
        """Return the leaves ``first`` to ``last - 1`` of a run's log."""
        if not has_table(self._db, "model_leaves"):
            return
        found = self._db.execute(
            "SELECT leaf, data, time FROM model_leaves WHERE run = ? AND leaf >= ? AND leaf < ?"
            " ORDER BY leaf",
            (run, first, ALL if last is None else last),
        )
        for index, data, time in found:
            yield LogLeaf(run, int(index), bytes(data), int(time))
