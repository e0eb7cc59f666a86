"""Sign an outbox entry again after the device's key was replaced."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.wire.keys import Signer, kid_of
from edge_sdk.wire.protocol.envelope import AGGREGATOR, prove
from edge_sdk.wire.protocol.outbox_state import OutboxEntry


def signed_again(entry: OutboxEntry, signer: Signer, fleet: str, device: str) -> OutboxEntry:
    """Return an outbox entry with a signature of this key; its body stays.

    Args:
        entry: Entry, signed by this key or by another one.
        signer: Key of the device.
        fleet: Id of the fleet.
        device: Id of the device.
    """
    if entry.proof.startswith(kid_of(signer.public)):
        return entry
    proof = prove(
        entry.digest,
        kind=entry.kind,
        sender=device,
        recipient=AGGREGATOR,
        fleet=fleet,
        signer=signer,
    )
    return replace(entry, proof=proof)
