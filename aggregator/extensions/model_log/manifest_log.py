"""Append a manifest to the log of its run: its proof, and the leaf that is saved with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from aggregator.extensions.model_log.model_leaves import LogLeaf, ModelLeaves
from aggregator.rounds.announcements import Ends
from aggregator.store.store import Store
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.log_format import checkpoint, leaf_of
from edge_sdk.protocol.messages import ModelMessage


def logged(
    message: ModelMessage, bundle: bytes, store: Store, ends: Ends, *, time: int
) -> tuple[ModelMessage, Callable[[], None]]:
    """Return a manifest with its proof, and what saves its leaf. Nothing is saved yet.

    The leaf has the next number of the log. The caller saves it in the transaction that saves the
    manifest; the database refuses a second leaf of a number.

    Args:
        bundle: SHA-256 of the archive of the announced bundle.
        ends: Signer and fleet.
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
