"""Save the decisions about links to peers, and restore them after a restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_sdk.extensions.peers.chunks import PeerChunks
from edge_sdk.extensions.peers.exchange_types import LinkDecision, PeerExchange
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.store.store import DeviceStore

LINK = "link "
"""Prefix of the stored names that belong to single peers."""


def save_decision(store: DeviceStore, made: LinkDecision, x: PeerExchange) -> None:
    """Save a decision; received scalars have 32 bits and are kept with 32 bits.

    Raises:
        StoreFull: No space; nothing changed.
    """
    got = [[p, off, v.astype(np.float32)] for (p, off), v in sorted(made.received.got.items())]
    leaves = {
        "run": x.run,
        "epoch": x.epoch,
        "step": made.step,
        "used": made.used,
        "last": made.last,
        "degree": made.received.degree,
        "got": got,
    }
    store.file_paper(f"{LINK}{made.name}", pack_leaves(leaves))


def saved_decisions(store: DeviceStore, x: PeerExchange) -> dict[str, LinkDecision]:
    """Return the last decision about each link of this run and epoch, by peer."""
    found = {}
    for name in x.links:
        paper = store.paper(f"{LINK}{name}")
        leaves = unpack_leaves(paper) if paper is not None else {}
        if (leaves.get("run"), leaves.get("epoch")) != (x.run, x.epoch):
            continue
        got = {(part, off): values.astype(np.float64) for part, off, values in leaves["got"]}
        received = replace(PeerChunks(x.size), got=got, degree=leaves["degree"])
        step, used, last = leaves["step"], leaves["used"], leaves["last"]
        found[name] = LinkDecision(name, step, used, last, received)
    return found
