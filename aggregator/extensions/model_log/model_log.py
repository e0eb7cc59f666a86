"""Keep the log of each run's models: leaves and tree, proofs for manifests, proofs for devices.

Rows are only ever inserted; the database refuses a second leaf of a number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from aggregator.operations.server_extensions import ServerExtension
from aggregator.rounds.announcements import Ends
from aggregator.store.dialect import ALL, has_table
from aggregator.store.store import Store
from aggregator.store.transactions import Table
from edge_sdk.app.cli import fields
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.log_format import checkpoint, leaf_of
from edge_sdk.protocol.messages import HelloMessage, ModelMessage, WelcomeMessage


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


def logged(
    message: ModelMessage, bundle: bytes, store: Store, ends: Ends, *, time: int
) -> tuple[ModelMessage, Callable[[], None]]:
    """Return a manifest with its proof, and a function that saves its leaf. Nothing is saved yet.

    The leaf has the next number of the log. The caller saves it in the transaction that saves the
    manifest; the database refuses a second leaf of a number.

    Args:
        bundle: SHA-256 of the archive of the announced bundle.
        time: Unix milliseconds.
    """
    log, run = store.table(ModelLeaves), message.run
    size = log.size(run)
    leaf = leaf_of(message, bundle)

    def node_of(level: int, place: int) -> bytes:
        """Return a complete subtree of the log with the leaf that is not saved yet."""
        is_new = (level, place) == (0, size)
        return leaf.hash if is_new else log.node(run, level, place)

    path = merkle_tree.inclusion_proof(size, size + 1, node_of)
    _, root = merkle_tree.appended(size + 1, leaf.hash, path)
    note = signed_note.signed(checkpoint(ends.fleet, run, size + 1, root), ends.signer).text
    proved = replace(message, note=note, path=merkle_tree.joined(path))
    return proved, partial(log.append, LogLeaf(run, size, leaf.data, time))


logger = logging.getLogger(__name__)

FORKED = "LOG_FORK_ON_DEVICE"  # counter of hellos with a checkpoint that is none of the log


class LogProver(ServerExtension):
    """Proves in each welcome that the log continues."""

    def welcomed(self, device: str, hello: HelloMessage, welcome: WelcomeMessage) -> WelcomeMessage:
        """Return the welcome with the present checkpoint of the log that a device follows, if there is one.

        A device whose checkpoint is none of this log was given another model, by a present or former holder of the
        aggregator's key, or this database has lost announcements. It is reported, and counted.
        """
        run, size = int.from_bytes(hello.log[:8], "big"), int.from_bytes(hello.log[8:16], "big")
        log, parts = self.parts.isolation.store.table(ModelLeaves), self.parts
        present = log.size(run) if hello.log else 0
        if not present:
            return welcome
        node_of = partial(log.node, run)
        is_ours = size <= present and merkle_tree.root(size, node_of) == hello.root
        if not is_ours:
            parts.isolation.ingress.counts[FORKED] += 1
            about = {"device": device, "run": run, "size": size, "root": hello.root[:8].hex()}
            logger.error("device follows another model log %s", fields(**about, own_size=present))
        said = checkpoint(parts.ends.fleet, run, present, merkle_tree.root(present, node_of))
        path = merkle_tree.consistency_proof(min(size, present), present, node_of)
        note = signed_note.signed(said, parts.model_signer).text
        return replace(welcome, note=note, path=merkle_tree.joined(path))
