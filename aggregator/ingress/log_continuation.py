"""Prove to a device that the log of models continues the checkpoint in its hello; find devices on another log."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial

from aggregator.store.types import Store
from edge_sdk.app.cli import fields
from edge_sdk.wire import merkle_tree, signed_note
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol.model_log import checkpoint

logger = logging.getLogger(__name__)

FORKED = "LOG_FORK_ON_DEVICE"
"""Counter of hellos with a checkpoint that is none of the log."""


@dataclass(frozen=True, slots=True)
class LogContinuation:
    """Present checkpoint of a run's log, and the proof that it continues an earlier one.

    Attributes:
        note: The signed checkpoint.
        path: Proof of consistency, hash after hash.
    """

    note: str
    path: bytes


@dataclass(frozen=True, slots=True)
class LogProver:
    """Prover for the devices of one fleet.

    Attributes:
        store: Store of the logs.
        fleet: Id of the fleet.
        signer: The aggregator's online key.
        counts: Counters of the ingress.
    """

    store: Store
    fleet: str
    signer: Signer
    counts: Counter[str]

    def continuation(self, device: str, place: bytes) -> LogContinuation | None:
        """Return the present checkpoint of the log that a device follows; None if there is none.

        A device whose checkpoint is none of this log was given another model, by a present or former holder of the
        aggregator's key, or this database has lost announcements. It is reported, and counted.

        Args:
            device: Id of the device.
            place: Run, size and root, as in its hello; empty without a checkpoint.
        """
        run, size = int.from_bytes(place[:8], "big"), int.from_bytes(place[8:16], "big")
        present = self.store.log_size(run) if place else 0
        if not present:
            return None
        node_of = partial(self.store.log_node, run)
        is_ours = size <= present and merkle_tree.root(size, node_of) == place[16:]
        if not is_ours:
            self.counts[FORKED] += 1
            about = {"device": device, "run": run, "size": size, "root": place[16:24].hex()}
            logger.error("device follows another model log %s", fields(**about, own_size=present))
        said = checkpoint(self.fleet, run, present, merkle_tree.root(present, node_of))
        path = merkle_tree.consistency_proof(min(size, present), present, node_of)
        note = signed_note.signed(said, self.signer).text
        return LogContinuation(note, merkle_tree.joined(path))
