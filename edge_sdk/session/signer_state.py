"""Sign as one device, and know whether its key can be used: one in a token may be away for a while."""

from __future__ import annotations

from dataclasses import replace

from edge_sdk.wire.keys import RemovableSigner, Signer, kid_of
from edge_sdk.wire.protocol.envelope import AGGREGATOR, prove, seal
from edge_sdk.wire.protocol.outbox_state import OutboxEntry


class SignerState:
    """The signing key of a device, as far as its last use has shown.

    Args:
        signer: Signing key of the device.
        fleet: Fleet of the device.
        device: Id of the device.

    Attributes:
        why_away: Reason why the key cannot be used at present; empty if it can.
        has_signed: Whether the key has signed in this process.
        unsigned: Number of messages that were not sent because the key was away.
    """

    def __init__(self, signer: Signer, fleet: str, device: str) -> None:
        self._signer, self._fleet, self._device = signer, fleet, device
        self.why_away, self.has_signed = "", False
        self.unsigned = 0

    def seal(self, body: bytes, kind: str, recipient: str, signer: Signer | None = None) -> bytes:
        """Wrap and sign a body, by another key of the device if one is given.

        Raises:
            SignerUnavailable: The key is away.
        """
        payload = seal(
            body,
            kind=kind,
            sender=self._device,
            recipient=recipient,
            fleet=self._fleet,
            signer=signer or self._signer,
        )
        self.has_signed = True
        return payload

    def sign_again(self, entry: OutboxEntry) -> OutboxEntry:
        """Return an outbox entry, signed again if the device has another key now; its body stays.

        Raises:
            SignerUnavailable: The key is away.
        """
        if entry.proof.startswith(kid_of(self._signer.public)):
            return entry
        proof = prove(
            entry.digest,
            kind=entry.kind,
            sender=self._device,
            recipient=AGGREGATOR,
            fleet=self._fleet,
            signer=self._signer,
        )
        return replace(entry, proof=proof)

    def note_away(self, why: str) -> None:
        """Note that the key is away: nothing is sent, and no round begins, until it is reached."""
        self.unsigned += 1
        self.why_away = why

    def reach(self) -> bool:
        """Return whether a key that was away can be used again; ask for it."""
        signer = self._signer
        if not self.why_away or not (isinstance(signer, RemovableSigner) and signer.reach()):
            return False
        self.why_away, self.has_signed = "", True
        return True
