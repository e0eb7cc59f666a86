"""Prove to a device that the log of models continues the checkpoint in its hello; find devices on another log."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from aggregator.extensions.model_log.model_leaves import ModelLeaves
from aggregator.operations.server_extensions import ServerExtension
from edge_sdk.app.cli import fields
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.log_format import checkpoint
from edge_sdk.protocol.messages import HelloMessage, WelcomeMessage

logger = logging.getLogger(__name__)

FORKED = "LOG_FORK_ON_DEVICE"
"""Counter of hellos with a checkpoint that is none of the log."""


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
