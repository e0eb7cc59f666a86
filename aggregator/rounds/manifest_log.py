"""Append a manifest to the log of its run: its proof, and the leaf that is saved with it."""

from __future__ import annotations

from dataclasses import replace

from aggregator.rounds.announcements import Ends
from aggregator.store.types import LogLeaf, Store
from edge_sdk.wire import merkle_tree, signed_note
from edge_sdk.wire.protocol.messages import ModelMessage
from edge_sdk.wire.protocol.model_log import checkpoint, leaf_of


def logged(
    message: ModelMessage, bundle: bytes, store: Store, ends: Ends, *, time: int
) -> tuple[ModelMessage, LogLeaf]:
    """Return a manifest with its proof, and its leaf. Nothing is saved.

    The leaf has the next number of the log. The caller saves it in the transaction that saves the
    manifest; the database refuses a second leaf of a number.

    Args:
        message: The manifest.
        bundle: SHA-256 of the archive of the announced bundle.
        store: Database of the log.
        ends: Signer and fleet.
        time: Unix milliseconds.
    """
    run, size = message.run, store.log_size(message.run)
    leaf = leaf_of(message, bundle)

    def node_of(level: int, place: int) -> bytes:
        """Return a complete subtree of the log with the leaf that is not saved yet."""
        is_new = (level, place) == (0, size)
        return leaf.hash if is_new else store.log_node(run, level, place)

    path = merkle_tree.inclusion_proof(size, size + 1, node_of)
    _, root = merkle_tree.appended(size + 1, leaf.hash, path)
    note = signed_note.signed(checkpoint(ends.fleet, run, size + 1, root), ends.signer).text
    proved = replace(message, note=note, path=merkle_tree.joined(path))
    return proved, LogLeaf(run, size, leaf.data, time)
